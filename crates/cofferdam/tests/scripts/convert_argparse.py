"""A command line with subcommands: units converted by what `sys.argv` says."""

import argparse
import sys

FACTORS = {"m": 1.0, "km": 1000.0, "mi": 1609.344, "ft": 0.3048}


def parser():
    top = argparse.ArgumentParser(prog="convert", description="Converts lengths.")
    top.add_argument("-v", "--verbose", action="count", default=0)
    commands = top.add_subparsers(dest="command", required=True)
    length = commands.add_parser("length")
    length.add_argument("values", nargs="+", type=float)
    length.add_argument("--from", dest="source", choices=FACTORS, default="m")
    length.add_argument("--to", choices=FACTORS, default="km")
    length.add_argument("--digits", type=int, default=3)
    commands.add_parser("units")
    return top


args = parser().parse_args()
print(sys.argv[1:])
print(sorted(vars(args).items(), key=lambda pair: pair[0]))
if args.command == "units":
    print(*FACTORS)
else:
    for value in args.values:
        print(f"{value:g} {args.source} = {value * FACTORS[args.source] / FACTORS[args.to]:.{args.digits}f} {args.to}")
for wrong in (["length"], ["length", "x"], ["area"]):
    try:
        parser().parse_args(wrong)
    except SystemExit as end:
        print("status", end.code)
raise SystemExit(args.verbose)
