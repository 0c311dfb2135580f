"""Parse URLs to listen at, to advertise and to dial, by Go's rules.

Invalid URLs raise ValueError with etcd's text.
"""

import ipaddress
import json
import re
from typing import NamedTuple

SCHEMES = ("http", "https", "unix", "unixs")

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*", re.ASCII)
_PORT = re.compile(r":[0-9]*", re.ASCII)


class Url(NamedTuple):
    """A URL to listen at or to advertise; `text` is its original form."""

    scheme: str
    host: str
    """Host and port, or the first part of a socket's path."""
    path: str
    text: str

    def __str__(self) -> str:
        return self.text

    @property
    def hostname(self) -> str:
        """The host without its port and without the brackets of IPv6."""
        return split_host_port(self.host)[0]

    @property
    def address(self) -> str:
        """The address for the edge to listen at: `host:port` or `unix:path`."""
        if self.scheme.startswith("unix"):
            return f"unix:{self.host}{self.path}"
        host, port = split_host_port(self.host)
        # As Go does: with IPv6, which a resolver may prefer, most clients could not connect.
        return f"127.0.0.1:{port}" if host == "localhost" else self.host


def split_host_port(text: str) -> tuple[str, str]:
    """Split `host:port` or `[v6]:port`; raise ValueError for anything else."""
    host, colon, port = text.rpartition(":")
    if not colon or ("]" in port):
        raise ValueError(f"address {text}: missing port in address")
    if host.startswith("[") and host.endswith("]"):
        return host[1:-1], port
    if ":" in host or "[" in host or "]" in host:
        raise ValueError(f"address {text}: too many colons in address")
    return host, port


def url(text: str) -> Url:
    """Parse one URL: http or https with `host:port` and no path, or unix or unixs."""
    text = text.strip()
    scheme, colon, rest = text.partition(":")
    if not colon or not _SCHEME.fullmatch(scheme):
        _refuse_without_scheme(text)
        scheme, rest = "", text
    host, path = "", rest
    if rest.startswith("//"):
        host, slash, path = rest[2:].partition("/")
        path = slash + path
        host = host.rpartition("@")[2]
        _check_port(text, scheme.lower(), host)
    if scheme.lower() not in SCHEMES:
        raise ValueError(f"URL scheme must be http, https, unix, or unixs: {text}")
    if scheme.lower().startswith("http"):
        try:
            split_host_port(host)
        except ValueError:
            raise ValueError(f'URL address does not have the form "host:port": {text}') from None
        if path:
            raise ValueError(f"URL must not contain a path: {text}")
    elif not host + path:
        raise ValueError(f"URL names no socket: {text}")
    return Url(scheme.lower(), host, path, text)


def _refuse_without_scheme(text: str) -> None:
    if text.startswith(":"):
        raise ValueError(f"parse {json.dumps(text)}: missing protocol scheme")
    if ":" in text.partition("/")[0]:
        raise ValueError(
            f"parse {json.dumps(text)}: first path segment in URL cannot contain colon"
        )


def _check_port(text: str, scheme: str, host: str) -> None:
    if host.startswith("["):
        _, bracket, port = host.rpartition("]")
        if not bracket:
            raise ValueError(f"parse {json.dumps(text)}: missing ']' in host")
    else:
        # Go refuses further colons in a host only for HTTP.
        find = host.find if scheme in ("http", "https") else host.rfind
        port = host[find(":") :] if ":" in host else ""
    if port and not _PORT.fullmatch(port):
        raise ValueError(f'parse {json.dumps(text)}: invalid port "{port}" after host')


def is_ip(text: str) -> bool:
    """Return whether a text is an IP address rather than a name."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
