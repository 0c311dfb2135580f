"""Clusters for comparisons: members on this machine, with the same flags and timeouts."""

import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import repeat
from pathlib import Path

import grpc

from bench.hosts import Host
from bench.load import call
from bench.servers import Server
from kvorum.api.pb.etcdserverpb import StatusResponse

STATUS = "/etcdserverpb.Maintenance/Status"
TIMEOUTS = ("--heartbeat-interval=100", "--election-timeout=1000")
WAIT_SECONDS_MAX = 600


class Cluster:
    """Several members of one kind."""

    def __init__(
        self, name: str, directory: Path, size: int, hosts: Sequence[Host] | None = None
    ) -> None:
        self.name = name
        directory.mkdir(parents=True)
        names = [f"m{number}" for number in range(size)]
        self.members = [
            Server(name, directory / each, *TIMEOUTS, host=host)
            for each, host in zip(names, hosts or repeat(None, size), strict=True)
        ]
        named = zip(names, self.members, strict=True)
        initial = ",".join(f"{each}={member.peer_url}" for each, member in named)
        for each, member in zip(names, self.members, strict=True):
            member.flags += [f"--name={each}", f"--initial-cluster={initial}"]

    def start(self) -> None:
        """Start all members, and wait until they are healthy."""
        for member in self.members:
            member.launch()
        for member in self.members:
            member.wait_until_healthy()

    def leader(self) -> Server:
        """Return the member that considers itself the leader."""
        deadline = time.monotonic() + WAIT_SECONDS_MAX
        while time.monotonic() < deadline:
            for member in self.members:
                found = status(member)
                if found is not None and found.leader == found.header.member_id:
                    return member
        raise SystemExit(f"{self.name}: nobody leads")

    def followers(self) -> list[Server]:
        """Return all members except the leader."""
        leader = self.leader()
        return [member for member in self.members if member is not leader]

    def applied(self) -> int:
        """Return the leader's applied index."""
        found = status(self.leader())
        return 0 if found is None else found.raftAppliedIndex

    def settle(self) -> None:
        """Wait until all members have reached the leader's applied index."""
        target = self.applied()
        for member in self.members:
            wait_for_index(member, target)

    def processor_seconds(self) -> float:
        """Return the processor time that all members together have used."""
        return sum(member.processor_seconds() for member in self.members)

    def anonymous_bytes(self) -> int:
        """Return the anonymous memory of all members together."""
        return sum(member.anonymous_bytes() for member in self.members)


def status(member: Server) -> StatusResponse | None:
    """Return a member's status; None if it does not answer."""
    try:
        return StatusResponse.FromString(call(member.address, STATUS, b""))
    except grpc.RpcError:
        return None


def wait_for_index(member: Server, index: int) -> None:
    """Wait until a member, which may still be starting, has applied an index."""
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while time.monotonic() < deadline:
        found = status(member)
        if found is not None and found.raftAppliedIndex >= index:
            return
        time.sleep(0.01)
    raise SystemExit(f"{member.name}: {member.address} has not applied entry {index}")


@contextmanager
def ended_cluster(cluster: Cluster) -> Iterator[Cluster]:
    """Kill the cluster's started members after the block."""
    with ExitStack() as stack:
        for member in cluster.members:
            stack.callback(member.kill)
        yield cluster


@contextmanager
def running_cluster(
    name: str, directory: Path, size: int, hosts: Sequence[Host] | None = None
) -> Iterator[Cluster]:
    """Run a cluster within the block, each member on its host if hosts are given."""
    with ended_cluster(Cluster(name, directory / name, size, hosts)) as cluster:
        cluster.start()
        yield cluster
