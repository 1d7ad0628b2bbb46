"""What is put into a template of the Wasm backend before its snapshot is taken.

The worker hands this text to the interpreter as one turn, then calls `_cofferdam_prepare` once, takes
the snapshot, and calls `_cofferdam_run` once in every clone. Nothing here is a boundary: the program
runs in the same interpreter and can reach all of it. The boundary is the Wasm instance and the worker's
jail.

Three things make a clone look like a fresh `python3 script.py`:

* what a process draws or notes when it starts is drawn and noted again (generators, node, clock);
* `__main__`, `sys.argv`, `sys.path[0]`, the standard streams and tracebacks are a script's own;
* what ends a process is done: functions of `atexit`, clearing of `__main__`, flushing.
"""

import asyncio
import atexit
import builtins
import errno
import functools
import gc
import hashlib
import importlib.machinery
import importlib.util
import inspect
import io
import itertools
import json
import linecache
import os
import random
import socket
import sqlite3
import sqlite3.dbapi2
import subprocess
import sys
import threading
import time
import tokenize
import traceback
import types
import warnings
import urllib.parse as _parse
import weakref
import _sitebuiltins
import _thread

# The folder that a program starts in, and the other one that it can write to.
_WORKSPACE = "/workspace"
_TEMPORARY = "/tmp"

# Who has what Wasm lacks, for the end of a message: a container, which profile `untrusted` never gets.
_CONTAINER = "--backend container --profile internal"
_ELSEWHERE = f"a container has: {_CONTAINER}, if nobody outside controls the program or what it reads"
# Who has a network but no hosts that rules name.
_LOOPBACK = f"a container has a loopback of its own: {_CONTAINER}"
# What of the network works, where something else was tried.
_BY_BLOCKING = "urllib, http.client, requests and sockets reach the hosts that --allow names"


# ---------------------------------------------------------------------------------------------
# Randomness

# Generators that existed when the snapshot was taken: every clone would draw the same from them.
_generators = []


def _find_generators():
    """Every generator of the template, wherever it is kept: the modules' own and private ones."""
    numpy_random = sys.modules.get("numpy.random")
    kinds = (random.Random,)
    states = []
    if numpy_random is not None:
        kinds += (numpy_random.BitGenerator, numpy_random.RandomState)
        states.append(numpy_random.mtrand._rand)  # that of `numpy.random.rand` and the like
    # By type: to ask a thing for its class may run code of its own.
    found = [thing for thing in gc.get_objects() if issubclass(type(thing), kinds)]
    states += [thing for thing in found if type(thing).__name__ == "RandomState" and thing is not states[0]]
    states = [state for state in states if type(state._bit_generator).__name__ == "MT19937"]
    # A legacy state is seeded as a whole, since it keeps a number besides what its bits come from.
    own = {id(state) for state in states} | {id(state._bit_generator) for state in states}
    rest = [it for it in found if id(it) not in own and not isinstance(it, random.SystemRandom)]
    return states + rest


def _reseed(seed):
    """Gives every generator of the template a stream of its own.

    `seed` is 32 bytes from the host, other ones for each run. What asks the host itself
    (`os.urandom`, `secrets`, `SystemRandom`, `uuid4`, a generator made later) needs nothing.
    """
    for number, generator in enumerate(_generators):
        own = hashlib.sha256(seed + number.to_bytes(4, "little")).digest()
        if isinstance(generator, random.Random):
            generator.seed(int.from_bytes(own, "little"))
        elif type(generator).__name__ == "RandomState":
            generator.seed([int.from_bytes(own[at : at + 4], "little") for at in range(0, 32, 4)])
        else:
            generator.state = type(generator)(int.from_bytes(own, "little")).state


def _forget_the_template():
    """What modules noted about the process that loaded them. Once: a clone finds them as if nothing had been used."""
    loaded = sys.modules.get
    if uuid := loaded("uuid"):
        # The node and the last time: version 1 to 7 are made of them.
        for name in ("_node", "_last_timestamp", "_last_timestamp_v6", "_last_timestamp_v7"):
            if hasattr(uuid, name):
                setattr(uuid, name, None)
        if hasattr(uuid, "_last_counter_v7"):
            uuid._last_counter_v7 = 0
    if tempfile := loaded("tempfile"):
        tempfile._name_sequence = None
        tempfile.tempdir = None
    threading._counter = itertools.count(1).__next__  # the first thread's name is Thread-1


def _note_the_process():
    """What modules note about a process that loads them, and is another in each."""
    loaded = sys.modules.get
    if logging := loaded("logging"):
        logging._startTime = time.time_ns()
    if process := loaded("multiprocessing.process"):
        process.current_process()._config["authkey"] = process.AuthenticationString(os.urandom(32))


class _Connection(sqlite3.Connection):
    """SQLite database connection object."""

    # A database whose `random()` is the host's. SQLite seeds its own from the time in seconds and the number of
    # the process, which is always the same here, so two runs of one second would draw the same.

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Whatever a program's own class has made of the method.
        _plain_connection.create_function(self, "random", 0, _random_integer)
        _plain_connection.create_function(self, "randomblob", 1, _random_blob)


