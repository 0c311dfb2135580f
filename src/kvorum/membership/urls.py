"""Peer URLs: which are accepted, and in which form they are kept.

`http` and `https` need a host and a port and no path; `unix` and `unixs` take what they are
given. A list of URLs is kept sorted, because ids are computed from it.
"""

from collections.abc import Iterable
from urllib.parse import SplitResult, urlsplit

_TCP = {"http", "https"}
_SOCKET_FILE = {"unix", "unixs"}


class UrlError(ValueError):
    """A URL that members cannot be reached at."""


def checked_url(text: str) -> str:
    """Return the URL as it is kept; raises UrlError."""
    text = text.strip()
    if any(character < " " or character == "\x7f" for character in text):
        raise UrlError(f"invalid control character in URL: {text!r}")
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise UrlError(f"{error}: {text}") from error
    if parts.scheme in _TCP:
        if not _has_host_and_port(parts):
            raise UrlError(f'URL address does not have the form "host:port": {text}')
        if parts.path:
            raise UrlError(f"URL must not contain a path: {text}")
    elif parts.scheme not in _SOCKET_FILE:
        raise UrlError(f"URL scheme must be http, https, unix, or unixs: {text}")
    return parts.scheme + text[len(parts.scheme) :]


def checked_urls(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the URLs as they are kept, sorted; raises UrlError, also if there are none."""
    urls = tuple(sorted(checked_url(text) for text in texts))
    if not urls:
        raise UrlError("no valid URLs given")
    return urls


def _has_host_and_port(parts: SplitResult) -> bool:
    address = parts.netloc.rpartition("@")[2]
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif set(host) & set(":[] "):
        return False
    # An empty port passes, as Go lets it: "the default port".
    return bool(colon) and (not port or (port.isascii() and port.isdigit()))
