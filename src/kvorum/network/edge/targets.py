"""Split the target of an HTTP request into a path and a query.

A target is the text after the method: usually a path and a query, or a whole URL, as sent to
proxies. This module checks a target only as far as needed to find the path.
"""

import re
from urllib.parse import parse_qs, unquote_to_bytes

QUERY_FIELDS_MAX = 100
"""Fields in a query; no endpoint uses more than a few."""

_SCHEME = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://", re.ASCII)
_BAD_ESCAPE = re.compile(r"%(?![0-9a-fA-F]{2})", re.ASCII)


class TargetError(ValueError):
    """A target that cannot be parsed."""


def split_target(target: str) -> tuple[str, str]:
    """Return the path and the query of a target, without decoding them."""
    target = target.partition("#")[0]
    path, _, query = target.partition("?")
    scheme = _SCHEME.match(path)
    if scheme is not None:
        _, slash, rest = path[scheme.end() :].partition("/")
        path = slash + rest
    return path, query


def parse_target(target: str) -> tuple[str, dict[str, list[str]]]:
    """Return the decoded path of a target, and its query's fields with their values.

    Raises TargetError.
    """
    path, query = split_target(target)
    return _decoded_path(path), _query_fields(query) if query else {}


def _decoded_path(path: str) -> str:
    if "%" not in path:
        return path
    if _BAD_ESCAPE.search(path):
        raise TargetError("a percent sign in the path is no escape")
    return unquote_to_bytes(path).decode("utf-8", "replace")


def _query_fields(query: str) -> dict[str, list[str]]:
    try:
        return parse_qs(query, keep_blank_values=True, max_num_fields=QUERY_FIELDS_MAX)
    except ValueError as error:
        raise TargetError(f"the query cannot be read: {error}") from error
