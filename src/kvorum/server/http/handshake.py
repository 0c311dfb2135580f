"""The handshake that turns a request on the gateway's paths into a WebSocket.

Browsers cannot set headers on a WebSocket, so a token comes as a subprotocol or in a cookie. Few
servers need these libraries, so the first handshake imports them.
"""

from base64 import b64decode
from binascii import Error as BadBase64
from collections.abc import Mapping
from typing import Final

from kvorum.network.edge.interface import Headers

VERSION: Final = "13"
OUR_VERSION: Final[Headers] = (("sec-websocket-version", VERSION),)
KEY_BYTES: Final = 16
BEARER: Final = "Bearer"

READ_HEADERS: Final = (
    "connection",
    "cookie",
    "sec-websocket-key",
    "sec-websocket-protocol",
    "sec-websocket-version",
    "upgrade",
)
"""The headers that this module reads."""


def asks_for_upgrade(headers: Mapping[str, str]) -> bool:
    """Return whether a request asks for an upgrade to WebSocket."""
    return _has_token(headers.get("connection", ""), "upgrade") and _has_token(
        headers.get("upgrade", ""), "websocket"
    )


def handshake_refusal(method: str, headers: Mapping[str, str]) -> tuple[int, str, Headers] | None:
    """Return the status, text and headers that refuse a handshake; None if it is valid."""
    if method != "GET":
        return 405, "Method Not Allowed", OUR_VERSION
    try:
        key = b64decode(headers.get("sec-websocket-key", ""), validate=True)
    except (BadBase64, ValueError):
        key = b""
    if len(key) != KEY_BYTES or not _has_token(headers.get("sec-websocket-version", ""), VERSION):
        return 400, "Bad Request", OUR_VERSION
    return None


def handshake_answer(headers: Mapping[str, str]) -> Headers:
    """Return the headers that accept a handshake."""
    from wsproto.utilities import generate_accept_token

    key = headers["sec-websocket-key"].encode()
    answer = [
        ("upgrade", "websocket"),
        ("connection", "Upgrade"),
        ("sec-websocket-accept", generate_accept_token(key).decode()),
    ]
    offered = headers.get("sec-websocket-protocol", "").split(",")
    if any(each.strip(" \t") == BEARER for each in offered):
        answer.append(("sec-websocket-protocol", BEARER))
    return answer


def metadata_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Return the headers for the call's metadata: the authorization from a handshake."""
    from http.cookies import CookieError, SimpleCookie

    shown = {}
    protocols = headers.get("sec-websocket-protocol", "")
    if protocols:
        _, found, token = protocols.partition(f"{BEARER},")
        shown["authorization"] = f"{BEARER} {token.strip(' ')}" if found else ""
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get("token")
    except CookieError:
        cookie = None
    if cookie is not None:
        shown["authorization"] = f"{BEARER} {cookie.value}"
    return shown


def _has_token(value: str, token: str) -> bool:
    return any(each.strip(" \t").lower() == token for each in value.split(","))
