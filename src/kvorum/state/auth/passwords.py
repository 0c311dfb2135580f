"""Hash passwords with bcrypt, as jobs for a process: a hash takes tens of milliseconds.

This module accepts and refuses what Go's bcrypt does, because etcd may have created a cluster's
users. None of its texts, including the `repr` of a job, shows a password, a salt or a hash.
"""

import hashlib
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import bcrypt

from kvorum.api import errors
from kvorum.api.errors import StatusError
from kvorum.storage.backend.environment import Environments
from kvorum.storage.files import Files

COST_MIN: Final = 4
COST_MAX: Final = 31
PASSWORD_BYTES_MAX: Final = 72
"""The bytes that bcrypt uses; a longer password is refused, so that no user relies on its end."""
SALT_BYTES: Final = 16
SECONDS_AT_COST_MIN: Final = 0.0008
"""Roughly the processor time of a hash at the lowest cost; the next cost takes twice as long."""

_ALPHABET: Final = b"./ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_TO_BCRYPT: Final = bytes.maketrans(
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/", _ALPHABET
)
_SALT_CHARACTERS: Final = 22
_HASH_CHARACTERS: Final = 31
_HASH_BYTES_MIN: Final = 59
_NO_MINOR: Final = 3


def _seconds(cost: int) -> float:
    return SECONDS_AT_COST_MIN * (1 << (cost - COST_MIN))


def draw_salt(random_below: Callable[[int], int]) -> bytes:
    """Return a new salt; `random_below` must be unpredictable."""
    return random_below(1 << (8 * SALT_BYTES)).to_bytes(SALT_BYTES, "big")


@dataclass(slots=True, frozen=True, repr=False)
class HashPassword:
    """A job: compute the hash to store for a password.

    The salt is `SALT_BYTES` long and must have no other use.
    """

    password: str
    cost: int
    salt: bytes

    @property
    def seconds(self) -> float:
        """The processor time that it takes, roughly."""
        return _seconds(self.cost)

    def run(self, _files: Files, _environments: Environments | None = None) -> bytes:
        """Return the hash; raises StatusError if the password is too long."""
        return _hash(self.password, self.cost, self.salt)


@dataclass(slots=True, frozen=True, repr=False)
class CheckPassword:
    """A job: compare a password with a stored hash, in constant time."""

    hash: bytes
    password: str

    @property
    def seconds(self) -> float:
        """The processor time that it takes, roughly."""
        stored = _canonical(self.hash)
        return 0.0 if stored is None else _seconds(int(stored[4:6]))

    def run(self, _files: Files, _environments: Environments | None = None) -> bool:
        """Return whether the password matches; none matches a stored text that is no hash.

        As in Go, only the beginning of a password that is too long counts.
        """
        stored = _canonical(self.hash)
        if stored is None:
            return False
        try:
            return bcrypt.checkpw(self.password.encode()[:PASSWORD_BYTES_MAX], stored)
        except ValueError:
            # The salt has characters outside bcrypt's alphabet.
            return False


def hash_now(password: str, cost: int, seed: bytes) -> bytes:
    """Return the hash for a plain password in the log, as etcd wrote it before 3.5.

    The seed, which must be the same on all members, determines the salt, so that all members store
    the same hash. Raises StatusError if the password is too long.
    """
    return _hash(password, cost, hashlib.sha256(seed).digest()[:SALT_BYTES])


def _hash(password: str, cost: int, salt: bytes) -> bytes:
    assert COST_MIN <= cost <= COST_MAX and len(salt) == SALT_BYTES
    data = password.encode()
    if len(data) > PASSWORD_BYTES_MAX:
        raise StatusError(errors.PASSWORD_TOO_LONG)
    encoded = b64encode(salt).translate(_TO_BCRYPT)[:_SALT_CHARACTERS]
    return bcrypt.hashpw(data, b"$2a$%02d$%b" % (cost, encoded))


def _canonical(stored: bytes) -> bytes | None:
    """Return a hash in the form that Go writes; None if Go would not accept it as a hash.

    An administrator may have stored hashes that another program made. Go accepts any minor version
    or none, and ignores bytes after the hash and the unused bits at the salt's end.
    """
    if len(stored) < _HASH_BYTES_MIN or stored[:1] != b"$" or stored[1:2] > b"2":
        return None
    at = _NO_MINOR if stored[2:3] == b"$" else _NO_MINOR + 1
    cost = stored[at : at + 2]
    rest = stored[at + 3 : at + 3 + _SALT_CHARACTERS + _HASH_CHARACTERS]
    if not cost.isdigit() or not COST_MIN <= int(cost) <= COST_MAX:
        return None
    if len(rest) < _SALT_CHARACTERS + _HASH_CHARACTERS:
        return None
    last = _ALPHABET.find(rest[_SALT_CHARACTERS - 1 : _SALT_CHARACTERS])
    if last < 0:
        return None
    salt = rest[: _SALT_CHARACTERS - 1] + _ALPHABET[last & 0x30 : (last & 0x30) + 1]
    return b"$2a$%b$%b" % (cost, salt + rest[_SALT_CHARACTERS:])
