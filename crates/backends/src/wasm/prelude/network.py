"""Sockets of a program that has none: part of the prelude, and in its namespace.

A connection is asked of the host and leads to the sandbox's way out, which judges it by its name as any other;
`worker/network.rs` is the other end, and has the frames. Nothing is asked before something is sent or read, so
that a program can still say that it wants TLS, which is spoken outside (`ssl.py`). A name's address is one of
ours: a connection to it is one to the name.
"""

import contextlib
import errno
import itertools
import select
import selectors
import socket
import weakref

import _host
import _socket

# Errors as the host numbers them, by name: Linux's numbers are not this system's.
_ERRORS = {
    9: "EBADF", 22: "EINVAL", 24: "EMFILE", 32: "EPIPE", 104: "ECONNRESET", 111: "ECONNREFUSED",
}  # fmt: skip
# How a socket says that it has nothing yet.
_NOTHING_YET = "Resource temporarily unavailable"
# What is asked of the host: the first byte of a frame.
_CONNECT, _SEND, _RECEIVE, _SHUT, _CLOSE, _READABLE = (bytes([number]) for number in range(1, 7))
_FOR_EVER = -1


def _number(number):
    return number.to_bytes(4, "little", signed=number < 0)


def _ask(*frame):
    """What the host answers; none if the time is over."""
    try:
        answer = _host.call(b"".join(frame))
    except OSError:
        raise _refused("network", _LOOPBACK) from None
    if answer[0] == 0:
        return answer[1:]
    if answer[0] == 2:
        return None
    name = _ERRORS.get(int.from_bytes(answer[1:5], "little"), "EIO")
    raise OSError(getattr(errno, name), answer[5:].decode())


def _milliseconds(timeout):
    return _FOR_EVER if timeout is None else max(0, min(int(timeout * 1000 + 0.999), 0x7FFFFFFF))


# ---------------------------------------------------------------------------------------------
# Names

# Names and their addresses: 198.18.0.0/15, which RFC 2544 keeps for benchmarks of networks, and no network has.
_address_of, _name_of = {}, {}
_FIRST_ADDRESS = 198 << 24 | 18 << 16
_MOST_NAMES = 1 << 16
_SERVICES = {"http": 80, "https": 443, "ssh": 22, "domain": 53, "smtp": 25, "postgresql": 5432, "redis": 6379}
_AS_IPV6 = "::ffff:"


def _is_address(text):
    for family in (socket.AF_INET, socket.AF_INET6):
        try:
            socket.inet_pton(family, text.partition("%")[0])
            return family
        except OSError:
            pass
    return None


def _look_up(name):
    """An address that stands for a name. What the name is, is judged when something is sent there."""
    if name not in _address_of:
        if len(_address_of) >= _MOST_NAMES:
            raise socket.gaierror(socket.EAI_MEMORY, "Memory allocation failure: too many names")
        number = _FIRST_ADDRESS + 1 + len(_address_of)
        address = ".".join(str(number >> shift & 0xFF) for shift in (24, 16, 8, 0))
        _address_of[name], _name_of[address] = address, name
    return _address_of[name]


def _host_text(host):
    """A host as text, as the system's own functions read it."""
    if isinstance(host, (bytes, bytearray)):
        host = bytes(host).decode("latin-1")
    if not isinstance(host, str):
        raise TypeError("getaddrinfo() argument 1 must be string or None")
    if "\0" in host:
        raise ValueError("embedded null character")
    return host if _is_address(host) else host.encode("idna").decode("ascii")


def _port_number(port):
    if port is None:
        return 0
    if isinstance(port, (bytes, bytearray)):
        port = bytes(port).decode("latin-1")
    if isinstance(port, str):
        if port.isdecimal():
            port = int(port)
        elif port in _SERVICES:
            return _SERVICES[port]
        else:
            raise socket.gaierror(socket.EAI_SERVICE, "Servname not supported for ai_socktype")
    if not 0 <= port <= 0xFFFF:
        raise OverflowError("getsockaddrarg: port must be 0-65535.")
    return port


