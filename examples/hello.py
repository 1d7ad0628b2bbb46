"""Says hello, and where it runs: the first thing to try."""

import os
import platform
import sys

place = os.getcwd()
print(f"Hello from Python {platform.python_version()} on {sys.platform}, in {place}.")
