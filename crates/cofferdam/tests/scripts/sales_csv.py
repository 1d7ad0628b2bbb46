"""Reads sales from a CSV file, sums them by region and month, and writes a report as CSV."""

import csv
from collections import defaultdict
from pathlib import Path

ROWS = '''date,region,product,units,price
2026-01-03,north,widget,12,2.50
2026-01-17,south,widget,7,2.50
2026-01-21,north,"gadget, large",3,19.99
2026-02-02,east,widget,40,2.25
2026-02-11,south,"gadget, large",1,19.99
2026-02-28,north,"sprocket ""pro""",5,7.00
2026-03-05,east,widget,,2.25
'''

source = Path("sales.csv")
source.write_text(ROWS, encoding="utf-8")

totals = defaultdict(float)
skipped = []
with source.open(newline="") as file:
    for number, row in enumerate(csv.DictReader(file), start=2):
        try:
            amount = int(row["units"]) * float(row["price"])
        except ValueError as error:
            skipped.append((number, str(error)))
            continue
        totals[row["region"], row["date"][:7]] += amount

report = Path("report.csv")
with report.open("w", newline="") as file:
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["region", "month", "total"])
    for (region, month), total in sorted(totals.items()):
        writer.writerow([region, month, f"{total:.2f}"])

print(report.read_text(), end="")
for number, why in skipped:
    print(f"line {number} skipped: {why}")
print(f"{'sum':>12} {sum(totals.values()):10.2f}")
