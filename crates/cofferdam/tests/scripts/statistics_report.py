"""Describes samples: centre, spread, quantiles, correlation, regression, outliers."""

import math
import statistics as st

SAMPLES = {
    "response ms": [12.1, 15.3, 11.8, 14.9, 13.2, 98.7, 12.6, 13.0, 14.1, 12.9],
    "small": [1, 2, 2, 3, 5, 8, 13],
    "constant": [4.0] * 5,
}

for name, values in SAMPLES.items():
    q1, q2, q3 = st.quantiles(values, n=4)
    spread = q3 - q1
    outliers = [v for v in values if v < q1 - 1.5 * spread or v > q3 + 1.5 * spread]
    print(f"{name:12} n={len(values):2} mean={st.mean(values):.4f} median={st.median(values)} stdev={st.stdev(values):.6f}")
    print(f"{'':12} quartiles=({q1:.3f}, {q2:.3f}, {q3:.3f}) mode={st.mode(values)} outliers={outliers}")

x = [1, 2, 3, 4, 5, 6]
y = [2.1, 3.9, 6.2, 7.8, 10.1, 12.2]
line = st.linear_regression(x, y)
print(f"y = {line.slope:.6f} x + {line.intercept:.6f}, r = {st.correlation(x, y):.8f}")
print(st.geometric_mean([1, 3, 9, 27]), st.harmonic_mean([40, 60]), st.multimode("aabbc"))
normal = st.NormalDist(mu=100, sigma=15)
print(f"{normal.cdf(130):.10f} {normal.inv_cdf(0.975):.8f} {normal.overlap(st.NormalDist(110, 15)):.8f}")
print(math.fsum([0.1] * 10), sum([0.1] * 3), math.dist((0, 0), (3, 4)), math.comb(52, 5))
