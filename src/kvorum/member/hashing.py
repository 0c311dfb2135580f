"""The hash of all keys at a revision, by which members compare their data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from google_crc32c import value as crc32c

from kvorum.member.jobs import ExecutorKind
from kvorum.member.parts import run_job
from kvorum.member.procedures import Exclusive
from kvorum.member.waits import FlushedTo, Signal, Signalled
from kvorum.state.mvcc.hashes import HashKV
from kvorum.state.mvcc.history import bound
from kvorum.storage.backend.buckets import KEY

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.parts import Part
    from kvorum.state.mvcc.hashes import HashRows
    from kvorum.state.mvcc.store import Store

_HASH_OF_NOTHING = crc32c(KEY)


class Hashed(NamedTuple):
    """A hash, and the store's revision at the time of the request."""

    found: HashKV
    store_revision: int


def hash_kv(member: Member, revision: int) -> Part[Hashed]:
    """Hash the keys at a revision, 0 for the current one; raises StatusError.

    A member computes one hash at a time: the helper runs one job at a time, and each job carries
    the rows written since the last flush.
    """
    store = member.state.store
    if revision < 0:
        nothing = HashKV(_HASH_OF_NOTHING, revision, store.compacted_revision)
        return Hashed(nothing, store.revision)
    # A compaction's own hash differs from a hash of the rows it leaves. A member that is slower
    # than others must not answer with the latter.
    while revision and member.state.store.compaction.is_hash_awaited(revision):
        yield Signalled(Signal.COMPACTED)
    store = member.state.store
    kept = store.compaction.hash_of(revision) if revision else None
    if kept is not None:
        return Hashed(kept, store.revision)
    store.readable(revision)
    while True:
        while member.procedures.is_running(Exclusive.HASH):
            yield Signalled(Signal.HASHED)
        if member.state.backend.has_pending_rows(bound(member.state.store.revision)):
            yield FlushedTo(member.state.applied)
            if member.procedures.is_running(Exclusive.HASH):
                continue
        store = member.state.store
        current = store.revision
        asked = store.hash_kv(revision)
        if isinstance(asked, HashKV):
            return Hashed(asked, current)
        member.procedures.begin_exclusive(Exclusive.HASH)
        value: int = yield from run_job(
            ExecutorKind.HELPER, asked, partial(_finish_hash, member, store, asked)
        )
        # After a snapshot's installation it is unknown which database the helper has read.
        if member.state.store is store:
            return Hashed(HashKV(value, asked.revision, asked.compact_revision), current)


def _finish_hash(member: Member, store: Store, asked: HashRows) -> None:
    """Let other hashes and compactions proceed, now that the helper no longer reads the rows."""
    member.procedures.finish_exclusive(Exclusive.HASH)
    store.finish_hash(asked)
    member.procedures.signal(Signal.HASHED)
