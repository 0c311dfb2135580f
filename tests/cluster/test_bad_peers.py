"""Strangers at the peer port: refused or bounded, and reported once.

Connections go straight to where a member listens. While they last, the cluster serves.
"""

import http.client
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import MappingProxyType

import pytest

from tests.cluster.load import load
from tests.cluster.members import PEER_PORT, Cluster, Member
from tests.etcd import chosen
from tests.waiting import WAIT_SECONDS_MAX, until

MEBIBYTE = 1 << 20
MEMORY_BYTES_MAX = 200 * MEBIBYTE
Answer = tuple[int, str]


@pytest.fixture
def cluster(patient: Cluster) -> Cluster:
    """Members among which only a stranger could cause an election."""
    return patient


def ask(
    member: Member,
    method: str,
    target: str,
    headers: Mapping[str, str] = MappingProxyType({}),
    body: bytes | None = None,
) -> Answer:
    """Make a request at a member's peer port."""
    connection = http.client.HTTPConnection(member.host, PEER_PORT, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request(method, target, body, headers)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace").strip()
    finally:
        connection.close()


def peer_headers(cluster: Cluster, source: Member, target: Member) -> dict[str, str]:
    """Return what a member says about itself when it asks another."""
    return {
        "X-Server-From": f"{source.id:x}",
        "X-Server-Version": str(chosen()) if cluster.make == "etcd" else "3.7.3",
        "X-Min-Cluster-Version": "3.0.0",
        "X-Etcd-Cluster-ID": f"{target.state().header.cluster_id:x}",
        "X-Raft-To": f"{target.id:x}",
        "X-PeerURLs": source.peer_url,
    }


@contextmanager
def begun(
    member: Member, method: str, target: str, headers: Mapping[str, str]
) -> Iterator[socket.socket]:
    """Send the head of a request, and leave the rest to the block."""
    lines = [f"{method} {target} HTTP/1.1", f"Host: {member.host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    with socket.create_connection((member.host, PEER_PORT)) as connection:
        connection.settimeout(WAIT_SECONDS_MAX)
        connection.sendall("\r\n".join([*lines, "", ""]).encode())
        yield connection


def resident_bytes(member: Member) -> int:
    assert member.process is not None
    lines = Path(f"/proc/{member.process.pid}/status").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith("VmRSS:")]
    return int(line.split()[1]) * 1024


@contextmanager
def undisturbed(cluster: Cluster, member: Member) -> Iterator[None]:
    """The cluster serves under load while the block runs; no member ends or takes much memory."""
    cluster.settle()
    term = cluster.leader().term()
    before = resident_bytes(member)
    with load(cluster, clerks=2) as work:
        work.await_progress(5)
        yield
        work.await_progress()
        assert resident_bytes(member) < before + MEMORY_BYTES_MAX
    now = cluster.leader().term()
    assert now == term, f"an election: term {now} after {term}"


def test_strangers_are_refused_with_the_reason(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.others(leader)[0]
    headers = peer_headers(cluster, follower, leader)
    streams = "/raft/stream/message"
    with undisturbed(cluster, leader):
        for name, value, answer in (
            ("X-Etcd-Cluster-ID", "1234", (412, "cluster ID mismatch")),
            ("X-Raft-To", "1234", (412, "to field mismatch")),
            ("X-Server-Version", "2.3.0", (412, "incompatible version")),
            ("X-Min-Cluster-Version", "9.0.0", (412, "incompatible version")),
        ):
            changed = headers | {name: value}
            assert ask(leader, "GET", f"{streams}/{follower.id:x}", changed) == answer
            if name != "X-Raft-To":
                assert ask(leader, "POST", "/raft", changed, b"") == answer
        for method, target, body, answer in (
            ("GET", f"{streams}/1234", None, (404, "error sender not found")),
            ("GET", f"/raft/stream/unknown/{follower.id:x}", None, (404, "invalid path")),
            ("POST", "/raft", b"\xff\xff\xff", (400, "error unmarshalling raft message")),
        ):
            assert ask(leader, method, target, headers, body) == answer
        assert ask(leader, "POST", "/raft/snapshot", headers, b"nonsense")[0] == 400
        assert ask(leader, "GET", "/nothing")[0] == 404
        assert ask(leader, "DELETE", "/raft")[0] == 405


# A real etcd reports each.
@pytest.mark.parametrize("make", ["kvorum"], indirect=True, scope="module")
def test_a_stranger_that_insists_is_told_of_once(cluster: Cluster) -> None:
    leader = cluster.leader()
    follower = cluster.others(leader)[0]
    wrong = peer_headers(cluster, follower, leader) | {"X-Etcd-Cluster-ID": "5678"}
    size = leader.log_size()
    for _ in range(50):
        refused = ask(leader, "GET", f"/raft/stream/message/{follower.id:x}", wrong)
        assert refused == (412, "cluster ID mismatch")
    assert leader.logged("cluster ID mismatch", size) == 1


def test_garbage(cluster: Cluster) -> None:
    leader = cluster.leader()
    with undisturbed(cluster, leader):
        for garbage in (
            bytes(4096),
            b"GET / HTTP/9.9\r\n\r\n",
            b"\x16\x03\x01\x02",
            b"a" * MEBIBYTE,
        ):
            with (
                socket.create_connection((leader.host, PEER_PORT)) as connection,
                suppress(ConnectionError),
            ):
                connection.settimeout(WAIT_SECONDS_MAX)
                connection.sendall(garbage)
                connection.shutdown(socket.SHUT_WR)
                while connection.recv(MEBIBYTE):
                    pass


# A real etcd reads them into memory whole.
@pytest.mark.parametrize("make", ["kvorum"], indirect=True, scope="module")
@pytest.mark.parametrize("target", ["/raft", "/raft/snapshot"])
def test_bodies_without_an_end(cluster: Cluster, target: str) -> None:
    leader = cluster.leader()
    follower = cluster.others(leader)[0]
    headers = peer_headers(cluster, follower, leader) | {"Transfer-Encoding": "chunked"}
    chunk = b"%x\r\n%b\r\n" % (MEBIBYTE, bytes(MEBIBYTE))
    with undisturbed(cluster, leader), begun(leader, "POST", target, headers) as connection:
        with suppress(OSError):
            for _ in range(300):
                connection.sendall(chunk)
        # Refused while it went on; or broken off, so that even the reason is lost.
        with suppress(ConnectionError):
            assert connection.recv(10).startswith(b"HTTP/1.1 4")


def test_a_reader_that_does_not_read(cluster: Cluster) -> None:
    """It takes the place of a follower's streams and sleeps; the follower takes it back."""
    leader = cluster.leader()
    follower = cluster.others(leader)[0]
    headers = peer_headers(cluster, follower, leader)
    with undisturbed(cluster, leader), ExitStack() as open_streams:
        for kind in ("message", "msgapp"):
            stream = begun(leader, "GET", f"/raft/stream/{kind}/{follower.id:x}", headers)
            connection = open_streams.enter_context(stream)
            assert connection.recv(12) == b"HTTP/1.1 200"
        # More than the sockets between hold, and no more: all of it makes the members wait.
        for number in range(16):
            leader.put(b"large/%d" % (number % 10), bytes(MEBIBYTE))
        revision = leader.revision()
        until("the follower has everything", lambda: follower.revision() >= revision)
