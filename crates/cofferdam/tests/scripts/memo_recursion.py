"""Recursion as deep as it usually goes: memoised counts, a knapsack, edit distance, trees, permutations."""

import sys
from functools import cache, lru_cache, reduce


@cache
def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


print(fib(300), fib.cache_info())


@lru_cache(maxsize=None)
def coins(amount, kinds=(1, 5, 10, 25)):
    if amount == 0:
        return 1
    if amount < 0 or not kinds:
        return 0
    return coins(amount, kinds[:-1]) + coins(amount - kinds[-1], kinds)


print(coins(300))


def distance(a, b):
    @cache
    def upto(i, j):
        if i == 0 or j == 0:
            return i + j
        return min(upto(i - 1, j) + 1, upto(i, j - 1) + 1, upto(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return upto(len(a), len(b))


print(distance("intention", "execution"), distance("a" * 90, "ab" * 60))


@lru_cache(maxsize=64)
def collatz(n):
    return 0 if n == 1 else 1 + collatz(n // 2 if n % 2 == 0 else 3 * n + 1)


print(max(range(1, 1000), key=collatz), collatz(871), collatz.cache_parameters())

chain = None
for number in range(450):
    chain = {"value": number, "next": chain}


def total(node):
    return node["value"] + total(node["next"]) if node else 0


def depth(tree):
    return 1 + max((depth(child) for child in tree), default=0)


tree = []
for _ in range(60):
    tree = [tree, []]
print(total(chain), depth(tree))


def permutations(items):
    return [[head, *rest] for head in items for rest in permutations([i for i in items if i != head])] or [[]]


def hanoi(n, a="A", b="B", c="C"):
    return hanoi(n - 1, a, c, b) + 1 + hanoi(n - 1, c, b, a) if n else 0


def quicksort(items):
    if len(items) < 2:
        return items
    pivot, *rest = items
    return quicksort([i for i in rest if i < pivot]) + [pivot] + quicksort([i for i in rest if i >= pivot])


def ackermann(m, n):
    if m == 0:
        return n + 1
    return ackermann(m - 1, 1) if n == 0 else ackermann(m - 1, ackermann(m, n - 1))


print(len(permutations(range(6))), hanoi(12), quicksort([5, 3, 9, 1, 5, 0]) == sorted([5, 3, 9, 1, 5, 0]), ackermann(2, 9))
print(reduce(lambda a, b: a * b, range(1, 30)), sys.getrecursionlimit())


@cache
def single(x):
    return type(x).__name__


print(single(1), single(1.0), single(True), single.cache_info().currsize)
