"""Planted bugs of rarer calls: range streams, hashes, renewals during a leadership transfer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from unittest.mock import patch

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.api.requests import Range
from kvorum.member import corruption, hashing, leases, peer_requests
from kvorum.member.jobs import ExecutorKind
from kvorum.member.member import Member
from kvorum.member.parts import Part, run_job
from kvorum.member.procedures import Exclusive
from kvorum.member.waits import FlushedTo, Signal, Signalled, Steps
from kvorum.server.rpc import kv, maintenance
from kvorum.state.apply.callers import Caller
from kvorum.state.mvcc.hashes import HashKV
from kvorum.state.mvcc.history import bound
from kvorum.state.mvcc.ranges import RangeOptions, RangeResult


@contextmanager
def keep_the_pin_of_a_stream_that_is_broken_off() -> Iterator[None]:
    """Pin the revision of a range stream, and release it only after the last piece."""
    original = kv._range_stream

    def range_stream(member: Member, caller: Caller, request: Range) -> Steps:
        pins, main = member.state.store._pins, member.state.store.revision
        pins.hold(main)
        status = yield from original(member, caller, request)
        pins.release(main)
        return status

    with patch.object(kv, "_range_stream", range_stream):
        yield


@contextmanager
def overwrite_the_key_at_the_cursor() -> Iterator[None]:
    """Let the key where the next piece starts overwrite the last key of the sent piece."""
    original = kv._read

    def read(options: RangeOptions) -> Part[RangeResult]:
        found = yield from original(options)
        if not found.more or not found.kvs:
            return found
        last = KeyValue.FromString(found.kvs[-1])
        last.key += b"\0"
        kvs = [*found.kvs[:-1], last.SerializeToString()]
        return RangeResult(kvs, found.count, found.more, found.revision)

    with patch.object(kv, "_read", read):
        yield


@contextmanager
def hash_a_state_that_was_replaced() -> Iterator[None]:
    """Choose the revision of a hash before waiting for its turn; a snapshot may come meanwhile."""

    def hash_kv(member: Member, revision: int) -> Part[hashing.Hashed]:
        store = member.state.store
        current = store.revision
        asked = store.hash_kv(revision)
        if isinstance(asked, HashKV):
            return hashing.Hashed(asked, current)
        try:
            if member.state.backend.has_pending_rows(bound(member.state.store.revision)):
                yield FlushedTo(member.state.applied)
            while member.procedures.is_running(Exclusive.HASH):
                yield Signalled(Signal.HASHED)
        except GeneratorExit:
            store.finish_hash(asked)
            raise
        member.procedures.begin_exclusive(Exclusive.HASH)
        ended = partial(hashing._finish_hash, member, store, asked)
        value: int = yield from run_job(ExecutorKind.HELPER, asked, ended)
        found = HashKV(value, asked.revision, asked.compact_revision)
        return hashing.Hashed(found, current)

    with ExitStack() as patches:
        for module in (maintenance, peer_requests, corruption):
            patches.enter_context(patch.object(module, "hash_kv", hash_kv))
        yield


@contextmanager
def renew_amid_a_transfer() -> Iterator[None]:
    """Renew leases without a leadership check during a leadership transfer."""
    original = leases.is_confirmed

    def is_confirmed(member: Member) -> bool:
        return bool(member.replica.node.raft.lead_transferee) or original(member)

    with patch.object(leases, "is_confirmed", is_confirmed):
        yield
