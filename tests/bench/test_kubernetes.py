"""The load of `bench.kubernetes` and its duties, at a small size: nothing is lost or undone."""

from math import inf
from pathlib import Path

from bench.duties import Compactions, Defragment, Lists
from bench.kubernetes import LEASES, PAGE_KEYS, RANGE, Clients, objects
from bench.load import call, fill
from kvorum.api.pb import etcdserverpb as pb
from tests.kvorum import running_kvorum

UPDATES = 200


def test_every_update_is_answered_watched_and_counted_once(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server:
        fill(server.address, objects(UPDATES + PAGE_KEYS + 1, UPDATES))
        clients = Clients([server.address], UPDATES)
        before = clients.revision
        lists = Lists(clients, 10, 0)
        duties = [Compactions(clients, 0.2, 0).step, Defragment(clients, 0.4, 0).step, lists.step]
        seen = clients.offer(UPDATES, 1, duties)
        clients.close()
        leases = pb.RangeRequest(key=LEASES, range_end=LEASES[:-1] + b".")
        found = pb.RangeResponse.FromString(call(server.address, RANGE, leases.SerializeToString()))
    assert len(seen.updates) == len(seen.events) == UPDATES
    assert not seen.conflicts
    # On a busy machine nothing may be answered between two compactions: the second has no revision
    # of its own.
    assert not [each for each in seen.refusals if "has been compacted" not in each]
    assert all(0 <= latency < inf for latency in seen.updates)
    assert all(0 <= latency < inf for latency in seen.events)
    assert [kv.version for kv in found.kvs] == [2] * UPDATES
    assert clients.revision == before + UPDATES
    ran = {each.name for each in seen.activities}
    assert ran == {"compaction", "defragment", "list"} and len(seen.pages) >= 1
    assert list(seen.dues()) == sorted(seen.dues()) and seen.dues()[-1] < 1