def _getaddrinfo(host, port, family=0, type=0, proto=0, flags=0):
    number = _port_number(port)
    text = "127.0.0.1" if host is None or host in ("", b"") else _host_text(host)
    is_ipv6 = _is_address(text) == socket.AF_INET6
    if not _is_address(text):
        if flags & getattr(socket, "AI_NUMERICHOST", 4):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        text = _look_up(text)
    if is_ipv6 and family == socket.AF_INET:
        raise socket.gaierror(getattr(socket, "EAI_ADDRFAMILY", -9), "Address family for hostname not supported")
    if family == socket.AF_INET6 and not is_ipv6:
        text, is_ipv6 = _AS_IPV6 + text, True
    place = (text, number, 0, 0) if is_ipv6 else (text, number)
    family = socket.AF_INET6 if is_ipv6 else socket.AF_INET
    kinds = [(socket.SOCK_STREAM, 6), (socket.SOCK_DGRAM, 17)]
    return [
        (socket.AddressFamily(family), socket.SocketKind(kind), its, "", place)
        for kind, its in kinds
        if type in (0, kind) and proto in (0, its)
    ]


def _gethostbyname(name):
    return _getaddrinfo(name, 0, socket.AF_INET)[0][4][0]


def _gethostbyname_ex(name):
    return name, [], [_gethostbyname(name)]


def _gethostbyaddr(address):
    if name := _name_of.get(_host_text(address)):
        return name, [], [address]
    raise socket.herror(1, "Unknown host")


def _getnameinfo(address, flags):
    return _name_of.get(address[0], address[0]), str(address[1])


# ---------------------------------------------------------------------------------------------
# Sockets

# Sockets by the numbers that they give as descriptors, which are nobody else's.
_sockets = weakref.WeakValueDictionary()
_numbers = itertools.count(1 << 20)


class _Line:
    """A connection as it is or will be: where it leads, and its number at the host once there is one."""

    def __init__(self):
        self.to = None
        self.tls = None  # the server's name, where TLS is to be spoken
        self.handle = None
        self.held = b""  # what was looked at and not taken

    def connect(self):
        """Has the host make the connection, if it hasn't yet."""
        if self.to is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        if self.handle is None:
            host, port = self.to
            name = b"" if self.tls is None else self.tls.encode("utf-8", "surrogatepass")
            host = host.encode("utf-8", "surrogatepass")
            has_tls = bytes([self.tls is not None])
            self.handle = _ask(_CONNECT, port.to_bytes(2, "little"), has_tls, _number(len(host)), host, name)

    def ask(self, what, *rest):
        """Asks for something of this connection, which is made first."""
        self.connect()
        return _ask(what, self.handle, *rest)

    def take_what_is_there(self):
        """Keeps what was said before the other end closed; says whether there is something."""
        with contextlib.suppress(OSError):
            self.held += _ask(_RECEIVE, self.handle, _number(1 << 16), _number(0)) or b""
        return bool(self.held)

    def close(self):
        if self.to is not None and self.handle is None:
            # Who only wanted to know whether somebody is there has asked that, too.
            with contextlib.suppress(OSError):
                self.connect()
        handle, self.handle, self.to = self.handle, None, None
        if handle is not None:
            _ask(_CLOSE, handle)


_SystemSocket = socket.socket


