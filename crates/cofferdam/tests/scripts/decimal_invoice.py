"""Adds up an invoice in decimals and fractions, where floats would be a cent off."""

from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, getcontext, localcontext
from fractions import Fraction

CENT = Decimal("0.01")
ITEMS = [("bolt", 1000, "0.0375"), ("bracket", 13, "7.995"), ("paint", 3, "24.90")]
VAT = Decimal("0.19")

net = Decimal(0)
for name, count, price in ITEMS:
    amount = (count * Decimal(price)).quantize(CENT, ROUND_HALF_UP)
    net += amount
    print(f"{name:<10}{count:>6} x {price:>8} = {amount:>10,}")
tax = (net * VAT).quantize(CENT, ROUND_HALF_UP)
print(f"net {net}  tax {tax}  gross {net + tax}")

print(Decimal("2.675").quantize(CENT, ROUND_HALF_EVEN), round(2.675, 2), 0.1 + 0.2, Decimal("0.1") + Decimal("0.2"))
shares = [(net + tax) / 3] * 3
parts = [share.quantize(CENT) for share in shares]
parts[0] += net + tax - sum(parts)
print(parts, sum(parts) == net + tax)

with localcontext() as context:
    context.prec = 50
    print(Decimal(2).sqrt(), Decimal(1).exp())
print(getcontext().prec, Decimal(1) / Decimal(7), Decimal("1E+3").normalize(), Decimal("-0"))
print(sum(Fraction(1, n) for n in range(1, 11)), Fraction("0.125"), Fraction(3.5).limit_denominator(10))
