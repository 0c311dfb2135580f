"""TLS of a connection, with the standard library's `ssl` between two memory buffers.

The edge checks the files before every handshake and reloads changed ones. It drops a client with a
valid but unacceptable certificate, revoked or with another name, only after the handshake: the
library has no way to refuse it earlier.
"""

import ssl
from pathlib import Path

from cryptography import x509

from kvorum.client.grpc.namesakes import trust_namesakes
from kvorum.network.edge.contexts import (
    Stamp,
    failure,
    load_authorities,
    load_identity,
    new_context,
    stamp,
)
from kvorum.network.edge.interface import TlsSettings
from kvorum.network.edge.subject import is_for, subject_of

HANDSHAKE = 0x16
"""The first byte of every TLS connection."""
NO_TLS = "tls: first record does not look like a TLS handshake"
ENCRYPT_BYTES_MAX = 64 * 1024
READ_BYTES = 64 * 1024


class TlsError(Exception):
    """A handshake that failed, or a connection that broke the rules of TLS."""


class ListenerTls:
    """One listener's settings, and the context made from its files."""

    __slots__ = ("_context", "_http1_only", "_revoked", "_stamps", "settings")

    def __init__(self, settings: TlsSettings, *, http1_only: bool) -> None:
        """Read the files; raise OSError or ValueError that names an unusable one."""
        self.settings = settings
        self._http1_only = http1_only
        self._stamps = self._read_stamps()
        self._context, self._revoked = self._load()

    def session(self) -> tuple["TlsSession", str]:
        """Start a handshake; also return why changed files are unusable, or ""."""
        failure = ""
        stamps = self._read_stamps()
        if stamps != self._stamps:
            # Keep the stamps even if loading fails: the same files would fail again.
            self._stamps = stamps
            try:
                self._context, self._revoked = self._load()
            except (OSError, ValueError) as error:
                failure = str(error)
        return TlsSession(self._context, self.settings, self._revoked), failure

    def _read_stamps(self) -> list[Stamp]:
        settings = self.settings
        files = (
            settings.cert_file,
            settings.key_file,
            settings.client_ca_file,
            settings.client_crl_file,
        )
        return [stamp(path) for path in files if path]

    def _load(self) -> tuple[ssl.SSLContext, x509.CertificateRevocationList | None]:
        settings = self.settings
        context = new_context(
            ssl.PROTOCOL_TLS_SERVER,
            settings.version_min,
            settings.version_max,
            settings.cipher_suites,
        )
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        if not self._http1_only:
            context.set_alpn_protocols(["h2", "http/1.1"])
        load_identity(context, settings.cert_file, settings.key_file)
        revoked: x509.CertificateRevocationList | None = None
        if settings.client_ca_file:
            context.verify_mode = ssl.CERT_REQUIRED
            load_authorities(context, settings.client_ca_file)
            trust_namesakes(context)
            if settings.client_crl_file:
                revoked = _revocation_list(settings.client_crl_file)
        return context, revoked


class TlsSession:
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
        """Whether the handshake is complete."""
        self.wire = bytearray()

    def receive(self, data: bytes) -> bytes | None:
        """Return the decrypted bytes of the client's data; None when the client has closed TLS.

        Raises TlsError; the caller must still send the bytes in `wire` then, such as an alert.
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
            raise TlsError(failure(error)) from None
        finally:
            self.wire += self._outgoing.read()
        return b"".join(pieces) or None

    def encrypt(self, data: bytearray) -> None:
        """Move up to `ENCRYPT_BYTES_MAX` bytes from `data`, encrypted, into `wire`."""
        if data and self.is_ready:
            taken = self._tls.write(bytes(data[:ENCRYPT_BYTES_MAX]))
            del data[:taken]
            self.wire += self._outgoing.read()

    def say_goodbye(self) -> None:
        """Put TLS's close_notify into `wire`."""
        try:
            if self.is_ready:
                self._tls.unwrap()
        except ssl.SSLError:
            # `unwrap` also waits for the client's close_notify, which need not come.
            pass
        self.wire += self._outgoing.read()

    @property
    def certificate(self) -> bytes | None:
        """The client's certificate, if the listener requested one."""
        return self._tls.getpeercert(binary_form=True) if self.is_ready else None

    def _check_client(self) -> None:
        if not self._settings.client_ca_file:
            return
        certificate = self.certificate
        if certificate is None:
            raise TlsError("client certificate authentication failed")
        names, hostnames = self._settings.allowed_names, self._settings.allowed_hostnames
        try:
            subject = subject_of(certificate)
            number = x509.load_der_x509_certificate(certificate).serial_number
        except ValueError as error:
            raise TlsError(f"tls: {error}") from error
        if (
            self._revoked is not None
            and self._revoked.get_revoked_certificate_by_serial_number(number) is not None
        ):
            raise TlsError("transport: certificate revoked")
        if names:
            allowed = subject.common_name in names
        else:
            allowed = not hostnames or any(is_for(subject, name) for name in hostnames)
        if not allowed:
            raise TlsError("client certificate authentication failed")


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