class _CofferdamSocket(_SystemSocket):
    """A stream socket whose connection the host makes. It can't listen, and sends no datagrams."""

    def __init__(self, family=-1, type=-1, proto=-1, fileno=None):
        if fileno is not None:
            raise _refused("sockets that were made elsewhere")
        self._io_refs, self._closed = 0, False
        self._family = socket.AF_INET if family == -1 else family
        self._type = socket.SOCK_STREAM if type == -1 else type
        self._protocol = 0 if proto == -1 else proto
        if self._family not in (socket.AF_INET, socket.AF_INET6):
            raise _refused("sockets but those of the Internet")
        self._timeout = socket.getdefaulttimeout()
        self._options, self._line, self._number = {}, _Line(), next(_numbers)
        _sockets[self._number] = self

    @property
    def family(self):
        return socket.AddressFamily(self._family)

    @property
    def type(self):
        return socket.SocketKind(self._type)

    @property
    def proto(self):
        return self._protocol

    @property
    def timeout(self):
        return self._timeout

    def __repr__(self):
        closed = " [closed]" if self._closed else ""
        return f"<socket.socket{closed} fd={self.fileno()}, family={self._family}, type={self._type}>"

    def __del__(self):
        try:
            self._line.close()
        except Exception:
            pass  # the interpreter ends, or it was never made whole

    def fileno(self):
        return -1 if self._closed else self._number

    def _live(self):
        if self._closed and self._io_refs <= 0:
            raise OSError(errno.EBADF, "Bad file descriptor")
        if self._type != socket.SOCK_STREAM:
            raise _refused("way out for datagrams", "names are looked up without them")
        return self._line

    # What a client does.

    def connect(self, address):
        line = self._live()
        if line.to is not None:
            raise OSError(errno.EISCONN, "Transport endpoint is already connected")
        info = _getaddrinfo(address[0], address[1], self._family if self._family == socket.AF_INET else 0)
        host, port = info[0][4][:2]
        host = host.removeprefix(_AS_IPV6) if host.removeprefix(_AS_IPV6) in _name_of else host
        line.to = (_name_of.get(host, host), port)
        self._peer = info[0][4]

    def connect_ex(self, address):
        try:
            self.connect(address)
        except OSError as error:
            return error.errno or errno.EINVAL
        return 0

    def send(self, data, flags=0):
        data, line = bytes(data), self._live()
        try:
            sent = line.ask(_SEND, _number(_milliseconds(self._timeout)), data)
        except (BrokenPipeError, ConnectionResetError):
            # Whoever was refused amid a long body would otherwise never read why.
            if not line.take_what_is_there():
                raise
            return len(data)
        if sent is None:
            raise self._late()
        return int.from_bytes(sent, "little")

    def sendall(self, data, flags=0):
        data = bytes(data)
        if self.send(data, flags) < len(data):
            raise self._late()

    def sendmsg(self, buffers, ancdata=(), flags=0, address=None):
        return self.send(b"".join(map(bytes, buffers)), flags)

    def sendto(self, data, *to):
        return self.send(data)

    def recv(self, most, flags=0):
        line = self._live()
        if not line.held:
            data = line.ask(_RECEIVE, _number(max(0, most)), _number(_milliseconds(self._timeout)))
            if data is None:
                raise self._late()
            line.held = data
        data = line.held[:most]
        if not flags & socket.MSG_PEEK:
            line.held = line.held[most:]
        return data

    def _late(self):
        return TimeoutError("timed out") if self._timeout else BlockingIOError(errno.EAGAIN, _NOTHING_YET)

    def recv_into(self, buffer, nbytes=0, flags=0):
        view = memoryview(buffer).cast("B")
        data = self.recv(nbytes or len(view), flags)
        view[: len(data)] = data
        return len(data)

    def recvfrom(self, most, flags=0):
        return self.recv(most, flags), None

    def recvfrom_into(self, buffer, nbytes=0, flags=0):
        return self.recv_into(buffer, nbytes, flags), None

    def shutdown(self, how):
        if how != socket.SHUT_RD:
            self._live().ask(_SHUT)

    def _real_close(self):
        self._line.close()

    def detach(self):
        """Lets go of the connection, which nobody can take by its number alone."""
        number, self._closed = self.fileno(), True
        self._line = _Line()
        return number

    # What is asked of a socket.

    def settimeout(self, timeout):
        if timeout is not None and timeout < 0:
            raise ValueError("Timeout value out of range")
        self._timeout = timeout

    def gettimeout(self):
        return self._timeout

    def setblocking(self, flag):
        self._timeout = None if flag else 0.0

    def getblocking(self):
        return self._timeout != 0.0

    def setsockopt(self, level, option, value, *length):
        self._options[level, option] = value

    def getsockopt(self, level, option, length=0):
        if (level, option) == (socket.SOL_SOCKET, getattr(socket, "SO_TYPE", None)):
            return self._type
        return self._options.get((level, option), 0)

    def getpeername(self):
        if self._live().to is None:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        return self._peer

    def getsockname(self):
        return ("0.0.0.0", 0) if self._family == socket.AF_INET else ("::", 0, 0, 0)

    # What a server does, and what goes to others.

    def bind(self, address):
        if address[1] != 0:
            raise _refused("loopback to serve on", _LOOPBACK)

    def listen(self, backlog=0):
        raise _refused("loopback to serve on", _LOOPBACK)

    accept = listen

    def dup(self):
        raise _refused("second numbers for a socket")


