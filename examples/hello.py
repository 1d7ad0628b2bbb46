"""Says hello, and where it runs: the first thing to try."""

import os
import platform
import sys

print(f"Hello from Python {platform.python_version()} on {sys.platform}, process {os.getpid()}.")
