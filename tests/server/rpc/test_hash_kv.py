"""HashKV after compactions, beside a real etcd's."""

from pathlib import Path
from typing import Any

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import EdgeEventKind
from tests.etcd import is_target
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle, running_oracle


def compacted_twice(server: Harness | Oracle, *, physical: bool) -> list[tuple[int, int]]:
    """Return hashes and compacted revisions at the second of two compactions, and now."""
    for number in range(40):
        server.ask("KV/Put", pb.PutRequest(key=b"%d" % (number % 7), value=b"%d" % number))
    server.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"3"))
    for revision in (12, 30):
        server.ask("KV/Compact", pb.CompactionRequest(revision=revision, physical=physical))
    found: list[Any] = [
        server.ask("Maintenance/HashKV", pb.HashKVRequest(revision=revision))
        for revision in (30, 0)
    ]
    return [(each.hash, each.compact_revision) for each in found]


def test_hashes_after_two_compactions_are_those_of_etcd(tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("3.5.1 keeps no hashes of compactions")
    with running_oracle(tmp_path) as etcd:
        # Were its first compaction still in progress, it would not keep the hash of the second.
        expected = compacted_twice(etcd, physical=True)
    assert compacted_twice(Harness(), physical=False) == expected


def test_calls_behind_a_compaction_end_with_their_clients() -> None:
    harness = Harness(compaction_pause_seconds=1e6)
    for number in range(5):
        harness.ask("KV/Put", pb.PutRequest(key=b"key", value=b"%d" % number))
    harness.ask("KV/Compact", pb.CompactionRequest(revision=3))
    calls = [
        harness.begin("/etcdserverpb.KV/Compact", pb.CompactionRequest(revision=4, physical=True)),
        harness.begin("/etcdserverpb.Maintenance/HashKV", pb.HashKVRequest(revision=4)),
    ]
    harness.pass_time(5.0)
    assert not harness.edge.replies.keys() & set(calls)
    # The edge tells the end of such calls only.
    assert harness.edge.waiting >= set(calls)
    harness.arrive((), [(EdgeEventKind.ENDED, call, None) for call in calls])
    assert not harness.member.procedures._calls