def _system_lacks(what):
    def lacking(*args, **kwargs):
        raise _refused(what, _LOOPBACK)

    return lacking


def _ours(thing):
    """The socket of ours that a thing or a number stands for, if it is one."""
    if isinstance(thing, int):
        return _sockets.get(thing)
    if isinstance(thing, _CofferdamSocket):
        return thing
    number = thing.fileno() if hasattr(thing, "fileno") else None
    return _sockets.get(number) if isinstance(number, int) else None


def _which_are_readable(sockets, timeout):
    """Those of these sockets that have something to read; all others wait."""
    ready = [socket for socket in sockets if socket._line.held]
    if ready or not sockets:
        return ready
    for socket in sockets:
        socket._line.connect()
    handles = [socket._line.handle for socket in sockets]
    answer = _ask(_READABLE, _number(_milliseconds(timeout)), *handles)
    told = {answer[at : at + 4] for at in range(0, len(answer), 4)}
    return [socket for socket in sockets if socket._line.handle in told]


_system_select, _system_poll = select.select, getattr(select, "poll", None)


def _select(readers, writers, others, timeout=None):
    """`select.select`, which knows sockets that are ours; those can always be written to."""
    readers, writers = list(readers), list(writers)
    if not any(map(_ours, readers + writers)):
        return _system_select(readers, writers, others, timeout)
    ours = [thing for thing in readers if _ours(thing)]
    writable = [thing for thing in writers if _ours(thing)]
    ready = _which_are_readable([_ours(thing) for thing in ours], 0 if writable else timeout)
    return [thing for thing in ours if _ours(thing) in ready], writable, []


class _Poll:
    """`select.poll`, which knows sockets that are ours."""

    def __init__(self):
        self._system, self._events = _system_poll and _system_poll(), {}

    def register(self, thing, events=0x1 | 0x2 | 0x4):
        if _ours(thing):
            self._events[thing if isinstance(thing, int) else thing.fileno()] = events
        elif self._system is None:
            raise _refused("files to poll")
        else:
            self._system.register(thing, events)

    modify = register

    def unregister(self, thing):
        if _ours(thing):
            del self._events[thing if isinstance(thing, int) else thing.fileno()]
        elif self._system is not None:
            self._system.unregister(thing)

    def poll(self, timeout=None):
        if not self._events:
            return self._system.poll(timeout) if self._system else []
        into, out = getattr(select, "POLLIN", 1), getattr(select, "POLLOUT", 2)
        live = {number: _sockets[number] for number in self._events if number in _sockets}
        found = dict.fromkeys((number for number in live if self._events[number] & out), out)
        waits = 0 if found or timeout is None and not live else timeout
        seconds = None if waits is None or waits < 0 else waits / 1000
        asked = [socket for number, socket in live.items() if self._events[number] & into]
        for socket in _which_are_readable(asked, seconds):
            found[socket._number] = found.get(socket._number, 0) | into
        return list(found.items())


def _install_network():
    """Makes the names of `socket` and `select` give ours."""
    _CofferdamSocket.__name__ = _CofferdamSocket.__qualname__ = "socket"
    _CofferdamSocket.__module__ = "socket"
    socket.socket = socket.SocketType = _CofferdamSocket
    names = {
        "getaddrinfo": _getaddrinfo,
        "gethostbyname": _gethostbyname,
        "gethostbyname_ex": _gethostbyname_ex,
        "gethostbyaddr": _gethostbyaddr,
        "getnameinfo": _getnameinfo,
    }
    for name, function in names.items():
        function.__name__ = function.__qualname__ = name
        setattr(_socket, name, function)
        setattr(socket, name, function)
    for name in ("socketpair", "fromfd", "create_server"):
        setattr(socket, name, _system_lacks("loopback"))
    select.select = _select
    select.poll = _Poll
    selectors.SelectSelector._select = staticmethod(_select)
    selectors.PollSelector._selector_cls = _Poll


_install_network()
_own_files.add(_install_network.__code__.co_filename)