def _connect(database, *args, **kwargs):
    """`sqlite3.connect`, which makes those."""
    if len(args) < 5:
        kwargs.setdefault("factory", _Connection)  # the sixth of all, where it has no name
    if len(args) < 7:
        database, kwargs["uri"] = _without_lock(database, kwargs.get("uri", False))
    return _plain_connect(database, *args, **kwargs)


def _without_lock(database, is_uri):
    """A database as SQLite can open it: it locks a file by making another beside it, even to read it."""
    try:
        name = os.fsdecode(database)
    except TypeError:
        return database, is_uri  # SQLite's module says what is wrong with it
    path = name.removeprefix("file:").partition("?")[0] if is_uri else name
    if not _is_read_only(_parse.unquote(path) if is_uri else path):
        return database, is_uri
    if not is_uri:
        return f"file:{_parse.quote(os.path.abspath(path))}?mode=ro&nolock=1", True
    return f"{name}{'&' if '?' in name else '?'}nolock=1", True


def _is_read_only(path):
    """Whether a file is there and can't be written, as all of those that were handed over."""
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as error:
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and os.path.isfile(path)
    except ValueError:
        return False  # a NUL in it, of which SQLite's module says more
    return False


def _install_random():
    """Puts them in the places of those that SQLite's module has."""
    _Connection.__name__ = _Connection.__qualname__ = "Connection"
    _Connection.__module__ = "sqlite3"
    _connect.__name__ = _connect.__qualname__ = "connect"
    _connect.__doc__ = _plain_connect.__doc__
    for module in (sqlite3, sqlite3.dbapi2, sys.modules["_sqlite3"]):
        module.Connection, module.connect = _Connection, _connect


def _random_integer():
    return int.from_bytes(os.urandom(8), "little", signed=True)


def _random_blob(length):
    return os.urandom(max(1, int(length or 0)))


# ---------------------------------------------------------------------------------------------
# asyncio without a socket pair


class _Waiting:
    """What the event loop calls its selector: it waits for time alone."""

    def select(self, timeout=None):
        if timeout is None:
            # A loop with sockets would wait for ever; here nothing can ever come.
            raise RuntimeError(
                "every task of this event loop waits for something that no task, timer or callback "
                "will bring, so it would never end"
            )
        if timeout > 0:
            time.sleep(timeout)
        return ()

    def close(self):
        pass

    def get_map(self):
        return {}


def _refused(what, who=_ELSEWHERE):
    """The error for what needs a system that isn't there, of the type the system would give."""
    return OSError(errno.ENOTSUP, f"Not supported: the Wasm backend has no {what} ({who})")


class _CofferdamEventLoop(asyncio.BaseEventLoop):
    """An event loop of timers and callbacks: tasks, queues, locks, timeouts and groups work in it.

    There is nothing to wake it from outside, since there are no threads, signals or sockets.
    """

    def __init__(self, selector=None):
        super().__init__()
        self._selector = _Waiting()

    def _process_events(self, event_list):
        pass

    def _write_to_self(self):
        pass

    def run_in_executor(self, executor, func, *args):
        if executor is None:
            self._check_closed()
            raise RuntimeError(_NO_THREAD)
        return super().run_in_executor(executor, func, *args)

    async def create_connection(self, *args, **kwargs):
        raise _refused("network in its event loop", _BY_BLOCKING)

    async def create_datagram_endpoint(self, *args, **kwargs):
        raise _refused("way out for datagrams", _BY_BLOCKING)

    async def create_server(self, *args, **kwargs):
        raise _refused("loopback to serve on", _LOOPBACK)

    async def create_unix_connection(self, *args, **kwargs):
        raise _refused("sockets")

    async def create_unix_server(self, *args, **kwargs):
        raise _refused("sockets")

    async def getaddrinfo(self, host, port, **kwargs):
        return socket.getaddrinfo(host, port)

    async def connect_read_pipe(self, *args, **kwargs):
        raise NotImplementedError(f"the Wasm backend's event loop can't watch a pipe ({_ELSEWHERE})")

    connect_write_pipe = connect_read_pipe

    async def subprocess_exec(self, *args, **kwargs):
        raise _refused("processes")

    async def subprocess_shell(self, *args, **kwargs):
        raise _refused("processes")


def _install_event_loop():
    """Makes `asyncio.run`, `new_event_loop` and the names of loop classes give ours."""
    events = sys.modules["asyncio.unix_events"]
    for module in (asyncio, events):
        for name in ("EventLoop", "SelectorEventLoop", "_UnixSelectorEventLoop"):
            if hasattr(module, name):
                setattr(module, name, _CofferdamEventLoop)
    for name in ("_UnixDefaultEventLoopPolicy", "_DefaultEventLoopPolicy"):
        if policy := getattr(events, name, None):
            policy._loop_factory = _CofferdamEventLoop
    _CofferdamEventLoop.__name__ = _CofferdamEventLoop.__qualname__ = "CofferdamEventLoop"


# ---------------------------------------------------------------------------------------------
# Words for what doesn't fit

_NO_THREAD = f"can't start new thread: the Wasm backend has no threads ({_ELSEWHERE})"

