"""A seeded simulation: the same numbers wherever it runs."""

import random
from collections import Counter

random.seed(20261130)
rolls = Counter(random.randint(1, 6) + random.randint(1, 6) for _ in range(20_000))
for total in range(2, 13):
    print(f"{total:2} {rolls[total]:5} {'#' * (rolls[total] // 100)}")


def walk(generator, steps):
    """How far a random walk on a grid gets."""
    x = y = 0
    for _ in range(steps):
        dx, dy = generator.choice([(0, 1), (1, 0), (0, -1), (-1, 0)])
        x, y = x + dx, y + dy
    return abs(x) + abs(y)


generator = random.Random("a name as seed")
distances = [walk(generator, 100) for _ in range(300)]
print(sum(distances) / len(distances), max(distances))

inside = sum(generator.random() ** 2 + generator.random() ** 2 < 1 for _ in range(50_000))
print(f"pi is about {4 * inside / 50_000:.4f}")

deck = [f"{rank}{suit}" for suit in "SHDC" for rank in "23456789TJQKA"]
generator.shuffle(deck)
print(deck[:5], generator.sample(range(1000), 5), generator.choices("abc", weights=[5, 3, 2], k=8))
print(f"{generator.gauss(0, 1):.12f} {generator.expovariate(2):.12f} {generator.betavariate(2, 3):.12f}")
print(generator.getrandbits(128), generator.randbytes(4).hex())
