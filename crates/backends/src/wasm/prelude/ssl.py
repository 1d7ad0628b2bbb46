"""TLS that is spoken outside: what stands for the standard library's `ssl` in the Wasm backend.

This build of Python has no OpenSSL, and a program here has no socket of its own. One that wants TLS says so of a
connection before anything was sent over it; the sandbox's way out then speaks TLS with the server, always checks
its certificate against what the operator trusts, and always under the name that was dialled. So nothing that a
program sets here makes that weaker, and what it reads of a certificate is its name alone.
"""

import base64
import calendar
import collections
import enum
import errno
import os
import socket
import time

_OUTSIDE = "TLS is spoken outside of this sandbox, by its way out"


class TLSVersion(enum.IntEnum):
    MINIMUM_SUPPORTED = -2
    SSLv3 = 768
    TLSv1 = 769
    TLSv1_1 = 770
    TLSv1_2 = 771
    TLSv1_3 = 772
    MAXIMUM_SUPPORTED = -1


class VerifyMode(enum.IntEnum):
    CERT_NONE = 0
    CERT_OPTIONAL = 1
    CERT_REQUIRED = 2


class _SSLMethod(enum.IntEnum):
    PROTOCOL_TLS = PROTOCOL_SSLv23 = 2
    PROTOCOL_TLSv1 = 3
    PROTOCOL_TLSv1_1 = 4
    PROTOCOL_TLSv1_2 = 5
    PROTOCOL_TLS_CLIENT = 16
    PROTOCOL_TLS_SERVER = 17


class VerifyFlags(enum.IntFlag):
    VERIFY_DEFAULT = 0
    VERIFY_CRL_CHECK_LEAF = 4
    VERIFY_CRL_CHECK_CHAIN = 12
    VERIFY_X509_STRICT = 32
    VERIFY_ALLOW_PROXY_CERTS = 64
    VERIFY_X509_TRUSTED_FIRST = 32768
    VERIFY_X509_PARTIAL_CHAIN = 524288


class Options(enum.IntFlag):
    OP_ENABLE_MIDDLEBOX_COMPAT = 1 << 20
    OP_IGNORE_UNEXPECTED_EOF = 1 << 7
    OP_LEGACY_SERVER_CONNECT = 1 << 2
    OP_NO_COMPRESSION = 1 << 17
    OP_NO_RENEGOTIATION = 1 << 30
    OP_NO_TICKET = 1 << 14
    OP_NO_SSLv2 = 0
    OP_NO_SSLv3 = 1 << 25
    OP_NO_TLSv1 = 1 << 26
    OP_NO_TLSv1_1 = 1 << 28
    OP_NO_TLSv1_2 = 1 << 27
    OP_NO_TLSv1_3 = 1 << 29
    OP_CIPHER_SERVER_PREFERENCE = 1 << 22
    OP_SINGLE_DH_USE = 0
    OP_SINGLE_ECDH_USE = 0
    OP_ALL = 1 << 31


for _kind in (VerifyMode, _SSLMethod, VerifyFlags, Options):
    globals().update(_kind.__members__)

_ASN1Object = collections.namedtuple("_ASN1Object", "nid shortname longname oid")


class Purpose(enum.Enum):
    SERVER_AUTH = _ASN1Object(129, "serverAuth", "TLS Web Server Authentication", "1.3.6.1.5.5.7.3.1")
    CLIENT_AUTH = _ASN1Object(130, "clientAuth", "TLS Web Client Authentication", "1.3.6.1.5.5.7.3.2")


# Libraries ask for a version that they know, and look at nothing else of it.
OPENSSL_VERSION_INFO = (3, 0, 0, 0, 0)
OPENSSL_VERSION_NUMBER = 0x30000000
OPENSSL_VERSION = f"OpenSSL 3.0.0 (none: {_OUTSIDE})"
HAS_SNI = HAS_TLSv1_2 = HAS_TLSv1_3 = HAS_NEVER_CHECK_COMMON_NAME = True
HAS_ALPN = HAS_NPN = HAS_SSLv2 = HAS_SSLv3 = HAS_TLSv1 = HAS_TLSv1_1 = HAS_ECDH = HAS_PSK = HAS_PHA = False
CHANNEL_BINDING_TYPES = []
PEM_HEADER, PEM_FOOTER = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


