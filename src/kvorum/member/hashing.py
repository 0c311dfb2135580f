"""The hash of all keys at a revision, by which members compare what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from google_crc32c import value as crc32c

from kvorum.backend.buckets import KEY
from kvorum.member.jobs import Place
from kvorum.member.parts import done
from kvorum.mvcc.hashes import HashKV

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.parts import Part

_HASH_OF_NOTHING = crc32c(KEY)


class Hashed(NamedTuple):
    """A hash, and the revision of the store when it was asked for."""

    found: HashKV
    store_revision: int


def hash_kv(member: Member, revision: int) -> Part[Hashed]:
    """Hash the keys at a revision, 0 for the current one; raises StatusError."""
    while True:
        store = member.store
        current = store.revision
        if revision < 0:
            return Hashed(HashKV(_HASH_OF_NOTHING, revision, store.compacted_revision), current)
        asked = store.hash_kv(revision)
        if isinstance(asked, HashKV):
            return Hashed(asked, current)
        try:
            value: int = yield from done(Place.HELPER, asked)
        finally:
            store.hash_ended(asked)
        # If a snapshot was installed meanwhile, nobody knows which database was read.
        if member.store is store:
            return Hashed(HashKV(value, asked.revision, asked.compact_revision), current)
