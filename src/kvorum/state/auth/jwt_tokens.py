"""Signed tokens (JWT): issued after authentication, and valid for any bearer until they expire.

PyJWT signs and verifies signatures; this module checks the claims as golang-jwt does for etcd,
because callers pass the time in. It caches valid tokens, since a client sends the same one with
every call, but no refused ones, so that no client can fill the memory with them.

`verify` answers for any text that a client sends as a token, and never raises.
"""

import json
import math
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from jwt import InvalidKeyError, PyJWS, PyJWTError
from jwt.algorithms import (
    Algorithm,
    HMACAlgorithm,
    RSAAlgorithm,
    RSAPSSAlgorithm,
    get_default_algorithms,
)

from kvorum.api import errors
from kvorum.api.errors import Code, Status, StatusError
from kvorum.state.auth.jwt_keys import HMAC, RSA, Keys
from kvorum.state.auth.tokens import NoTokens, TokenIdentity
from kvorum.storage.files import Files

INVALID_KEY: Final = Status(Code.UNKNOWN, "key is invalid")
TOKEN_CHARACTERS_MAX: Final = 8192
"""A longer token is refused without parsing. A token signed with 4096-bit RSA has 900."""
VERIFIED_MAX: Final = 4096
VERIFIED_CHARACTERS_MAX: Final = 2048
"""A longer token is verified at every use instead of cached."""

_INT64: Final = 1 << 63
_UINT64: Final = 1 << 64
_DATE_MAX: Final = _INT64 - 62_135_596_800
"""Go counts seconds from the year 1 in a signed 64-bit integer."""
_LONE_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class _Secret(HMACAlgorithm):
    """HMAC with any bytes as the key.

    PyJWT refuses secrets that look like a public key, to protect servers that accept several
    methods. A member accepts only one method, and etcd's secret may be any file.
    """

    def prepare_key(self, key: str | bytes) -> bytes:
        return key if isinstance(key, bytes) else key.encode()

    def check_key_length(self, key: bytes) -> None:
        """Suppress the warning at each use; `JwtTokens.weakness` has it once."""


class _Rsa(RSAAlgorithm):
    def check_key_length(self, key: object) -> None:
        """Suppress the warning at each use; `JwtTokens.weakness` has it once."""


class _RsaPss(RSAPSSAlgorithm):
    def check_key_length(self, key: object) -> None:
        """Suppress the warning at each use; `JwtTokens.weakness` has it once."""


class _VerifiedToken(NamedTuple):
    identity: TokenIdentity
    not_before: float
    expires: float


