"""Requests that take long, while the members go on hearing from each other: no election."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.client import Client
from tests.cluster.members import Cluster, Member, running_cluster

KEYS = 500_000
LEASED_KEYS = 100_000
IN_ONE_TRANSACTION = 1000
SILENCE_SECONDS_MAX = 0.3
# The timeouts that users have.
FLAGS = (
    "--heartbeat-interval=100",
    "--election-timeout=1000",
    f"--max-txn-ops={IN_ONE_TRANSACTION}",
    "--quota-backend-bytes=8589934592",
)

pytestmark = [pytest.mark.campaign, pytest.mark.timeout(900)]


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def make(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def large(make: str, tmp_path: Path) -> Iterator[Cluster]:
    with running_cluster(tmp_path, make, 3, *FLAGS) as cluster:
        yield cluster


def fill(member: Member, prefix: bytes, keys: int, lease: int = 0) -> None:
    """Put many keys, in transactions, a few of them at a time."""
    waiting = []
    for first in range(0, keys, IN_ONE_TRANSACTION):
        puts = [
            pb.RequestOp(
                request_put=pb.PutRequest(key=b"%b%07d" % (prefix, number), value=b"v", lease=lease)
            )
            for number in range(first, first + IN_ONE_TRANSACTION)
        ]
        waiting.append(member.client.begin("KV/Txn", pb.TxnRequest(success=puts), 60))
        if len(waiting) > 5:
            waiting.pop(0).result()
    for call in waiting:
        call.result()


class Writer(threading.Thread):
    """Puts one key after the other until it is told to end."""

    def __init__(self, member: Member) -> None:
        super().__init__()
        self._client = Client(member.address)
        self._ending = threading.Event()

    def run(self) -> None:
        while not self._ending.is_set():
            self._client.ask("KV/Put", pb.PutRequest(key=b"written", value=bytes(100)))

    def end(self) -> None:
        self._ending.set()
        self.join()
        self._client.close()


def range_everything(member: Member) -> None:
    request = pb.RangeRequest(key=b"keys/", range_end=b"keys0").SerializeToString()
    # The answer is not parsed here, as that would hold up the network of the test.
    assert len(member.client.ask_bytes("/etcdserverpb.KV/Range", request, 120)) > KEYS * 10


def delete_everything(member: Member) -> None:
    request = pb.DeleteRangeRequest(key=b"keys/", range_end=b"keys0")
    assert member.answer("KV/DeleteRange", request, timeout=120).deleted == KEYS


def revoke_lease(member: Member) -> None:
    member.answer("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=7), timeout=120)
    request = pb.RangeRequest(key=b"leased/", range_end=b"leased0", count_only=True)
    assert member.answer("KV/Range", request).count == 0


def save_snapshot(member: Member) -> None:
    pieces = member.client.pieces("Maintenance/Snapshot", pb.SnapshotRequest(), 300)
    assert sum(len(piece.blob) for piece in pieces) > KEYS * 10


WORK: tuple[Callable[[Member], None], ...] = (
    range_everything,
    save_snapshot,
    delete_everything,
    revoke_lease,
)


def test_nobody_misses_a_heartbeat(large: Cluster, make: str) -> None:
    first = large[0]
    first.answer("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=7, TTL=10_000))
    fill(first, b"keys/", KEYS)
    fill(first, b"leased/", LEASED_KEYS, 7)
    large.catch_up()
    leader = large.leader()
    term = leader.term()
    links = [large.network.link(leader.node, follower.node) for follower in large.others(leader)]
    silence: dict[str, float] = {}
    writer = Writer(leader)
    writer.start()
    for work in WORK:
        for link in links:
            link.listen()
        work(leader)
        silence[work.__name__] = max(link.silence_seconds_max for link in links)
    writer.end()
    large.catch_up()
    terms = {member.term() for member in large}
    print(make, terms, silence)  # noqa: T201
    assert terms == {term}
    if make == "kvorum":
        assert max(silence.values()) < SILENCE_SECONDS_MAX, silence
