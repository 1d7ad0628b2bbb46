"""Says hello, and where it runs: the first thing to try."""

import os
import platform

print(f"Hello from Python {platform.python_version()}, user {os.getuid()}, process {os.getpid()}.")