class JwtTokens(NoTokens):
    """Issues and verifies the tokens of one signing method and its keys."""

    def __init__(self, keys: Keys, ttl_seconds: float) -> None:
        self._keys = keys
        self._ttl_seconds = ttl_seconds
        usual = get_default_algorithms()[keys.method]
        self._signatures = PyJWS(algorithms=[])
        self._signatures.register_algorithm(keys.method, _algorithm(keys.method, usual))
        self._methods = [keys.method]
        self._verified: dict[str, _VerifiedToken] = {}
        self.weakness = usual.check_key_length(keys.checking)
        """A warning about a usable but weak key, or None."""

    def verify(self, token: str, _now: float, unix_seconds: float, /) -> TokenIdentity | None:
        """Return the user and revision that a token names; None if the token is not valid."""
        found = self._verified.get(token)
        if found is None:
            found = self._decode(token)
            if found is None or not found.not_before <= unix_seconds < found.expires:
                return None
            self._remember(token, found)
        elif not found.not_before <= unix_seconds < found.expires:
            del self._verified[token]
            return None
        return found.identity

    def signing_job(self, user: str, revision: int, unix_seconds: float, /) -> "SignToken":
        """Return the work that creates a token, which expires after the time to live."""
        expires = math.floor(unix_seconds + self._ttl_seconds)
        return SignToken(self, user, revision, expires)

    def sign(self, user: str, revision: int, expires: int) -> str:
        """Return a new token, from any thread; raises StatusError if it cannot be signed."""
        key = self._keys.signing
        if key is None:
            raise StatusError(errors.TOKEN_VERIFY_ONLY)
        claims = {"exp": expires, "revision": revision, "username": user}
        payload = json.dumps(claims, separators=(",", ":")).encode()
        try:
            return self._signatures.encode(payload, key, self._keys.method)
        except InvalidKeyError:
            # The key's curve does not belong to the method.
            raise StatusError(INVALID_KEY) from None

    def _remember(self, token: str, checked: _VerifiedToken) -> None:
        if len(token) > VERIFIED_CHARACTERS_MAX:
            return
        if len(self._verified) >= VERIFIED_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[token] = checked

    def _decode(self, token: str) -> _VerifiedToken | None:
        """Return the claims of a token with a valid signature; None for any other text."""
        # PyJWT accepts base64 padding, etcd does not.
        if len(token) > TOKEN_CHARACTERS_MAX or "=" in token:
            return None
        try:
            payload = self._signatures.decode(token, self._keys.checking, self._methods)
            claims = json.loads(
                payload.decode(),
                parse_int=_number,
                parse_float=_number,
                parse_constant=_number,
            )
            return _parse_claims(claims)
        except (PyJWTError, ValueError, RecursionError):
            return None


def _algorithm(method: str, usual: Algorithm) -> Algorithm:
    """Return PyJWT's algorithm for a method, which does not warn of weak keys at each use."""
    if isinstance(usual, HMACAlgorithm):
        return _Secret(usual.hash_alg)
    if isinstance(usual, RSAPSSAlgorithm):
        return _RsaPss(usual.hash_alg)
    if isinstance(usual, RSAAlgorithm):
        return _Rsa(usual.hash_alg)
    assert method not in HMAC + RSA
    return usual


def _number(text: str) -> float:
    """Return a number as Go parses it: a 64-bit float; a number out of range is an error."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("not a finite number")
    return number


def _parse_claims(claims: object) -> _VerifiedToken:
    """Return a token's identity and dates from its claims; raises ValueError for other claims."""
    if not isinstance(claims, dict):
        raise ValueError("claims are an object")
    user, revision = claims.get("username"), claims.get("revision")
    if not isinstance(user, str) or not isinstance(revision, float):
        raise ValueError("a token has a username, which is a string, and a revision, a number")
    # Go decodes lone surrogates as the replacement character.
    identity = TokenIdentity(_LONE_SURROGATE.sub("\ufffd", user), _revision(revision))
    return _VerifiedToken(identity, _date(claims, "nbf", -math.inf), _date(claims, "exp", math.inf))


def _revision(number: float) -> int:
    """Convert a number to an unsigned one of 64 bits, as Go does on amd64.

    Go's result for a number out of range differs on other processors, but only an owner of the
    signing key can make a token with such a number.
    """
    if -_INT64 <= number < _UINT64:
        return int(number) % _UINT64
    return _INT64


def _date(claims: dict[str, object], name: str, absent: float) -> float:
    """Return a date in whole seconds; raises ValueError if it is no number.

    0 counts as absent, and a date beyond Go's range as long ago.
    """
    number = claims.get(name, 0.0)
    if not isinstance(number, float):
        raise ValueError("a date is a number")
    if not number:
        return absent
    return math.floor(number) if number < _DATE_MAX else -math.inf


@dataclass(slots=True, frozen=True, repr=False)
class SignToken:
    """A job of the pool: create a token for a user."""

    tokens: JwtTokens
    user: str
    revision: int
    expires: int

    def run(self, files: Files) -> str:  # noqa: ARG002
        """Return the token; raises StatusError without a usable signing key."""
        return self.tokens.sign(self.user, self.revision, self.expires)