# What of `os` a program asks for that Wasm hasn't got: it has no processes and no users.
_OS_LACKS = {
    "processes": (
        "abort execl execle execlp execlpe execv execve execvp execvpe fork forkpty kill killpg nice "
        "pidfd_open posix_spawn posix_spawnp spawnl spawnle spawnlp spawnlpe spawnv spawnve spawnvp "
        "spawnvpe system wait wait3 wait4 waitid waitpid getppid getpgid getpgrp getsid setsid "
        "WNOHANG"
    ).split(),
    "users": (
        "chown fchown lchown getuid geteuid getgid getegid getgroups getlogin getresuid getresgid "
        "initgroups setuid seteuid setgid setegid setgroups umask chroot"
    ).split(),
    "pipes": "mkfifo mknod pipe pipe2 openpty".split(),
    "schedulers": "getloadavg sched_getaffinity sched_setaffinity sched_yield".split(),
}
_OS_WHY = {name: what for what, names in _OS_LACKS.items() for name in names}

# Modules of the standard library that this build lacks, with what they need and who has that.
_A_TERMINAL = ("a terminal", f"a container has one with -t: {_CONTAINER} -t")
_A_SCREEN = ("a screen", "no sandbox has one: draw into a file, with matplotlib or PIL")
_DATABASES = ("a library of databases", "sqlite3 and dbm.dumb are there")
_THE_HOSTS = f"a container has it if the host's Python does: {_CONTAINER}"
_MODULE_NEEDS = {
    "_ssl": ("TLS", _ELSEWHERE),
    "_posixsubprocess": ("processes", _ELSEWHERE),
    "_multiprocessing": ("processes", _ELSEWHERE),
    "_posixshmem": ("shared memory between processes", _ELSEWHERE),
    "fcntl": ("file locks", _ELSEWHERE),
    "grp": ("users", _ELSEWHERE),
    "pwd": ("users", _ELSEWHERE),
    "resource": ("resource limits", _ELSEWHERE),
    "syslog": ("a system log", "no sandbox has one: write to standard error"),
    "termios": _A_TERMINAL,
    "pty": _A_TERMINAL,
    "tty": _A_TERMINAL,
    "_curses": _A_TERMINAL,
    "curses": _A_TERMINAL,
    "readline": _A_TERMINAL,
    "_tkinter": _A_SCREEN,
    "tkinter": _A_SCREEN,
    "turtle": _A_SCREEN,
    "_dbm": _DATABASES,
    "_gdbm": _DATABASES,
    "_interpreters": ("interpreters beside the first", _THE_HOSTS),
    "_remote_debugging": ("other processes to look into", _THE_HOSTS),
    "_zstd": ("the Zstandard library", _THE_HOSTS),
}


def _os_getattr(name):
    message = f"module 'os' has no attribute {name!r}"
    if what := _OS_WHY.get(name):
        raise AttributeError(f"{message}: the Wasm backend has no {what} ({_ELSEWHERE})", name=name)
    raise AttributeError(message, name=name, obj=os)


def _start_no_thread(*args, **kwargs):
    raise RuntimeError(_NO_THREAD)


def _start_no_process(self, *args, **kwargs):
    # As `Popen` leaves itself for its own `__del__` when it fails early.
    self._child_created = False
    self.returncode = None
    raise OSError(
        errno.ENOTSUP, f"wasi does not support processes: the Wasm backend has none ({_ELSEWHERE})"
    )


def _install_words():
    os.__getattr__ = _os_getattr
    threading._start_joinable_thread = _start_no_thread
    _thread.start_joinable_thread = _start_no_thread
    _thread.start_new_thread = _start_no_thread
    subprocess.Popen.__init__ = _start_no_process


def _note(error):
    """What to do about an error that ends the program, where its own words can't say it."""
    if isinstance(error, ModuleNotFoundError) and error.name:
        top = error.name.partition(".")[0]
        if top in _MODULE_NEEDS:
            name, (needs, who) = top.lstrip("_"), _MODULE_NEEDS[top]
            return f"cofferdam: {name} needs {needs}, which the Wasm backend doesn't have: {who}"
        if top not in sys.stdlib_module_names and not error.name.startswith("_"):
            return (
                f"cofferdam: {top} isn't in this template of Python: `cofferdam setup python --template NAME "
                f"--with {top}` adds packages written in Python alone; a container has those of the host, or of "
                f"a virtual environment: {_CONTAINER} --venv DIR"
            )
    return _denied(error)


def _denied(error):
    """What an answer says that came from the sandbox's way out and not from a server."""
    headers = getattr(error, "headers", None)
    try:
        if not headers or "x-cofferdam-denied" not in headers:
            return None
        document = json.loads(error.read())
        needs = f" It needs {document['needs']}." if document.get("needs") else ""
        return f"cofferdam: {document['host']}: {document['detail']}{needs}"
    except Exception:
        return None  # it isn't such an answer, or was read


def _add_note(error):
    """Adds the note to the first error of the chain that has one."""
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if note := _note(error):
            error.add_note(note)
            return
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


# ---------------------------------------------------------------------------------------------
# What OpenSSL has elsewhere


