"""TLS around a connection, in memory. Imported with the first connection that uses TLS."""

import ssl
from collections.abc import Iterator

from kvorum.client.grpc.link import READ_BYTES, LinkError, UnusableError
from kvorum.client.grpc.namesakes import forget_namesakes

_PLAIN_REASONS: tuple[str, ...] = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")
_PLAIN_REASONS += ("PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE", "BAD_RECORD_TYPE")
"""OpenSSL's reasons for rejecting bytes that are not TLS."""


class Tls:
    """The TLS of a connection, which decrypts input and encrypts output."""

    __slots__ = ("_incoming", "_object", "_outgoing", "is_open")

    def __init__(self, context: ssl.SSLContext, server_name: str) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self.is_open: bool = False
        """Whether the handshake is done."""
        self._do_handshake()

    def receive(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Take bytes from the server; yield the decrypted ones. Raises LinkError."""
        self._incoming.write(data)
        if not self.is_open and not self._do_handshake():
            return
        try:
            while plain := self._object.read(READ_BYTES):
                yield plain
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise LinkError(f"TLS failed: {_reason(error)}") from error

    def take_output(self, plain: bytes) -> bytes:
        """Return the bytes to send now; `plain` must be empty before the handshake is done."""
        if plain:
            # A write to memory takes everything at once.
            self._object.write(plain)
        return self._outgoing.read()

    def _do_handshake(self) -> bool:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLError as error:
            raise UnusableError(f"the TLS handshake failed: {_reason(error)}") from error
        if self._object.selected_alpn_protocol() not in ("h2", None):
            raise UnusableError(
                "the port does not speak gRPC: over TLS it speaks no HTTP/2; expected a port for "
                "clients, for example localhost:2379"
            )
        self.is_open = True
        forget_namesakes(self._object.context)
        return True


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        # OpenSSL does not know the authority that signed the certificate.
        is_unknown = error.verify_code in (18, 19, 20, 21)
        hint = "; give the authority that signed it as ca=" if is_unknown else ""
        return f"the server's certificate is not accepted: {error.verify_message}{hint}"
    if error.reason in _PLAIN_REASONS:
        return "the port does not speak TLS; write the endpoint with http://"
    return (error.reason or str(error)).replace("_", " ").lower()