class SSLError(OSError):
    """What goes wrong with TLS."""

    library = reason = None


class SSLZeroReturnError(SSLError):
    """The connection was ended."""


class SSLWantReadError(SSLError):
    """There is nothing to read yet."""


class SSLWantWriteError(SSLError):
    """Nothing can be written yet."""


class SSLSyscallError(SSLError):
    """The system said something else."""


class SSLEOFError(SSLError):
    """The connection ended where it shouldn't."""


class SSLCertVerificationError(SSLError, ValueError):
    """A certificate isn't what it should be."""


CertificateError = SSLCertVerificationError
socket_error = OSError


def _is_address(name):
    try:
        socket.inet_pton(socket.AF_INET6 if ":" in name else socket.AF_INET, name)
    except OSError:
        return False
    return True


def _not_here(what):
    return NotImplementedError(f"{what}: {_OUTSIDE}")


class SSLContext:
    """What a program wants of TLS. It is kept and given back; what is done is said at the top."""

    sslsocket_class = sslobject_class = None

    def __new__(cls, protocol=None, *args, **kwargs):
        return super().__new__(cls)

    def __init__(self, protocol=PROTOCOL_TLS):
        self._protocol = _SSLMethod(protocol)
        is_client = protocol == PROTOCOL_TLS_CLIENT
        self._verify_mode = CERT_REQUIRED if is_client else CERT_NONE
        self._check_hostname = is_client
        self.verify_flags = VERIFY_X509_TRUSTED_FIRST
        self.options = OP_ALL | OP_NO_SSLv3
        self.minimum_version, self.maximum_version = TLSVersion.TLSv1_2, TLSVersion.MAXIMUM_SUPPORTED
        self.hostname_checks_common_name = False
        self.post_handshake_auth = False
        self.keylog_filename = self.sni_callback = None
        self.num_tickets, self.security_level = 2, 2

    @property
    def protocol(self):
        return self._protocol

    @property
    def check_hostname(self):
        return self._check_hostname

    @check_hostname.setter
    def check_hostname(self, value):
        self._check_hostname = bool(value)
        if value and self._verify_mode == CERT_NONE:
            self._verify_mode = CERT_REQUIRED

    @property
    def verify_mode(self):
        return self._verify_mode

    @verify_mode.setter
    def verify_mode(self, value):
        if value == CERT_NONE and self._check_hostname:
            raise ValueError("Cannot set verify_mode to CERT_NONE when check_hostname is enabled.")
        self._verify_mode = VerifyMode(value)

    def wrap_socket(
        self,
        sock,
        server_side=False,
        do_handshake_on_connect=True,
        suppress_ragged_eofs=True,
        server_hostname=None,
        session=None,
    ):
        if server_side:
            raise _not_here("a server's side of TLS")
        if self._check_hostname and not server_hostname:
            raise ValueError("check_hostname requires server_hostname")
        return (self.sslsocket_class or SSLSocket)._around(sock, self, server_hostname)

    def wrap_bio(self, *args, **kwargs):
        raise _not_here("TLS without a socket")

    def load_cert_chain(self, *args, **kwargs):
        raise _not_here("a certificate of the program's own")

    def load_verify_locations(self, cafile=None, capath=None, cadata=None):
        """Takes nothing, and need not be there: whom to trust is the operator's to say (`extra_roots` in `node.toml`)."""
        if cafile is None and capath is None and cadata is None:
            raise TypeError("cafile, capath and cadata cannot be all omitted")

    def _take(self, *args, **kwargs):
        pass

    load_default_certs = set_default_verify_paths = set_ciphers = set_alpn_protocols = _take
    set_npn_protocols = set_servername_callback = set_ecdh_curve = load_dh_params = _take

    def _none(self, *args, **kwargs):
        return []

    get_ciphers = get_ca_certs = _none

    def cert_store_stats(self):
        return {"x509": 0, "crl": 0, "x509_ca": 0}

    def session_stats(self):
        return {}


