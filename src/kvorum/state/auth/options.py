"""Parse `--auth-token`: the kind of tokens, and the options of signed ones.

The parser works as etcd's: in its order, with its words. It reads no files: the options name the
key files, and `jwt_keys` takes their bytes. Notices for the operator are part of the result, and
the caller logs them.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from kvorum.api.durations import SECOND, duration

INVALID_OPTIONS: Final = "auth: invalid auth options"
JWT_TTL_SECONDS: Final = 300.0
"""How long a signed token lasts without the option `ttl`."""

_KNOWN: Final = frozenset(("sign-method", "pub-key", "priv-key", "ttl"))


class TokenKind(Enum):
    """How a user proves its identity in calls after Authenticate."""

    SIMPLE = "simple"
    """By a text that members store."""
    JWT = "jwt"
    """By a signed text that members need not store."""
    NONE = ""
    """Not at all: every token is refused."""


class Notice(NamedTuple):
    """A log line for the operator."""

    message: str
    fields: dict[str, object]
    is_error: bool = False


@dataclass(slots=True, frozen=True, kw_only=True)
class TokenOptions:
    """The tokens that a member issues and accepts; method, TTL and keys are for signed ones."""

    kind: TokenKind
    sign_method: str = ""
    """The method as given; reading the keys checks whether it exists."""
    ttl_seconds: float = JWT_TTL_SECONDS
    """Negative: tokens have expired when they are issued."""
    private_key_file: str = ""
    public_key_file: str = ""
    warnings: tuple[Notice, ...] = ()


class TokenOptionsError(Exception):
    """Unusable options, which refuse the start with this text of etcd's.

    The notices name the problems.
    """

    def __init__(self, text: str, *notices: Notice) -> None:
        super().__init__(text)
        self.notices = notices


def not_loaded(reason: str) -> TokenOptionsError:
    """Return the error for signed tokens with unusable options or files."""
    return TokenOptionsError(
        INVALID_OPTIONS, Notice("problem loading JWT options", {"error": reason}, is_error=True)
    )


def parse_token_options(text: str) -> TokenOptions:
    """Parse the flag's value; raises TokenOptionsError."""
    name, *parts = text.split(",")
    options = _options(text, parts)
    if name == TokenKind.SIMPLE.value:
        warning = Notice("simple token is not cryptographically signed", {})
        return TokenOptions(kind=TokenKind.SIMPLE, warnings=(warning,))
    if name == TokenKind.JWT.value:
        return _jwt(options)
    if name == TokenKind.NONE.value:
        return TokenOptions(kind=TokenKind.NONE)
    raise TokenOptionsError(
        INVALID_OPTIONS, Notice("unknown token type", {"type": name, "error": INVALID_OPTIONS})
    )


def _options(text: str, parts: list[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in parts:
        name, equals, value = part.partition("=")
        fields: dict[str, object] = {"option": text}
        if equals and "=" not in value and name not in found:
            found[name] = value
            continue
        if name in found and equals and "=" not in value:
            fields["duplicate-parameter"] = name
        raise TokenOptionsError(
            INVALID_OPTIONS, Notice("invalid token option", fields, is_error=True)
        )
    return found


def _jwt(options: dict[str, str]) -> TokenOptions:
    ttl_seconds = JWT_TTL_SECONDS
    if ttl := options.get("ttl", ""):
        try:
            ttl_seconds = duration(ttl) / SECOND
        except ValueError as error:
            raise not_loaded(str(error)) from None
    unknown = [name for name in options if name not in _KNOWN]
    return TokenOptions(
        kind=TokenKind.JWT,
        sign_method=options.get("sign-method", ""),
        ttl_seconds=ttl_seconds,
        private_key_file=options.get("priv-key", ""),
        public_key_file=options.get("pub-key", ""),
        warnings=(Notice("unknown JWT options", {"keys": unknown}),) if unknown else (),
    )
