"""What the headers of an HTTP request say to the call: its metadata, and its deadline.

Only the metadata that services read is made. A header `Grpc-Metadata-<name>` is the key `<name>`,
`Authorization` is also the key `authorization`, and the headers of a trace are keys as well; all
the others that etcd passes on concern nobody. Every call has the mark of a gateway, so that no
connection's certificate is taken for its client's.
"""

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Final

from kvorum.api.errors import Code, Status
from kvorum.edge.interface import Metadata
from kvorum.rpc.table import GATEWAY_KEY, METADATA_KEYS, TRACE_KEYS

PREFIX: Final = "grpc-metadata-"
BINARY: Final = "-bin"
TIMEOUT: Final = "grpc-timeout"

READ_HEADERS: Final = ("accept", "authorization", TIMEOUT, f"{PREFIX}*", *TRACE_KEYS)
"""The headers that are read here."""

_TEXT: Final = re.compile(r"[ -~]*", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-z_.-]+", re.ASCII)
_DURATION: Final = re.compile(r"([+-]?[0-9]+)([HMSmun])", re.ASCII)
_UNIT_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_AMOUNT_MAX: Final = 2**63


class Refused(Exception):  # noqa: N818 (it names a decision)
    """Ends a call that the services have not seen, or not whole; its status is for the client."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.text)
        self.status = status


def _invalid(text: str) -> Refused:
    return Refused(Status(Code.INVALID_ARGUMENT, text))


def metadata_of(headers: Mapping[str, str]) -> Metadata:
    """Return the metadata of a call; raises Refused."""
    metadata = {GATEWAY_KEY: headers.get("accept", "").encode("latin-1")}
    authorization = headers.get("authorization")
    if authorization is not None:
        metadata["authorization"] = authorization.encode("latin-1")
    for name, value in headers.items():
        if name.startswith(PREFIX):
            _add(metadata, name, value)
    for key in TRACE_KEYS:
        if key in headers:
            metadata.setdefault(key, headers[key].encode("latin-1"))
    return metadata


def _add(metadata: Metadata, name: str, value: str) -> None:
    key = name[len(PREFIX) :]
    if not _KEY.fullmatch(key):
        return
    if key.endswith(BINARY):
        _check_base64(name, value)
    elif (key in METADATA_KEYS or key in TRACE_KEYS) and _TEXT.fullmatch(value):
        metadata.setdefault(key, value.encode("latin-1"))


def _check_base64(name: str, value: str) -> None:
    """No service reads binary metadata, but a client is told of what is not base64."""
    padding = "" if len(value) % 4 == 0 else "=" * (-len(value) % 4)
    try:
        if padding and value.endswith("="):
            raise BadBase64
        b64decode(value + padding, validate=True)
    except (BadBase64, ValueError):
        raise _invalid(f"invalid binary header {_canonical(name)}: illegal base64 data") from None


def _canonical(name: str) -> str:
    return "-".join(word.capitalize() for word in name.split("-"))


def seconds_allowed(headers: Mapping[str, str]) -> float | None:
    """Return how long a call may take, None without a limit; raises Refused."""
    text = headers.get(TIMEOUT)
    if not text:
        return None
    found = _DURATION.fullmatch(text)
    # Longer digits than this overflow, and would cost time to convert.
    if found is None or len(found[1]) > 20 or not -_AMOUNT_MAX <= int(found[1]) < _AMOUNT_MAX:
        raise _invalid(f"invalid grpc-timeout: {text}")
    amount = int(found[1])
    return amount * _UNIT_SECONDS[found[2]] if amount else None
