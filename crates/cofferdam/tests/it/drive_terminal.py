"""Drives a program through a terminal and prints, as a JSON list, what each step showed.

Steps, one a line: `type TEXT` (and return), `keys ESCAPED`, `size ROWS COLUMNS`, `wait` (for the end),
`stare SECONDS` (without reading; the program has to be over by then).
"""

import fcntl, json, os, pty, select, struct, sys, termios, time

steps, words = sys.argv[1].split("\n"), sys.argv[2:]
control, terminal = pty.openpty()
before = termios.tcgetattr(terminal)
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    for stream in (0, 1, 2):
        os.dup2(terminal, stream)
    os.execv(words[0], words)


def read(quiet, most=10.0):
    """What comes until it has been quiet for so long."""
    seen, end = b"", time.time() + most
    while time.time() < end and select.select([control], [], [], quiet)[0]:
        seen += os.read(control, 65536)
    return seen.decode(errors="replace")


def settle():
    """Waits for the first sign of the program, so that no key comes before our terminal is raw."""
    end = time.time() + 10
    while termios.tcgetattr(terminal)[3] & termios.ICANON and time.time() < end:
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
            return
        time.sleep(0.01)
    read(0.3)


seen = []
if steps[0].split()[0] not in ("wait", "stare"):
    settle()
for step in steps:
    what, _, rest = step.partition(" ")
    if what == "size":
        fcntl.ioctl(control, termios.TIOCSWINSZ, struct.pack("HHHH", *map(int, rest.split()), 0, 0))
        time.sleep(0.2)
        seen.append("")
    elif what == "stare":
        time.sleep(float(rest))
        over = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        seen.append("over" if over else "still there")
    elif what == "wait":
        shown, end = "", time.time() + 10
        while not (ended := os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)):
            shown += read(0.05, 0.2)
            if time.time() > end:
                break
        shown += read(0.2)
        code = f"exit {ended.si_status}" if ended else "still there"
        same = "terminal unchanged" if termios.tcgetattr(terminal) == before else "terminal changed"
        seen.append(f"{shown}\n{code}\n{same}")
    else:
        keys = rest.encode() + b"\r" if what == "type" else rest.encode().decode("unicode_escape").encode()
        os.write(control, keys)
        seen.append(read(0.4))
os.close(control)  # a hang-up ends whatever is left
os.waitpid(pid, 0)
print(json.dumps(seen))
