"""Draws a plot to a PNG, and reads the file back to see that it is one."""

import struct

import matplotlib

matplotlib.use("Agg")
import matplotlib.image
import matplotlib.pyplot as plt
import numpy as np

x = np.linspace(0, 10, 200)
figure, (left, right) = plt.subplots(1, 2, figsize=(6, 3), dpi=100)
left.plot(x, np.sin(x), label="sin", color="red")
left.plot(x, np.cos(x), "--", label="cos")
left.set(title="Waves", xlabel="x", ylabel="y")
left.legend(loc="lower left")
right.bar(["a", "b", "c"], [3, 1, 2], color=["#004488", "#DDAA33", "#BB5566"])
right.set_title(r"$\sum_i x_i^2$")
figure.tight_layout()
figure.savefig("plot.png")
plt.close(figure)

with open("plot.png", "rb") as file:
    head = file.read(24)
print(head[:8] == b"\x89PNG\r\n\x1a\n", struct.unpack(">II", head[16:24]))
pixels = matplotlib.image.imread("plot.png")
print(pixels.shape, pixels.dtype, pixels[0, 0].tolist())
red = ((pixels[..., 0] > 0.9) & (pixels[..., 1] < 0.2) & (pixels[..., 2] < 0.2)).sum()
blue = (np.abs(pixels[..., :3] - np.array([0, 0x44, 0x88]) / 255).max(axis=-1) < 0.02).sum()
print("red line drawn:", 300 < red < 3000, "blue bar drawn:", 4000 < blue < 12000)

figure, axes = plt.subplots()
axes.imshow(np.outer(np.arange(8), np.arange(8)), cmap="viridis")
figure.savefig("matrix.svg")
print(open("matrix.svg").read().count("<svg"))
