"""Loads that are too much: writes that wait and fail, watchers that do not read, slow networks."""

import queue
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.members import MAKES, Cluster, new_cluster, running_cluster
from tests.kvorum import running_kvorum
from tests.server.rpc.oracle import by_name
from tests.tools.doctor.examining import Found, client_of, of_endpoints
from tests.waiting import until

WRITES = 150
WATCHERS = 15
# A page of metrics may be as old as a second.
INTERVAL = "1200ms"


@pytest.mark.long
@pytest.mark.parametrize("make", MAKES)
def test_writes_that_wait_and_fail(tmp_path: Path, make: str) -> None:
    with running_cluster(tmp_path, make, 3, "--unsafe-no-fsync") as cluster:
        leader = cluster.leader()
        for other in cluster.others(leader):
            other.kill()
        begun: list[grpc.Future] = []

        def examined() -> Found:
            begun.extend(
                leader.client.begin("KV/Put", pb.PutRequest(key=b"%d" % number))
                for number in range(WRITES)
            )
            flags = ("--hash=false", "--command-timeout=100ms")
            return of_endpoints(leader.address, *flags, interval=INTERVAL)

        seen: Found = {}

        def are_pending(found: Found) -> bool:
            pending = found.get("proposals-pending")
            return pending is not None and pending[0]["evidence"]["proposals_pending"] >= 100

        def is_seen() -> bool:
            found = examined()
            if are_pending(found):
                seen["proposals-pending"] = found["proposals-pending"]
            seen.update({name: found[name] for name in found.keys() & {"proposals-failing"}})
            return {"proposals-pending", "proposals-failing"} == seen.keys()

        until("writes wait, and fail", is_seen)
        for each in begun:
            each.cancel()


@pytest.mark.long
def test_watchers_that_do_not_read(tmp_path: Path) -> None:
    """Of ours alone: an etcd holds more in memory for a stream than a test can write."""
    with (
        running_kvorum(tmp_path / "data", "--unsafe-no-fsync") as server,
        client_of(server.address) as client,
        grpc.insecure_channel(server.address) as channel,
    ):
        for _ in range(20):
            client.put("key", b"v" * (1 << 20))
        method = by_name("Watch/Watch")
        requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        watch = channel.stream_stream(
            method.path, method.request.SerializeToString, method.response.FromString
        )
        # Nobody takes the answers.
        call = watch(iter(requests.get, None))
        for _ in range(WATCHERS):
            create = pb.WatchCreateRequest(key=b"key", start_revision=1)
            requests.put(pb.WatchRequest(create_request=create))

        def are_behind() -> bool:
            found = of_endpoints(server.address, interval=INTERVAL).get("watchers-slow")
            return found is not None and found[0]["evidence"]["slow_watchers"] > 10

        until("watchers are behind", are_behind)
        requests.put(None)
        call.cancel()


@pytest.fixture
def far_apart(tmp_path: Path) -> Iterator[Cluster]:
    flags = ("--unsafe-no-fsync", "--heartbeat-interval=500", "--election-timeout=5000")
    with new_cluster(tmp_path, "kvorum", 3, *flags) as cluster:
        for one in cluster:
            for other in cluster.others(one):
                cluster.network.slow(one.node, other.node, 0.15)
        for member in cluster:
            member.start()
        cluster.leader()
        yield cluster


@pytest.mark.campaign
def test_members_that_are_far_apart(far_apart: Cluster) -> None:
    """Members look how far apart they are every few seconds."""
    found = until(
        "it is told", lambda: of_endpoints(far_apart.leader().address).get("network-slow")
    )
    assert found[0]["evidence"]["round_trip_median_seconds"] > 0.15
