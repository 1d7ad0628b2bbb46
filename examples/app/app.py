"""Prints a table that three packages made, which pip installed a moment ago."""

import humanize
import msgpack
import tabulate

SHIFTS = [
    {"pump": "north", "hours": 6, "litres": 1_250_000},
    {"pump": "south", "hours": 9, "litres": 1_980_000},
    {"pump": "spare", "hours": 1, "litres": 64_000},
]


def row(shift):
    packed = msgpack.packb(shift)
    same = msgpack.unpackb(packed)
    return [same["pump"], same["hours"], humanize.intword(same["litres"]), humanize.naturalsize(len(packed))]


print(tabulate.tabulate([row(shift) for shift in SHIFTS], headers=["pump", "hours", "litres", "packed"]))
