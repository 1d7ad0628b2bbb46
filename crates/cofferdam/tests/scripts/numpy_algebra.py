"""Linear algebra and arrays with NumPy."""

import numpy as np

a = np.array([[4.0, 1.0, 0.0], [1.0, 3.0, 1.0], [0.0, 1.0, 2.0]])
b = np.array([1.0, 2.0, 3.0])
x = np.linalg.solve(a, b)
print(np.round(x, 12), np.allclose(a @ x, b), round(float(np.linalg.det(a)), 9))
values, vectors = np.linalg.eigh(a)
print(np.round(values, 9), np.allclose(vectors @ np.diag(values) @ vectors.T, a))
u, s, vt = np.linalg.svd(np.arange(12.0).reshape(3, 4))
print(np.round(s[:2], 9), np.linalg.matrix_rank(np.arange(12.0).reshape(3, 4)), u.shape, vt.shape)
q, r = np.linalg.qr(a)
print(np.allclose(q @ r, a), np.round(np.linalg.inv(a), 6).tolist())
slope, intercept = np.polyfit(np.arange(6), [2.1, 3.9, 6.2, 7.8, 10.1, 12.2], 1)
print(f"{slope:.9f} {intercept:.9f}")

rng = np.random.default_rng(7)
sample = rng.normal(size=1000)
print(f"{sample.mean():.12f} {sample.std():.12f}", rng.integers(0, 100, 5).tolist(), rng.permutation(6).tolist())
np.random.seed(42)
print(np.random.rand(3).tolist(), np.random.randint(0, 10, 5).tolist())

grid = np.arange(24).reshape(2, 3, 4)
print(grid[:, 1, ::2].tolist(), grid.sum(axis=(0, 2)).tolist(), grid.transpose(2, 0, 1).shape)
print(np.where(grid % 7 == 0, -1, 0).sum(), grid[grid > 20].tolist(), (grid[0] * np.array([1, 10, 100, 1000]))[2].tolist())
signal = np.sin(2 * np.pi * 5 * np.linspace(0, 1, 128, endpoint=False))
print(int(np.abs(np.fft.rfft(signal)).argmax()), np.percentile([1, 2, 3, 4], [25, 50]).tolist())
print(np.unique([3, 1, 3, 2], return_counts=True)[1].tolist(), np.cumsum([1, 2, 3]).tolist(), np.einsum("ij,ij->", a, a))
print(np.datetime64("2026-11-30") - np.datetime64("2026-01-01"), np.array([1, 2], dtype="u1") - np.uint8(2))
np.save("a.npy", a)
print(np.load("a.npy").dtype, np.array2string(a, precision=1), repr(np.float32(0.1)))
print(np.iinfo(np.int_).bits, np.intp(0).itemsize * 8)
