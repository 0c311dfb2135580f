"""TLS in front of a connection's dialect, with the standard library's `ssl` between two buffers.

Files are looked at before every handshake, and read again when they have changed. A client whose
certificate is genuine but not welcome, because it is revoked or has another name, is let go when
the handshake is over: the library has no way to say so in it.
"""

import ssl
from pathlib import Path

from cryptography import x509

from kvorum.edge.interface import TlsSettings
from kvorum.edge.subject import is_for, subject_of

HANDSHAKE = 0x16
"""The first byte of every TLS connection."""
NO_TLS = "tls: first record does not look like a TLS handshake"
ENCRYPT_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024

_VERSIONS = {
    "TLS1.2": ssl.TLSVersion.TLSv1_2,
    "TLS1.3": ssl.TLSVersion.TLSv1_3,
    "": ssl.TLSVersion.MAXIMUM_SUPPORTED,
}

Stamp = tuple[int, int, int] | None


class TlsError(Exception):
    """A handshake that came to nothing, or a connection that broke the rules of TLS."""


class Tls:
    """One listener's settings, and what its files have become."""

    __slots__ = ("_context", "_revoked", "_stamps", "settings")

    def __init__(self, settings: TlsSettings) -> None:
        """Read the files; raises OSError or ValueError with the file that cannot be used."""
        self.settings = settings
        self._stamps = self._look()
        self._context, self._revoked = self._load()

    def session(self) -> tuple["Session", str]:
        """Begin a handshake; returns also why changed files are not used, if they are not."""
        failure = ""
        stamps = self._look()
        if stamps != self._stamps:
            # Even if it fails: the same files would fail again.
            self._stamps = stamps
            try:
                self._context, self._revoked = self._load()
            except (OSError, ValueError) as error:
                failure = str(error)
        return Session(self._context, self.settings, self._revoked), failure

    def _look(self) -> list[Stamp]:
        settings = self.settings
        files = (
            settings.cert_file,
            settings.key_file,
            settings.client_ca_file,
            settings.client_crl_file,
        )
        return [_stamp(path) for path in files if path]

    def _load(self) -> tuple[ssl.SSLContext, x509.CertificateRevocationList | None]:
        settings = self.settings
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = _VERSIONS[settings.version_min or "TLS1.2"]
        context.maximum_version = _VERSIONS[settings.version_max]
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.set_alpn_protocols(["h2", "http/1.1"])
        if settings.cipher_suites:
            try:
                context.set_ciphers(":".join(map(_library_name, settings.cipher_suites)))
            except ssl.SSLError:
                raise ValueError("none of the cipher suites is known") from None
        cert_file, key_file = settings.cert_file, settings.key_file
        try:
            context.load_cert_chain(cert_file, key_file, password=_no_password)
        except ssl.SSLError as error:
            raise ValueError(f"{cert_file} with {key_file}: {_reason(error)}") from None
        except OSError as error:
            missing = cert_file if not Path(cert_file).exists() else key_file
            raise OSError(error.errno, f"{missing}: {error.strerror}") from None
        revoked: x509.CertificateRevocationList | None = None
        if settings.client_ca_file:
            context.verify_mode = ssl.CERT_REQUIRED
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            try:
                context.load_verify_locations(settings.client_ca_file)
            except ssl.SSLError as error:
                raise ValueError(f"{settings.client_ca_file}: {_reason(error)}") from None
            except OSError as error:
                name = settings.client_ca_file
                raise OSError(error.errno, f"{name}: {error.strerror}") from None
            if settings.client_crl_file:
                revoked = _revocation_list(settings.client_crl_file)
        return context, revoked


class Session:
    """One connection's TLS: bytes from the socket in, bytes for the socket in `wire`."""

    __slots__ = ("_incoming", "_outgoing", "_revoked", "_settings", "_tls", "is_ready", "wire")

    def __init__(
        self,
        context: ssl.SSLContext,
        settings: TlsSettings,
        revoked: x509.CertificateRevocationList | None,
    ) -> None:
        self._settings = settings
        self._revoked = revoked
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.is_ready = False
        """Whether the handshake is over."""
        self.wire = bytearray()

    def receive(self, data: bytes) -> bytes | None:
        """Take what the client sent and return what it means; None when it said goodbye.

        Raises TlsError; what `wire` has then is still to be sent.
        """
        self._incoming.write(data)
        pieces: list[bytes] = []
        try:
            if not self.is_ready:
                self._tls.do_handshake()
                self.is_ready = True
                self._check_client()
            while piece := self._tls.read(READ_BYTES):
                pieces.append(piece)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return b"".join(pieces)
        except ssl.SSLError as error:
            raise TlsError(f"tls: {_reason(error)}") from None
        finally:
            self.wire += self._outgoing.read()
        return b"".join(pieces) or None

    def encrypt(self, data: bytearray) -> None:
        """Move some bytes from `data` into `wire`."""
        if data and self.is_ready:
            taken = self._tls.write(bytes(data[:ENCRYPT_BYTES_MAX]))
            del data[:taken]
            self.wire += self._outgoing.read()

    def say_goodbye(self) -> None:
        """Tell the client that nothing follows."""
        try:
            if self.is_ready:
                self._tls.unwrap()
        except ssl.SSLError:
            # It has not said so itself yet, which is not waited for.
            pass
        self.wire += self._outgoing.read()

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate, if it was asked for one."""
        return self._tls.getpeercert(binary_form=True) if self.is_ready else None

    def _check_client(self) -> None:
        certificate = self.certificate
        if certificate is None or not self._settings.client_ca_file:
            return
        if self._revoked is not None:
            number = x509.load_der_x509_certificate(certificate).serial_number
            if self._revoked.get_revoked_certificate_by_serial_number(number) is not None:
                raise TlsError("tls: certificate revoked")
        names, hostnames = self._settings.allowed_names, self._settings.allowed_hostnames
        subject = subject_of(certificate)
        if names:
            allowed = subject.common_name in names
        else:
            allowed = not hostnames or any(is_for(subject, name) for name in hostnames)
        if not allowed:
            raise TlsError("tls: client certificate authentication failed")


def _stamp(path: str) -> Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _reason(error: ssl.SSLError) -> str:
    return (error.reason or str(error)).replace("_", " ").lower()


def _no_password() -> bytes:
    raise ValueError("an encrypted key cannot be used; there is nobody to ask for its password")


def _library_name(suite: str) -> str:
    """Return OpenSSL's name of a suite, such as ECDHE-RSA-AES128-GCM-SHA256."""
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = cipher.replace("AES_", "AES").replace("_POLY1305_SHA256", "_POLY1305")
    return f"{exchange}_{cipher}".replace("_", "-")


def _revocation_list(path: str) -> x509.CertificateRevocationList:
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise OSError(error.errno, f"{path}: {error.strerror}") from None
    try:
        is_pem = data.lstrip().startswith(b"-----BEGIN")
        return x509.load_pem_x509_crl(data) if is_pem else x509.load_der_x509_crl(data)
    except ValueError:
        raise ValueError(f"{path}: no revocation list") from None