def _pbkdf2_hmac(hash_name, password, salt, iterations, dklen=None):
    """PKCS 5 v2.0's second key derivation (RFC 8018, 5.2), which `hashlib` leaves to OpenSSL."""
    inner, outer = hashlib.new(hash_name), hashlib.new(hash_name)
    size = getattr(inner, "block_size", 64)
    password = bytes(password)
    if len(password) > size:
        password = hashlib.new(hash_name, password).digest()
    password = password.ljust(size, b"\0")
    inner.update(password.translate(bytes(byte ^ 0x36 for byte in range(256))))
    outer.update(password.translate(bytes(byte ^ 0x5C for byte in range(256))))

    def mac(message):
        first, second = inner.copy(), outer.copy()
        first.update(message)
        second.update(first.digest())
        return second.digest()

    if dklen is None:
        dklen = outer.digest_size
    if iterations < 1 or dklen < 1:
        raise ValueError("iterations and dklen must be at least 1")
    key = b""
    for block in itertools.count(1):
        if len(key) >= dklen:
            return key[:dklen]
        last = mac(bytes(salt) + block.to_bytes(4, "big"))
        mixed = int.from_bytes(last, "big")
        for _ in range(iterations - 1):
            last = mac(last)
            mixed ^= int.from_bytes(last, "big")
        key += mixed.to_bytes(inner.digest_size, "big")


# ---------------------------------------------------------------------------------------------
# Caches that recursion doesn't exhaust


def _functools_in_python():
    """A second `functools` without its parts in C."""
    spec = importlib.util.find_spec("functools")
    module = importlib.util.module_from_spec(spec)
    in_c = sys.modules["_functools"]
    sys.modules["_functools"] = None
    try:
        spec.loader.exec_module(module)
    finally:
        sys.modules["_functools"] = in_c
    return module


def _lru_cache_wrapper(user_function, maxsize, typed, cache_info_type):
    """What `functools.lru_cache` makes, for programs.

    Each level of a recursion through the one in C takes half a KiB of the C stack of 112 KiB, so `fib(250)`
    would fail. Calls from Python to Python take none: the depth is the usual one.
    """
    if maxsize is not None:
        return _lru_cache_in_python(user_function, maxsize, typed, cache_info_type)
    cache, nothing = {}, object()
    hits = misses = 0

    def wrapper(*args, **kwds):
        nonlocal hits, misses
        if kwds or typed:
            key = functools._make_key(args, kwds, typed)
        elif len(args) == 1 and type(args[0]) in (int, str):
            key = args[0]  # so that f(1) and f(1.0) differ, as they do in C
        else:
            key = args
        result = cache.get(key, nothing)
        if result is nothing:
            misses += 1
            result = cache[key] = user_function(*args, **kwds)
        else:
            hits += 1
        return result

    def cache_info():
        return cache_info_type(hits, misses, None, len(cache))

    def cache_clear():
        nonlocal hits, misses
        cache.clear()
        hits = misses = 0

    wrapper.cache_info, wrapper.cache_clear = cache_info, cache_clear
    return wrapper


# ---------------------------------------------------------------------------------------------
# Tracebacks


def _own(code):
    return code.co_filename in _own_files


def _without_own_frames(trace):
    """The traceback without the frames of this file and what lies below them at its start."""
    while trace is not None and trace.tb_frame.f_code is not _body_code:
        trace = trace.tb_next
    trace = trace and trace.tb_next
    at = trace
    while at is not None:
        while at.tb_next is not None and _own(at.tb_next.tb_frame.f_code):
            at.tb_next = at.tb_next.tb_next
        at = at.tb_next
    return trace


# What a traceback says of a missing module when the interpreter was started without `site`, as this
# one is on purpose.
_NO_SITE = ". Site initialization is disabled, did you forget to"


