"""Validate peer URLs, and convert them to the form that is stored.

`http` and `https` URLs need a host and a port and no path; `unix` and `unixs` URLs may have
anything. Lists of URLs are sorted, because ids are computed from them.

`checked_urls` also validates entries of the log, so its accepted set must never change.
`kept_urls` validates only requests: it refuses URLs that Go cannot parse, and percent-encodes
characters outside ASCII, as etcd does.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final
from urllib.parse import SplitResult, quote, urlsplit

URLS_MAX: Final = 100
"""How many peer URLs of a member a request may have; entries of the log may have more."""
URL_CHARACTERS_MAX: Final = 4096
"""How long each peer URL in a request may be."""

_TCP = {"http", "https"}
_SOCKET_FILE = {"unix", "unixs"}

# The hosts that Go accepts: escapes only for characters outside ASCII, but in a zone for any.
_HOST = re.compile(r"(?:[0-9a-zA-Z._~!$&'()*+,;=:<>\"-]|%[89a-fA-F][0-9a-fA-F])*", re.ASCII)
_BRACKETED = re.compile(
    r"\[(?:[0-9a-zA-Z._~!$&'()*+,;=:<>\"-]|%[89a-fA-F][0-9a-fA-F])*(?:%25(?:[^%]|%[0-9a-fA-F]{2})+)?\]",
    re.ASCII,
)
# A fast path that accepts nearly every URL unchanged, because the log may hold many.
_USUAL = re.compile(r"https?://[0-9a-zA-Z.-]+:[0-9]+", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_UNSEEN = re.compile(r"[^!-~]+")
_USER = re.compile(r"(?:[0-9a-zA-Z._~!$&'()*+,;=:@-]|%[0-9a-fA-F]{2})*", re.ASCII)


class UrlError(ValueError):
    """The URL is no valid peer URL."""


def checked_url(text: str) -> str:
    """Return the URL in its stored form; raises UrlError."""
    text = text.strip()
    if _USUAL.fullmatch(text):
        return text
    if _CONTROL.search(text):
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
    """Return the URLs in their stored form, sorted; raises UrlError, also for an empty list."""
    urls = tuple(sorted(checked_url(text) for text in texts))
    if not urls:
        raise UrlError("no valid URLs given")
    return urls


def excess_of(texts: Sequence[str]) -> str | None:
    """Return text about the limit that a request's URLs exceed; None within the limits."""
    if len(texts) > URLS_MAX:
        return f"a member may have {URLS_MAX} peer URLs, and {len(texts)} were given"
    longest = max(map(len, texts), default=0)
    if longest > URL_CHARACTERS_MAX:
        return f"a peer URL may have {URL_CHARACTERS_MAX} characters, and one has {longest}"
    return None


def encoded(text: str) -> str:
    """Return a URL with everything that is not visible ASCII percent-encoded."""
    return _UNSEEN.sub(lambda found: quote(found[0], safe=""), text)


def kept_urls(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the URLs of a request in their stored form, sorted; raises UrlError."""
    return checked_urls(_kept_url(text.strip()) for text in texts)


def _kept_url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in _TCP:
        return text
    authority, end, more = re.split(r"([/?#]|$)", rest, maxsplit=1)
    user, at, address = authority.rpartition("@")
    address = encoded(address)
    host, _, _ = address.rpartition(":")
    if not _USER.fullmatch(user) or not (_HOST.fullmatch(host) or _BRACKETED.fullmatch(host)):
        raise UrlError(f"invalid host: {text!r}")
    if end == "#":
        # Drop an empty fragment.
        end, more = ("#", encoded(more)) if more else ("", "")
    return f"{scheme}://{user}{at}{address}{end}{more}"


def _has_host_and_port(parts: SplitResult) -> bool:
    address = parts.netloc.rpartition("@")[2]
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif set(host) & set(":[] "):
        return False
    # An empty port passes, as in Go: "the default port".
    return bool(colon) and (not port or (port.isascii() and port.isdigit()))
