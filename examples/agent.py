"""Drives `cofferdam batch` as an agent would: sends a snippet, reads its answer, decides the next."""

import json
import os
import shutil
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
BUILT = os.path.join(HERE, "..", "target", "release", "cofferdam")
COFFERDAM = os.environ.get("COFFERDAM") or shutil.which("cofferdam") or BUILT

GUESS = """
import sys
secret = sum(map(ord, "cofferdam")) % 100
guess = int(sys.argv[1])
print("low" if guess < secret else "high" if guess > secret else "right")
"""


def main():
    command = [COFFERDAM, "batch", "--profile", "internal", "--timeout", "10s", "--memory", "128MiB"]
    batch = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run(**job):
        batch.stdin.write(json.dumps(job) + "\n")
        batch.stdin.flush()
        return json.loads(batch.stdout.readline())

    low, high, turn = 0, 99, 0
    while low <= high:
        turn, guess = turn + 1, (low + high) // 2
        outcome = run(id=f"turn-{turn}", code=GUESS, args=[str(guess)])
        if outcome["exit_code"] != 0:
            sys.exit(f"{outcome['end']}: {outcome['error'] or outcome['stderr']['text']}")
        answer = outcome["stdout"]["text"].strip()
        print(f"{outcome['id']}: {guess} is {answer} ({outcome['time_ms']['total']:.0f} ms)")
        if answer == "right":
            break
        low, high = (guess + 1, high) if answer == "low" else (low, guess - 1)
    batch.stdin.close()
    sys.exit(batch.wait())


if __name__ == "__main__":
    main()