class _TracebackWords(traceback.TracebackException):
    """Says of a missing module only that it is missing."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        if isinstance(self._str, str):
            self._str = self._str.partition(_NO_SITE)[0]


def _walk_stack(frame):
    """`traceback.walk_stack`, which ends where the program does."""
    if frame is None:
        frame = sys._getframe().f_back
    return _frames(frame)


def _frames(frame):
    while frame is not None and frame.f_code is not _body_code:
        yield frame, frame.f_lineno
        frame = frame.f_back


def _outer_frames(frame, context=1):
    """`inspect.getouterframes`, which ends where the program does."""
    found = _inspect_outer_frames(frame, context)
    ours = [at for at, info in enumerate(found) if info.frame.f_code is _body_code]
    return found[: ours[0]] if ours else found


def _report(error):
    """Prints an error that nothing caught, as the interpreter does for a script."""
    trace = _without_own_frames(error.__traceback__)
    error.__traceback__ = trace
    _add_note(error)
    sys.last_exc = sys.last_value = error
    sys.last_type = type(error)
    sys.last_traceback = trace
    hook = getattr(sys, "excepthook", None)
    if getattr(sys, "stderr", ...) is None:
        return  # where there is none at all, the interpreter has words for that
    try:
        if hook is None:
            print("sys.excepthook is missing", file=sys.stderr)
            sys.__excepthook__(type(error), error, trace)
        else:
            hook(type(error), error, trace)
    except SystemExit:
        raise
    except BaseException as second:
        second.__traceback__ = second.__traceback__.tb_next
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(second), second, second.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)


# ---------------------------------------------------------------------------------------------
# A run


def _open_streams():
    """Fresh standard streams. A template's are as good as a clone's: they are pipes wherever it is."""
    sys.stdin = sys.__stdin__ = _stream(0, "<stdin>", "r", "surrogateescape")
    sys.stdout = sys.__stdout__ = _stream(1, "<stdout>", "w", "surrogateescape")
    sys.stderr = sys.__stderr__ = _stream(2, "<stderr>", "w", "backslashreplace")


def _stream(number, name, mode, errors):
    try:
        raw = io.FileIO(number, mode, closefd=False)
    except OSError:
        return None  # closed, as `python3 <&-` has it
    raw.name = name
    if mode == "r":
        text = io.TextIOWrapper(io.BufferedReader(raw), "utf-8", errors)
    else:
        # Every line goes out when it is whole: what is printed before a deadline isn't lost.
        text = io.TextIOWrapper(io.BufferedWriter(raw), "utf-8", errors, "\n", True)
    text.mode = mode
    return text


def _fresh_main(path):
    """An empty `__main__`; `path` is the script's, or none for code that has no file."""
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    if path is None:
        main.__loader__ = importlib.machinery.BuiltinImporter
    else:
        main.__loader__ = importlib.machinery.SourceFileLoader("__main__", path)
        main.__file__ = path
    sys.modules["__main__"] = main
    return main


def _remember_lines(source, file):
    """Lets tracebacks show the lines of a script where no file of that name can be read."""

    def text():
        try:
            encoding = tokenize.detect_encoding(io.BytesIO(source).readline)[0]
            return io.StringIO(source.decode(encoding), None).read()
        except (LookupError, SyntaxError, UnicodeError):
            return None  # the compiler has said so already

    # An entry of one is read when somebody asks for a line.
    linecache.cache[file] = (text,)


def _body(source, file, path):
    """Compiles and runs a program. Its frame is the one that tracebacks start after."""
    main = _fresh_main(path)
    code = compile(source, file, "exec", dont_inherit=True)
    if path is None:
        linecache._register_code(code, source.decode("utf-8", "replace"), file)
    exec(code, main.__dict__)


def _execute(source, file, path):
    """Runs the program, reports how it failed, and gives its exit status."""
    try:
        error = _failure(source, file, path)
        if error is None:
            return 0
        # Outside of any handler, so that a hook sees no exception being handled, as in a process.
        _report(error)
        return 130 if isinstance(error, KeyboardInterrupt) else 1  # 128 + SIGINT
    except SystemExit as end:
        return _status(end.code)


def _failure(source, file, path):
    """What nothing in the program caught, but for a wish to exit."""
    try:
        _body(source, file, path)
    except SystemExit:
        raise
    except MemoryError as error:
        _reserve.clear()
        return error
    except BaseException as error:
        return error
    return None


# Given back when a program has used up its memory, so that there is some left to say so with, in bytes.
# Nobody touches it before, so no clone has it in memory.
_reserve = bytearray(2 << 20)


def _status(code):
    """The exit status that `sys.exit(code)` asks for, as the system keeps it: eight bits."""
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF if -(1 << 63) <= code < 1 << 63 else 0xFF
    try:
        if (out := getattr(sys, "stderr", None)) is not None:
            print(code, file=out)
        else:
            os.write(2, f"{code}\n".encode("utf-8", "backslashreplace"))  # the program gave up the stream alone
    except Exception:
        pass  # the interpreter says nothing either: there is nowhere left to say it
    return 1


def _flush():
    """Flushes the standard streams; false if standard output couldn't take what it was given."""
    sound = True
    out, err = getattr(sys, "stdout", None), getattr(sys, "stderr", None)
    try:
        if out is not None and not getattr(out, "closed", False):
            out.flush()
    except BaseException as error:
        sound = False
        what = ("Exception ignored while flushing sys.stdout", None)
        error.__traceback__ = None
        sys.unraisablehook(_Unraisable((type(error), error, None, *what)))
        # What it couldn't take is lost once, not with every try.
        sys.stdout = None
        if getattr(sys, "__stdout__", None) is out:
            sys.__stdout__ = None
    try:
        if err is not None and not getattr(err, "closed", False):
            err.flush()
    except BaseException:
        sound = False
    return sound


def _unraisable_type():
    """The type that `sys.unraisablehook` takes, which has no name: one is provoked and looked at."""

    class Provocation:
        def __del__(self):
            raise ValueError

    caught = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda seen: caught.append(type(seen))
    Provocation()
    sys.unraisablehook = hook
    return caught[0]


def _clear(module):
    """Empties a module as the interpreter does when it ends: private names first."""
    names = vars(module)
    for name in [name for name in names if name[:1] == "_" and name[1:2] != "_"]:
        names[name] = None
    for name in [name for name in names if name != "__builtins__"]:
        names[name] = None


def _is_new(name):
    """Whether a module was imported by the program. Those of the template came first."""
    return name not in _loaded


