"""Counts what comes on standard input, as a filter in a pipe would."""

import sys
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from itertools import accumulate, chain, combinations, groupby, islice, pairwise, zip_longest

lines = [line.rstrip("\n") for line in sys.stdin]
words = [word.strip(".,!?").lower() for word in chain.from_iterable(map(str.split, lines))]
counts = Counter(words)
for word, count in sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))[:6]:
    print(f"{count:3} {word}")

by_length = defaultdict(set)
for word in counts:
    by_length[len(word)].add(word)
print({length: sorted(found) for length, found in sorted(by_length.items())})

print([(letter, len(list(group))) for letter, group in groupby(sorted(words), key=lambda word: word[0])])
print(list(accumulate(map(len, lines))), list(pairwise("abcd")), list(zip_longest("ab", "xyz", fillvalue="-")))
print(list(islice(combinations(sorted(counts), 2), 3)), deque(words, maxlen=3))
print(ChainMap({"a": 1}, {"a": 2, "b": 3})["b"], list(OrderedDict.fromkeys("banana")))
print((counts - Counter(the=2, fox=1)).most_common(1), f"{len(lines)} lines", sep=" | ")
sys.exit(0 if lines else 3)
