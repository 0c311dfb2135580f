"""The same history in a real etcd: the same revisions, ranges and hashes.

Both go on through all examples: a hash is over everything there ever was. What etcd answers before
a compaction is what the compaction's hash must be; 3.5.1 deletes a tombstone at exactly the
compacted revision, and keeps no hash of a compaction.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.hashes import HashDatabase, HashKV, HashRows
from kvorum.state.mvcc.ranges import RangeOptions
from kvorum.state.mvcc.restore import restore_store
from kvorum.storage.backend import open_backend
from kvorum.storage.backend.buckets import AUTH, AUTH_REVISION, CLUSTER, CLUSTER_VERSION, MEMBERS
from kvorum.storage.backend.memory import MemoryEnvironments
from kvorum.storage.files.memory import MemoryFiles
from tests.etcd import is_target, running_etcd
from tests.state.mvcc.machine import KEYS, LEASES, OPTIONS, VALUES, Recorder
from tests.state.mvcc.model import is_within

PUTS = st.tuples(st.just("put"), KEYS, VALUES, LEASES)
DELETES = st.tuples(st.just("delete"), KEYS, st.one_of(KEYS, st.sampled_from([b"", b"\0"])))
TXNS = st.tuples(
    st.just("txn"),
    st.lists(PUTS, max_size=4, unique_by=lambda put: put[1]),
    st.lists(DELETES, max_size=2),
)
COMPACTIONS = st.tuples(st.just("compact"), st.integers(0, 12))
RANGES = st.tuples(st.just("range"), OPTIONS, st.integers(0, 12))
HASHES = st.tuples(st.just("hash"), st.integers(0, 12))
HISTORIES = st.lists(
    st.one_of(PUTS, PUTS, DELETES, TXNS, COMPACTIONS, RANGES, HASHES, HASHES),
    min_size=20,
    max_size=40,
)


class Twins:
    """An etcd and a store that are given the same."""

    def __init__(self, address: str) -> None:
        self.channel = grpc.insecure_channel(address)
        self.files = MemoryFiles()
        self.files.make_directory("/database")
        self.environments = MemoryEnvironments(self.files)
        self.backend = open_backend(self.files, self.environments, "/database")
        self.lessor = Lessor(self.backend, PRODUCTION)
        self.store = restore_store(self.backend, self.lessor, Recorder(), PRODUCTION)
        for lease in (7, 8):
            self.ask("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=600))
            self.lessor.grant(lease, 600, 0.0)
        self.copy_identity()

    def ask(self, method: str, request: Any) -> Any:
        name = type(request).__name__.replace("Request", "Response")
        call = self.channel.unary_unary(
            f"/etcdserverpb.{method}", type(request).SerializeToString, getattr(pb, name).FromString
        )
        return call(request)

    def copy_identity(self) -> None:
        """Store what a new member of a cluster of one stores."""
        (member,) = self.ask("Cluster/MemberList", pb.MemberListRequest()).members
        fields = {"id": member.ID, "peerURLs": list(member.peerURLs), "name": member.name}
        version = b"3.5.0"
        if is_target():
            fields["clientURLs"] = list(member.clientURLs)
            version = b"3.7.0"
        self.backend.put(AUTH, AUTH_REVISION, (1).to_bytes(8, "big"))
        self.backend.put(CLUSTER, CLUSTER_VERSION, version)
        self.backend.put(MEMBERS, b"%x" % member.ID, compact_json(fields))
        self.backend.set_conf_state(compact_json({"voters": [member.ID], "auto_leave": False}))

    def flush(self) -> None:
        stage = self.backend.seal()
        if stage is not None:
            commit = self.backend.take_staged(stage.run(self.files, self.environments))
            self.backend.take_committed(commit.run(self.files, self.environments))

    def put(self, key: bytes, value: bytes, lease: int) -> None:
        request = pb.PutRequest(key=key, value=value, lease=lease)
        revision = self.ask("KV/Put", request).header.revision
        assert self.store.put(key, value, lease) == revision

    def delete(self, key: bytes, end: bytes) -> None:
        response = self.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=key, range_end=end))
        transaction = self.store.begin()
        assert len(transaction.delete_range(key, end)) == response.deleted
        assert transaction.commit() == response.header.revision

    def txn(self, puts: list[Any], deletes: list[Any]) -> None:
        operations = [
            pb.RequestOp(request_put=pb.PutRequest(key=key, value=value, lease=lease))
            for _, key, value, lease in puts
        ]
        # Of no key that the transaction puts: compacted at that very revision, etcd loses the put.
        chosen = [
            (key, end)
            for _, key, end in deletes
            if end in (b"", b"\0") and not any(is_within(put[1], key, end) for put in puts)
        ]
        operations[:0] = [
            pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=key, range_end=end))
            for key, end in chosen
        ]
        response = self.ask("KV/Txn", pb.TxnRequest(success=operations))
        transaction = self.store.begin()
        for key, end in chosen:
            transaction.delete_range(key, end)
        for _, key, value, lease in puts:
            transaction.put(key, value, lease)
        assert transaction.commit() == response.header.revision

    def compact(self, back: int) -> None:
        revision = self.store.revision - back
        if revision <= max(0, self.store.compacted_revision):
            return
        before = self.ask("Maintenance/HashKV", pb.HashKVRequest(revision=revision))
        everything = RangeOptions(b"\0", b"\0", revision=revision)
        is_any_alive = self.store.range(everything).count > 0
        self.ask("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))
        self.store.compact(revision)
        while self.store.compaction.is_pending:
            job = self.store.compaction.step()
            if job is not None:
                self.store.compaction.take_hash(job, job.run(self.files, self.environments))
        if is_any_alive:
            expected = HashKV(before.hash, revision, before.compact_revision)
            assert self.store.hash_kv(revision) == expected
        if is_target():
            kept = self.ask("Maintenance/HashKV", pb.HashKVRequest(revision=revision))
            theirs = HashKV(kept.hash, kept.hash_revision, kept.compact_revision)
            assert self.store.hash_kv(revision) == theirs

    def range(self, options: RangeOptions, back: int) -> None:
        revision = max(self.store.revision - back, self.store.compacted_revision, 1)
        options = options._replace(revision=revision)
        response = self.ask("KV/Range", pb.RangeRequest(**options._asdict()))
        result = self.store.range(options)
        assert (result.count, result.more) == (response.count, response.more)
        assert result.revision == response.header.revision
        if options.keys_only:
            for kv in response.kvs:
                kv.lease = 0 if options.sort_target != pb.RangeRequest.VALUE else kv.lease
        expected = [kv.SerializeToString() for kv in response.kvs]
        if options.sort_target == pb.RangeRequest.KEY or options.limit <= 0:
            # etcd's sort is not stable.
            assert sorted(result.kvs) == sorted(expected)
        if options.sort_target == pb.RangeRequest.KEY:
            assert result.kvs == expected

    def hash(self, back: int) -> None:
        # etcd 3.5.1 refuses the compacted revision itself.
        compacted = self.store.compacted_revision
        revision = max(self.store.revision - back, compacted + 1, 1)
        if revision > self.store.revision:
            return
        response = self.ask("Maintenance/HashKV", pb.HashKVRequest(revision=revision))
        job = HashRows.of_revision(self.backend, revision, compacted, PRODUCTION.hash_rows_per_scan)
        assert job.run(self.files, self.environments) == response.hash
        assert compacted == response.compact_revision


def compact_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    with running_etcd(Path(tmp_path_factory.mktemp("etcd"))) as etcd:
        pair = Twins(etcd.address)
        yield pair
        pair.channel.close()


@settings(
    max_examples=25,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(history=HISTORIES)
def test_the_same_history_gives_the_same_hashes(twins: Twins, history: list[Any]) -> None:
    for name, *arguments in history:
        getattr(twins, name)(*arguments)
    twins.put(b"last", b"", 0)
    twins.flush()
    twins.hash(0)


def test_the_hash_of_the_whole_database(twins: Twins) -> None:
    twins.put(b"a", b"1", 7)
    twins.compact(0)
    twins.put(b"b", b"2", 0)
    twins.delete(b"a", b"")
    twins.flush()
    expected = twins.ask("Maintenance/Hash", pb.HashRequest()).hash
    job = HashDatabase(
        twins.backend.directory, PRODUCTION.hash_rows_per_scan, PRODUCTION.view_scan_entries
    )
    assert job.run(twins.files, twins.environments) == expected