def _is_the_programs(name):
    """Whether a module is one of the program's own files."""
    file = getattr(sys.modules[name], "__file__", None)
    return name == "__main__" or bool(file and not file.startswith(_library))


def _collect():
    # A full collection takes 0.1 ms even of nothing. A program that none has interrupted has all that
    # it made in the first generation.
    short = gc.get_count()[1:] == (0, 0) and gc.get_stats()[2]["collections"] == _full_collections[0]
    gc.collect(0 if short else 2)


def _let_go():
    """Ends the lives of what the program made: first as garbage, with its modules' names still there."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
    for name in ("stdin", "stdout", "stderr"):
        # Whatever the program has put there, or taken away.
        own = getattr(sys, f"__{name}__", None)
        if getattr(sys, name, ...) is not own:
            setattr(sys, name, own)
    new = list(itertools.takewhile(_is_new, reversed(sys.modules)))
    names = ["__main__", *filter(_is_the_programs, new)]
    held = [weakref.ref(sys.modules.pop(name)) for name in names]
    _collect()
    for reference in held:
        if (module := reference()) is not None:
            _clear(module)
            del module
            gc.collect()
    # What something of the library still holds isn't closed, but written.
    for thing in gc.get_objects():
        if type(thing) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom) and not thing.closed:
            if thing not in (sys.stdin, sys.stdout, sys.stderr):
                try:
                    thing.flush()
                except Exception:
                    pass  # there is nobody to tell, as when a process ends


def _end(status):
    """What ends a process: `atexit`, the ends of the program's own objects, what is still unwritten."""
    atexit._run_exitfuncs()
    return _finish(status)


def _finish(status):
    """The same without `atexit`, which can be run once."""
    sound = _flush()
    short_of_memory = isinstance(getattr(sys, "last_exc", None), MemoryError)
    _let_go()
    if short_of_memory:
        sys.last_exc = MemoryError()  # for the worker, which says so
    return status if _flush() and sound else 120


def _place(name):
    """Where a program lies: what `__file__` and tracebacks say, and what `sys.path[0]` is."""
    if name == "-c":
        return "<string>", None, ""
    if name == "-":
        return "<stdin>", None, ""
    path = name if name.startswith("/") else os.path.join(os.getcwd(), name)
    return path, path, os.path.dirname(os.path.realpath(path))


# Without these Matplotlib looks for a screen, and says that it has no folder of its own.
_MATPLOTLIB = {"MPLBACKEND": "agg", "MPLCONFIGDIR": f"{_TEMPORARY}/.matplotlib"}

# What every program has of us. A template has it already, so that no clone has to write it down.
_USUAL = {
    "HOME": "/home/user",
    "LANG": "C.UTF-8",
    "LOGNAME": "user",
    "PYTHONDONTWRITEBYTECODE": "1",
    "USER": "user",
}


def _replace_environment(environ):
    """Gives a clone another environment than that of its template, which is the usual one."""
    now, wanted = os.environ, {**_MATPLOTLIB, **environ}
    # Only what differs: the system's own table is written with each.
    for name in [name for name in now if name not in wanted]:
        del now[name]
    for name, value in wanted.items():
        if now.get(name) != value:
            now[name] = value


def _begin(argv, seed, environ, folder):
    """What a new process starts with."""
    _reseed(seed)
    _note_the_process()
    if environ is not None and environ != _USUAL:
        _replace_environment(environ)
    if os.getcwd() != folder:
        try:
            os.chdir(folder)
        except OSError:
            pass  # it has no such folder, and the program may need none
    # Of programs alone: what libraries of the template have made of it stays in C, and quick.
    functools._lru_cache_wrapper = _lru_cache_wrapper
    sys.argv = list(argv)
    sys.orig_argv = [sys.executable, *argv]


def _cofferdam_run(source, name, argv, seed, environ=None, folder=_WORKSPACE):
    """Runs a program as `python3` would, and gives its exit status.

    `source` is its text as bytes. `name` is `-c`, `-` (it came on standard input) or the script's path,
    absolute or in `folder`. `argv` is the whole of `sys.argv`. `seed` is 32 random bytes, other ones
    for each run. `environ` replaces the environment that the template was made in; none leaves it.
    """
    template_main = sys.modules["__main__"]
    _begin(argv, seed, environ, folder)
    file, path, first = _place(name)
    sys.path.insert(0, first)
    if path is not None:
        _remember_lines(source, file)
    status = _end(_execute(source, file, path))
    sys.modules["__main__"] = template_main
    return status


# ---------------------------------------------------------------------------------------------
# The template

# Run once before the snapshot, so that no clone pays for what is done at first use.
_WARM = b"""
import sys
def f(): return 1/0
try: f()
except Exception as e:
    import traceback
    traceback.format_exc()
print(f"{1.5:.2f}", [1], {"a": {2}}, "\\u00e9", file=sys.stderr)
class C: pass
raise C("no")
"""