class SSLSocket(socket.socket):
    """A connection over which TLS is spoken outside."""

    @classmethod
    def _around(cls, sock, context, server_hostname):
        line = sock._line
        if line.handle is not None:
            raise SSLError(errno.EISCONN, f"something was sent before TLS began: {_OUTSIDE}, from the first byte")
        new = cls(sock.family, sock.type, sock.proto)
        new.settimeout(sock.gettimeout())
        new._peer = getattr(sock, "_peer", None)
        if isinstance(server_hostname, (bytes, bytearray)):
            server_hostname = bytes(server_hostname).decode("latin-1")
        new.context, new.server_hostname, new.session, new.session_reused = context, server_hostname, None, False
        new.server_side = False
        new._line = line
        sock.detach()
        if line.to is not None:
            new._begin()
        return new

    def _begin(self):
        if self.server_hostname is None:
            self.server_hostname = self._line.to[0]
        self._line.tls = self.server_hostname

    def connect(self, address):
        super().connect(address)
        self._begin()

    def do_handshake(self, block=False):
        self._live().connect()

    def read(self, length=1024, buffer=None):
        return self.recv(length) if buffer is None else self.recv_into(buffer, length)

    def write(self, data):
        return self.send(data)

    def _late(self):
        return super()._late() if self._timeout else SSLWantReadError(2, "The operation did not complete (read)")

    def unwrap(self):
        raise _not_here("going on without TLS")

    def getpeercert(self, binary_form=False):
        """The name that the server has to prove before a byte goes to it; nothing else of it is here."""
        if binary_form:
            return None
        kind = "IP Address" if _is_address(self.server_hostname) else "DNS"
        return {
            "subject": ((("commonName", self.server_hostname),),),
            "subjectAltName": ((kind, self.server_hostname),),
        }

    def get_channel_binding(self, cb_type="tls-unique"):
        raise ValueError(f"{cb_type} channel binding type not implemented")

    def get_verified_chain(self):
        return []

    get_unverified_chain = get_verified_chain

    def _unknown(self):
        return None

    cipher = compression = selected_alpn_protocol = selected_npn_protocol = shared_ciphers = version = _unknown

    def pending(self):
        return len(self._line.held)


SSLContext.sslsocket_class = SSLSocket


class _Elsewhere:
    def __init__(self, *args, **kwargs):
        raise _not_here("TLS without a socket")


class MemoryBIO(_Elsewhere):
    """There is none."""


class SSLObject(_Elsewhere):
    """There is none."""


class SSLSession(_Elsewhere):
    """There is none."""


def create_default_context(purpose=Purpose.SERVER_AUTH, *, cafile=None, capath=None, cadata=None):
    if purpose == Purpose.CLIENT_AUTH:
        raise _not_here("a server's side of TLS")
    context = SSLContext(PROTOCOL_TLS_CLIENT)
    if cafile or capath or cadata:
        context.load_verify_locations(cafile, capath, cadata)
    return context


def _create_unverified_context(protocol=PROTOCOL_TLS_CLIENT, **kwargs):
    context = SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = CERT_NONE
    return context


_create_default_https_context = create_default_context
_create_stdlib_context = _create_unverified_context

DefaultVerifyPaths = collections.namedtuple(
    "DefaultVerifyPaths", "cafile capath openssl_cafile_env openssl_cafile openssl_capath_env openssl_capath"
)


def get_default_verify_paths():
    return DefaultVerifyPaths(None, None, "SSL_CERT_FILE", "", "SSL_CERT_DIR", "")


def get_server_certificate(addr, *args, **kwargs):
    raise _not_here("a server's certificate")


def get_protocol_name(protocol_code):
    return _SSLMethod(protocol_code).name


def cert_time_to_seconds(cert_time):
    return calendar.timegm(time.strptime(cert_time, "%b %d %H:%M:%S %Y GMT"))


def DER_cert_to_PEM_cert(der):
    text = base64.standard_b64encode(der).decode()
    lines = [text[at : at + 64] for at in range(0, len(text), 64)]
    return "\n".join([PEM_HEADER, *lines, PEM_FOOTER]) + "\n"


def PEM_cert_to_DER_cert(pem):
    text = pem.strip()
    if not text.startswith(PEM_HEADER) or not text.endswith(PEM_FOOTER):
        raise ValueError(f"Invalid PEM encoding; must start with {PEM_HEADER} and end with {PEM_FOOTER}")
    return base64.decodebytes(text[len(PEM_HEADER) : -len(PEM_FOOTER)].encode())


def RAND_bytes(count):
    return os.urandom(count)


def RAND_status():
    return True


def RAND_add(data, entropy):
    pass
