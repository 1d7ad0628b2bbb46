"""Lays out a report: wrapping, tables, templates, differences, Unicode."""

import difflib
import pprint
import string
import textwrap
import unicodedata

PROSE = """Agents write a great many small programs. Most of them run once, print something, and are
never seen again; it is worth making that cheap, and worth making it safe."""

print(textwrap.fill(" ".join(PROSE.split()), width=44, initial_indent="  * ", subsequent_indent="    "))
print(textwrap.shorten(PROSE, width=40, placeholder=" …"))
print(textwrap.indent(textwrap.dedent("    a\n      b\n\n    c\n"), "> ", lambda line: True), end="")

rows = [("name", "qty", "price"), ("bolt", 1200, 0.0375), ("bracket", 13, 7.995), ("paint", 3, 24.9)]
widths = [max(len(str(row[column])) for row in rows) for column in range(3)]
for row in rows:
    print(" | ".join(f"{cell!s:<{width}}" if isinstance(cell, str) else f"{cell:>{width}}" for cell, width in zip(row, widths)))
print("-+-".join("-" * width for width in widths))

print(string.Template("$who owes $$${amount}").substitute(who="Bo", amount="5.00"))
print(f"{1234567.891:,.2f} {0.000123:e} {255:#06x} {255:b} {-7:+d} {0.256:.1%} {'mid':*^9} {True!r:>6}")
print("{0:>{width}} {name!r:.{precision}}".format("x", width=4, name="abcdef", precision=3), "%-6s|%05.1f|%x" % ("ab", 3.14159, 255))

before = "one\ntwo\nthree\nfour\n".splitlines(keepends=True)
after = "one\n2\nthree\nfour\nfive\n".splitlines(keepends=True)
print("".join(difflib.unified_diff(before, after, "before", "after")), end="")
print(f"{difflib.SequenceMatcher(None, 'kitten', 'sitting').ratio():.6f}", difflib.get_close_matches("appel", ["ape", "apple", "peach"]))

pprint.pprint({"key": list(range(12)), "nested": {"text": "word " * 12, "set": {3, 1, 2}}, "empty": ()}, width=60)
for text in ("é", "e\u0301", "ß", "ﬁ", "Ω", "中", "😀"):
    print(text, len(text), [unicodedata.name(c, "?") for c in unicodedata.normalize("NFKD", text)][:2], text.casefold(), unicodedata.east_asian_width(text[0]))
print("straße".upper(), "ΑΣ".lower(), "İ".lower().encode(), "a\tb".expandtabs(4), "x,y;z".partition(";"))
print(sorted(["Zebra", "apple", "Émile", "eclair"], key=lambda w: unicodedata.normalize("NFD", w).casefold()))