# What modules do at first use, by the module that must have been loaded. None of it may draw from a
# generator that can't be seeded again (SQLite's own), or leave anything behind.
_WARM_WITH = {
    "asyncio": """
import asyncio
async def f():
    await asyncio.sleep(0)
    async with asyncio.timeout(1): await asyncio.sleep(0.0001)
loop = asyncio.new_event_loop()
# With a name, or a program's own first task would be called Task-2.
loop.run_until_complete(loop.create_task(f(), name="warm"))
loop.close()
""",
    "json": "import json; json.loads(json.dumps({'a': [1, 2.5, None, 'x']}, indent=1))",
    "_strptime": "from datetime import datetime; datetime.strptime('2026-01-02', '%Y-%m-%d')",
    "tzdata": "from zoneinfo import ZoneInfo; ZoneInfo('Europe/Berlin')",
    "numpy": """
import numpy as np
a = np.eye(3) * 2
repr(np.linalg.solve(a, np.ones(3)) @ a), str(a), np.linalg.svd(a), np.linalg.eigvalsh(a), np.linalg.inv(a)
np.fft.rfft(np.ones(8)), np.arange(5).mean(), np.sort(np.arange(3))
""",
    "pandas": """
import io
import pandas as pd
d = pd.DataFrame({"a": [1, 2, 3], "b": list("xyx"), "c": [.5, None, 1.5]})
d.a.sum(), d.groupby("b").a.agg(["sum", "mean"]), d.merge(d, on="b"), d.sort_values("a"), d.describe()
str(d), repr(d.a), d.to_string(), d.to_json(), d.pivot_table(index="b", values="a"), d.b.value_counts()
pd.read_csv(io.StringIO(d.to_csv(index=False))).dropna().fillna(0)
s = pd.Series(range(3), pd.date_range("2026-01-01", periods=3))
s.resample("MS").sum(), str(s), pd.to_datetime(["2026-01-02"])
d[d.a > 1].loc[:, ["a"]].iloc[0], d.b.str.upper(), d.apply(lambda r: r.a, axis=1)
pd.concat([d, d])
""",
    "matplotlib.pyplot": """
import io
import matplotlib.pyplot as plt
f, x = plt.subplots()
x.plot([1, 2], label="a"); x.set_title("Title $x^2$"); x.legend(); x.bar([1], [2]); x.set_xlabel("x 0123456789.-")
f.tight_layout(); f.savefig(io.BytesIO(), format="png"); plt.close("all")
# A font has its file open, which no clone has; several caches have fonts.
import gc
for thing in gc.get_objects():
    if type(thing).__name__ == "_lru_cache_wrapper" and str(thing.__module__).startswith("matplotlib."):
        thing.cache_clear()
del f, x, thing
""",
}


def _warm_modules():
    """Uses what was loaded once; gives what failed."""
    failed = []
    for name, code in _WARM_WITH.items():
        if name in sys.modules:
            try:
                exec(compile(code, "<warm>", "exec"), {"__name__": "<warm>"})
            except Exception as error:
                failed.append((name, f"its first use failed: {type(error).__name__}: {error}"))
    return failed


# How often: the interpreter rewrites code that ran a few times into quicker code, which would otherwise
# happen in every clone, on pages of its own.
_WARM_ROUNDS = 24


def _warm_up():
    """Goes through a whole run with a small program, and forgets it."""
    streams = [(name, getattr(sys, name)) for name in ("stdin", "stdout", "stderr")]
    streams += [(f"__{name}__", getattr(sys, f"__{name}__")) for name, _ in streams]
    main, path, argv = sys.modules["__main__"], list(sys.path), sys.argv
    for number in range(_WARM_ROUNDS):
        _begin(["-c"], bytes(32), dict(os.environ), _WORKSPACE)
        _open_streams()
        out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", line_buffering=True) for _ in "oe")
        sys.stdout = sys.__stdout__ = out
        sys.stderr = sys.__stderr__ = err
        file, place, first = _place(("-c", "/workspace/warm.py")[number % 2])
        sys.path.insert(0, first)
        if place is not None:
            _remember_lines(_WARM, file)
        for source in (b"print(1)\n", _WARM):
            _finish(_execute(source, file, place))
    for name, stream in streams:
        setattr(sys, name, stream)
    sys.modules["__main__"], sys.path[:], sys.argv = main, path, argv
    linecache.clearcache()


def _cofferdam_module(name, source):
    """Puts a module of ours in place of one that this build lacks."""
    spec = importlib.machinery.ModuleSpec(name, None, origin="cofferdam")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    exec(compile(source, _own_file, "exec"), vars(module))


def _cofferdam_prepare(preload):
    """The last step before the snapshot: imports `preload`, and uses once what is loaded.

    Gives a list of `(module, reason)` of what failed. What is alive afterwards is never looked at by a
    clone's garbage collection, so its pages stay shared between clones.
    """
    failed = []
    for name, value in _MATPLOTLIB.items():
        os.environ.setdefault(name, value)
    for name in preload:
        try:
            importlib.import_module(name)
        except BaseException as error:
            failed.append((name, f"{type(error).__name__}: {error}"))
    failed += _warm_modules()
    _generators[:] = _find_generators()
    _loaded.update(sys.modules)
    _warm_up()
    for folder in [at for at in sys.path_importer_cache if not at.startswith(_library)]:
        del sys.path_importer_cache[folder]
    os.environ.clear()
    os.environ.update(_MATPLOTLIB | _USUAL)
    _forget_the_template()
    _open_streams()
    _settle()
    return failed + [("template", f"it holds an open file: {file.name}") for file in _open_files()]


