"""Parsers of flags' values: Go's syntax for numbers, booleans and lists.

Every parser takes the text as given, and returns a value or raises ValueError with etcd's text,
because operators and scripts know that text.
"""

import json
from collections.abc import Callable

from kvorum.api.integers import FALSE, TRUE, integer
from kvorum.network.urls import Url, url


def uint32(text: str) -> int:
    """Parse a 32-bit number, for which etcd has other error texts than for 64 bits."""
    try:
        return integer(text, 0, 2**32 - 1)
    except ValueError as error:
        problem = str(error).replace("parse error", "invalid syntax")
        quoted = json.dumps(text, ensure_ascii=False)
        raise ValueError(f"strconv.ParseUint: parsing {quoted}: {problem}") from None


def boolean(text: str) -> bool:
    """Parse a boolean in any of Go's spellings."""
    if text not in TRUE + FALSE:
        raise ValueError("parse error")
    return text in TRUE


def urls(text: str) -> tuple[Url, ...]:
    """Parse URLs separated by commas; return them sorted without duplicates."""
    if not text:
        return ()
    return tuple(sorted(set(map(url, text.split(","))), key=lambda one: one.text))


def urls_or_star(text: str) -> tuple[str, ...]:
    """Parse origins: `*`, or URLs separated by commas."""
    if text == "*":
        return (text,)
    return tuple(sorted({str(url(one)) for one in text.split(",")}))


def strings(text: str) -> tuple[str, ...]:
    """Split a text at commas; return the parts sorted without duplicates."""
    return tuple(sorted(set(text.split(","))))


def one_of(*allowed: str) -> Callable[[str], str]:
    """Return a parser that accepts only one of these words."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ValueError("invalid value")
        return text

    return parse


def some_of(*allowed: str) -> Callable[[str], str]:
    """Return a parser that accepts these words, separated by commas."""

    def parse(text: str) -> str:
        for word in text.split(","):
            if word not in allowed:
                raise ValueError(f"invalid value {json.dumps(word, ensure_ascii=False)}")
        return text

    return parse
