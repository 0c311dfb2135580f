"""The gRPC layer above HTTP/2: paths, timeouts, message frames, compression, status text.

This module has plain functions and one parser, without sockets or HTTP/2. For a request that
breaks the rules they raise `StatusError` with grpc-go's code and text.
"""

import zlib
from collections.abc import Sequence

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError, quoted

OK = Status(Code.OK, "")
NO_MESSAGE = Status(Code.UNKNOWN, "EOF")
CUT_MESSAGE = Status(Code.UNKNOWN, "unexpected EOF")
CUT_STREAM_MESSAGE = Status(Code.INTERNAL, "unexpected EOF")
COMPRESSED_WITHOUT_ENCODING = Status(
    Code.INTERNAL, "grpc: compressed flag set with identity or empty encoding"
)

PREFIX_BYTES = 5
"""Prefix of a message: one byte that flags compression, four bytes of length."""

_SECONDS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_GZIP_MAGIC = b"\x1f\x8b\x08"
_PRINTABLE = frozenset(range(0x20, 0x7F)) - {ord("%")}


class MethodTable:
    """The served methods by path."""

    __slots__ = ("_methods", "_services")

    def __init__(self, methods: Sequence[tuple[str, bool]]) -> None:
        self._methods = {
            path.encode(): (number, streaming) for number, (path, streaming) in enumerate(methods)
        }
        self._services = {path[1:].rpartition("/")[0] for path, _ in methods}

    def find(self, path: bytes) -> tuple[int, bool]:
        """Return a method's number and whether it is streaming."""
        found = self._methods.get(path)
        if found is None:
            raise StatusError(self._unknown(path.decode(errors="replace")))
        return found

    def _unknown(self, path: str) -> Status:
        service, slash, method = path[1:].rpartition("/")
        if not path.startswith("/") or not slash:
            return errors.malformed_method(path)
        if service in self._services:
            return errors.unknown_method(service, method)
        return errors.unknown_service(service)


def is_grpc(content_type: bytes) -> bool:
    """Return whether a request of this content type is an RPC."""
    return content_type.startswith(b"application/grpc") and content_type[16:17] in (b"", b"+", b";")


def not_grpc(content_type: bytes) -> Status:
    """Return the status for a plain HTTP request to a listener that serves only gRPC."""
    kind = quoted(content_type.decode("latin-1"))
    return Status(Code.INVALID_ARGUMENT, f"invalid gRPC request content-type {kind}")


def timeout_seconds(value: str) -> float:
    """Parse a `grpc-timeout` header."""
    if len(value) < 2:
        reason = f"transport: timeout string is too short: {quoted(value)}"
    elif len(value) > 9:
        reason = f"transport: timeout string is too long: {quoted(value)}"
    elif value[-1] not in _SECONDS:
        reason = f"transport: timeout unit is not recognized: {quoted(value)}"
    elif not (value[:-1].isascii() and value[:-1].isdigit()):
        reason = f"strconv.ParseUint: parsing {quoted(value[:-1])}: invalid syntax"
    else:
        return int(value[:-1]) * _SECONDS[value[-1]]
    raise StatusError(Status(Code.INTERNAL, f"malformed grpc-timeout: {reason}"))


def percent_encoded(text: str) -> bytes:
    """Encode a status text for the `grpc-message` header."""
    data = text.encode(errors="replace")
    if _PRINTABLE.issuperset(data):
        return data
    return b"".join(b"%c" % byte if byte in _PRINTABLE else b"%%%02X" % byte for byte in data)


def status_trailers(status: Status) -> list[tuple[bytes, bytes]]:
    """Return the trailers that end a call."""
    trailers = [(b"grpc-status", b"%d" % status.code)]
    if status.text:
        trailers.append((b"grpc-message", percent_encoded(status.text)))
    return trailers