def _open_files():
    """What is open beside the standard streams: a clone has the object, and nothing under its number."""
    gc.unfreeze()
    files = [thing for thing in gc.get_objects() if type(thing) is io.FileIO and not thing.closed]
    gc.freeze()
    return [file for file in files if file.fileno() > 2]


def _settle():
    """Sees that no clone's collection looks at what there is now: it would write to all of it."""
    gc.collect()
    gc.freeze()
    _full_collections[0] = gc.get_stats()[2]["collections"]


# What `_cofferdam_mortal` gave last, and what it has still to look at.
_given, _unseen = [], []

# What comes and goes with a call, or has to notice that nobody has it any more.
_PASSING = (
    types.AsyncGeneratorType,
    types.CoroutineType,
    types.FrameType,
    types.GeneratorType,
    types.TracebackType,
    io.IOBase.__base__,
)


def _parts(things):
    """What objects consist of, as far as collecting garbage doesn't know better."""
    parts = gc.get_referents(*things)
    for thing in things:
        if type(thing) is dict:
            parts += thing  # a dictionary of names tells its values alone
        elif type(thing) is types.CodeType:
            parts += (thing.co_consts, thing.co_names, thing.co_filename, thing.co_name, thing.co_qualname)
            parts += (thing.co_linetable, thing.co_exceptiontable)
    return parts


def _cofferdam_mortal(most=4096):
    """Prints where some of the template's objects lie that can still be freed, and how many; none at last.

    Each takes two numbers at that place: its own address, and that of its type. Whoever reads them makes the
    objects immortal, and asks again. A clone then uses what its template made without writing to it: counting
    references would copy every page that something used lies on.
    """
    import array

    if not all(map(sys._is_immortal, _given)):
        raise RuntimeError("what was given isn't immortal")
    if _given:
        _unseen.extend(part for part in _parts(_given) if not sys._is_immortal(part))
    else:
        gc.unfreeze()
        _unseen[:] = gc.get_objects()
        gc.freeze()
    _given.clear()
    while _unseen and len(_given) < most:
        thing = _unseen.pop()
        own = thing is _given or thing is _unseen or issubclass(type(thing), _PASSING)
        if not own and not sys._is_immortal(thing):
            _given.append(thing)
    global _addresses
    _addresses = array.array("I", [address for thing in _given for address in (id(thing), id(type(thing)))])
    print(_addresses.buffer_info()[0], len(_given))


# Objects that nobody uses (`_cofferdam_hold`).
_held = []


def _cofferdam_hold():
    """Takes what types keep of freed objects, which lie wherever they once came to lie.

    A clone would make its own out of them, and write to a page for each.
    """
    for number in range(128):
        floating, whole = number + 0.5, number + (1 << 29)
        _held.extend(tuple(range(length)) for length in range(1, 21))
        _held.extend(([], [number], {}, {number: number}, floating, whole, slice(whole), range(whole)))
        _held.extend((iter([]), iter(()), "".join, _held.append, _stream.__call__, memoryview(b""), {number}))
    _settle()


# What of the standard library's top level can be imported only in part or not at all is in
# `_MODULE_NEEDS`; the rest of what is listed here is known to import (docs/python-modules.md).
def _cofferdam_importable():
    """The names of all top-level modules that a program can import here."""
    import pkgutil

    names = set(sys.builtin_module_names) | {module.name for module in pkgutil.iter_modules()}
    names |= {name for name in sys.stdlib_module_names if importlib.util.find_spec(name)}
    return sorted(names - set(_MODULE_NEEDS))


_own_file = _cofferdam_run.__code__.co_filename
_own_files = {_own_file}  # and what comes after this text
_body_code = _body.__code__
# Where the library lies, and packages that were added to the template: "/usr/local/lib/".
_library = os.path.dirname(next(at for at in sys.path if at.endswith(".zip"))) + "/"
_lru_cache_in_python = _functools_in_python()._lru_cache_wrapper
_loaded = set()
_full_collections = [0]
_Unraisable = _unraisable_type()

_install_event_loop()
_install_words()
# A progress bar's watcher is a thread, which it does without after saying so to everybody.
warnings.filterwarnings("ignore", message="tqdm:disabling monitor support")
_plain_connection, _plain_connect = sqlite3.Connection, sqlite3.connect
_install_random()
if not hasattr(hashlib, "pbkdf2_hmac"):
    hashlib.pbkdf2_hmac = _pbkdf2_hmac
traceback.walk_stack = _walk_stack
_inspect_outer_frames, inspect.getouterframes = inspect.getouterframes, _outer_frames
traceback.TracebackException = _TracebackWords
# The interpreter is started without `site`, which gives a script these.
builtins.quit = _sitebuiltins.Quitter("quit", "Ctrl-D (i.e. EOF)")
builtins.exit = _sitebuiltins.Quitter("exit", "Ctrl-D (i.e. EOF)")
