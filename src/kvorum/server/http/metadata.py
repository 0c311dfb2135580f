"""Derive a call's gRPC metadata and deadline from the headers of its HTTP request.

The gateway creates only metadata that services read. A header `Grpc-Metadata-<name>` becomes the
key `<name>`, `Authorization` the key `authorization`, and trace headers keep their names; no
service reads the other headers that etcd passes on. Every call carries the gateway's key, so that
services do not take the connection's certificate for the client's identity.
"""

import re
from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Final

from kvorum.api.errors import Code, Status
from kvorum.network.edge.interface import Metadata
from kvorum.server.rpc.table import GATEWAY_KEY, METADATA_KEYS, TRACE_KEYS

PREFIX: Final = "grpc-metadata-"
BINARY: Final = "-bin"
TIMEOUT: Final = "grpc-timeout"

READ_HEADERS: Final = ("accept", "authorization", TIMEOUT, f"{PREFIX}*", *TRACE_KEYS)
"""The headers that this module reads."""

_TEXT: Final = re.compile(r"[ -~]*", re.ASCII)
_KEY: Final = re.compile(r"[0-9a-z_.-]+", re.ASCII)
_DURATION: Final = re.compile(r"([+-]?[0-9]+)([HMSmun])", re.ASCII)
_UNIT_SECONDS: Final = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_AMOUNT_MAX: Final = 2**63


class Refused(Exception):  # noqa: N818 (it names a decision)
    """Ends a call before the services have its whole request; the client receives the status."""

    def __init__(self, status: Status) -> None:
        super().__init__(status.text)
        self.status = status


def _invalid(text: str) -> Refused:
    return Refused(Status(Code.INVALID_ARGUMENT, text))


def parse_headers(headers: Mapping[str, str]) -> tuple[Metadata, float | None]:
    """Return the metadata of a call and its time limit, None without one; raise Refused."""
    return _metadata_of(headers), _seconds_allowed(headers)


def _metadata_of(headers: Mapping[str, str]) -> Metadata:
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
    """Refuse invalid base64 in binary metadata, although no service reads such metadata."""
    padding = "" if len(value) % 4 == 0 else "=" * (-len(value) % 4)
    try:
        if padding and value.endswith("="):
            raise BadBase64
        b64decode(value + padding, validate=True)
    except (BadBase64, ValueError):
        raise _invalid(f"invalid binary header {_canonical(name)}: illegal base64 data") from None


def _canonical(name: str) -> str:
    return "-".join(word.capitalize() for word in name.split("-"))


def _seconds_allowed(headers: Mapping[str, str]) -> float | None:
    text = headers.get(TIMEOUT)
    if not text:
        return None
    found = _DURATION.fullmatch(text)
    # More than 20 digits overflow; skip converting them, which takes time.
    if found is None or len(found[1]) > 20 or not -_AMOUNT_MAX <= int(found[1]) < _AMOUNT_MAX:
        raise _invalid(f"invalid grpc-timeout: {text}")
    amount = int(found[1])
    return amount * _UNIT_SECONDS[found[2]] if amount else None