def unzipped(data: bytes, bytes_max: int) -> bytes:
    """Decompress a message, and never more than `bytes_max` plus one byte of it."""
    message = b""
    while data or not message:
        if not data.startswith(_GZIP_MAGIC):
            reason = "grpc: failed to decompress the message: gzip: invalid header"
            raise StatusError(Status(Code.INTERNAL, reason))
        stream = zlib.decompressobj(wbits=31)
        try:
            message += stream.decompress(data, bytes_max + 1 - len(message))
        except zlib.error as error:
            reason = f"grpc: failed to read decompressed data: {error}"
            raise StatusError(Status(Code.INTERNAL, reason)) from None
        if len(message) > bytes_max:
            reason = f"grpc: received message after decompression larger than max {bytes_max}"
            raise StatusError(Status(Code.RESOURCE_EXHAUSTED, reason))
        if not stream.eof:
            reason = "grpc: failed to read decompressed data: unexpected EOF"
            raise StatusError(Status(Code.INTERNAL, reason))
        data = stream.unused_data
        if not data:
            break
    return message


class MessageParser:
    """Cuts a call's body into messages.

    The parser checks a message's length as soon as its prefix has arrived, so that it never
    buffers more than one acceptable message beyond the last piece fed. `take` decompresses one
    message at a time.
    """

    __slots__ = ("_at", "_buffer", "_bytes_max", "_data", "_needed", "is_gzip", "is_packed")

    def __init__(self, encoding: bytes, bytes_max: int) -> None:
        """Prepare for the call's `grpc-encoding`."""
        if encoding not in (b"", b"identity", b"gzip"):
            raise StatusError(errors.unknown_compression(encoding.decode(errors="replace")))
        self._buffer = bytearray()
        """The start of a message whose rest has not arrived."""
        self._data = b""
        """The last piece fed."""
        self._at = 0
        """The offset up to which `_data` is cut into messages."""
        self._needed = PREFIX_BYTES
        """The length of `_buffer` at which parsing can continue."""
        self._bytes_max = bytes_max
        self.is_gzip = encoding == b"gzip"
        self.is_packed = False
        """Whether the next message is complete but may not be decompressed yet."""

    @property
    def partial_bytes(self) -> int:
        """Return the number of buffered bytes that `take` has not returned as messages."""
        return len(self._buffer) + len(self._data) - self._at

    def missing_bytes(self) -> int:
        """Return how many bytes the incomplete message, or its prefix, still lacks."""
        return self._needed - len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Take the next bytes."""
        if self._data:
            self._data = self._data[self._at :] + data
        elif self._buffer:
            self._buffer += data
            if len(self._buffer) < self._needed:
                return
            self._data = bytes(self._buffer)
            self._buffer.clear()
        else:
            self._data = data
        self._at = 0

    def take(self, may_unpack: bool) -> tuple[bytes, int] | None:
        """Return the next complete message and its size on the wire; None if there is none.

        A compressed message stays buffered unless `may_unpack`.
        """
        data, start = self._data, self._at
        self.is_packed = False
        if len(data) - start < PREFIX_BYTES:
            # Without new data, the buffer is still shorter than the length found earlier.
            self._keep(PREFIX_BYTES if data else self._needed)
            return None
        flag = data[start]
        length = int.from_bytes(data[start + 1 : start + PREFIX_BYTES], "big")
        if length > self._bytes_max:
            raise StatusError(errors.message_too_large(length, self._bytes_max))
        end = start + PREFIX_BYTES + length
        if len(data) < end:
            self._keep(end - start)
            return None
        if flag:
            self._check_packed(flag)
            if not may_unpack:
                self.is_packed = True
                return None
        message = data[start + PREFIX_BYTES : end]
        if end == len(data):
            self._data, self._at = b"", 0
        else:
            self._at = end
        self._needed = PREFIX_BYTES
        return (unzipped(message, self._bytes_max) if flag else message), end - start

    def _keep(self, needed: int) -> None:
        """Buffer the start of a message until `needed` bytes have arrived."""
        self._buffer += self._data[self._at :]
        self._data, self._at = b"", 0
        self._needed = needed

    def _check_packed(self, flag: int) -> None:
        if flag != 1:
            reason = f"grpc: received unexpected payload format {flag}"
            raise StatusError(Status(Code.INTERNAL, reason))
        if not self.is_gzip:
            raise StatusError(COMPRESSED_WITHOUT_ENCODING)
