"""Runs a program on a terminal and prints, as JSON, what it said, its exit code, and what was typed into
the terminal meanwhile, which a shell would read next."""

import fcntl, json, os, pty, select, sys, termios, time

control, terminal = pty.openpty()
pid = os.fork()
if pid == 0:
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    quiet = termios.tcgetattr(terminal)
    quiet[3] &= ~termios.ECHO  # what is typed must not be taken for what was said
    termios.tcsetattr(terminal, termios.TCSANOW, quiet)
    for stream in (0, 1, 2):
        os.dup2(terminal, stream)
    os.execvp(sys.argv[1], sys.argv[1:])
said, end, status = b"", time.time() + 10, None
while status is None and time.time() < end:
    if select.select([control], [], [], 0.05)[0]:
        said += os.read(control, 65536)
    status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG)
if status is None:
    os.kill(pid, 9)
while select.select([control], [], [], 0.1)[0]:
    said += os.read(control, 65536)
mode = termios.tcgetattr(terminal)
mode[3] &= ~(termios.ICANON | termios.ECHO)
mode[6][termios.VMIN] = mode[6][termios.VTIME] = 0
termios.tcsetattr(terminal, termios.TCSANOW, mode)
typed = os.read(terminal, 65536)
code = status.si_status if status else -1
print(json.dumps({"said": said.decode(errors="replace"), "code": code, "typed": typed.decode(errors="replace")}))
