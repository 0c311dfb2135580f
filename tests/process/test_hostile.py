"""Hostile HTTP requests at every kind of listener: each is answered or closed, and no more.

Real servers, one on the usual edge and one on the pure one, are sent requests made of pieces that
have broken parsers. None may end the server, and none may raise an unforeseen error, which would be
in the log. `make properties` tries others; KVORUM_EXAMPLES says how many.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.waits import ProposeChange, Steps
from kvorum.network.edge import native_rows
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.state.apply.callers import MEMBER
from kvorum.state.membership.documents import MemberDocument, encode_member
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.kvorum import Kvorum, running_kvorum
from tests.ports import held_port
from tests.server.rpc.harness import Harness
from tests.waiting import WAIT_SECONDS_MAX

EXAMPLES = int(os.environ.get("KVORUM_EXAMPLES", "25"))
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
LISTENERS = ("clients", "metrics", "members")


class Place(NamedTuple):
    """A server, its addresses, and the headers by which members identify themselves."""

    server: Kvorum
    addresses: dict[str, tuple[str, int]]
    peer_headers: bytes


class Sent(NamedTuple):
    """A request, and whether it has the headers of a member."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    is_member: bool


@pytest.fixture(scope="module", params=["", "python"], ids=["usual", "python"])
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Place]:
    with ExitStack() as stack:
        peers, metrics = (stack.enter_context(held_port()) for _ in range(2))
        directory = tmp_path_factory.mktemp("hostile")
        flags = [
            f"--listen-peer-urls=http://127.0.0.1:{peers}",
            f"--listen-metrics-urls=http://127.0.0.1:{metrics}",
            "--enable-pprof",
        ]
        with ExitStack() as running:
            with pytest.MonkeyPatch.context() as patch:
                if request.param:
                    patch.setenv("KVORUM_EDGE", request.param)
                server = running.enter_context(running_kvorum(directory, *flags))
            port = int(server.address.rpartition(":")[2])
            ports = dict(zip(LISTENERS, (port, metrics, peers), strict=True))
            addresses = {name: ("127.0.0.1", each) for name, each in ports.items()}
            head = exchange(addresses["members"], b"GET /members HTTP/1.1\r\nHost: a\r\n\r\n")
            lines = head.partition(b"\r\n\r\n")[0].lower().split(b"\r\n")
            (cluster,) = [line for line in lines if line.startswith(b"x-etcd-cluster-id")]
            said = b"X-Server-Version: 3.7.1\r\nX-Min-Cluster-Version: 3.0.0\r\n" + cluster
            yield Place(server, addresses, said + b"\r\n")
        assert not [line for line in server.lines if "unforeseen error" in line]


def exchange(address: tuple[str, int], data: bytes) -> bytes:
    """Send these bytes and nothing more; return the head of the answer, empty if there is none."""
    with socket.create_connection(address, timeout=WAIT_SECONDS_MAX) as connection:
        received = b""
        with suppress(ConnectionError):
            connection.sendall(data)
            while b"\r\n\r\n" not in received.removeprefix(CONTINUE):
                piece = connection.recv(1 << 16)
                if not piece:
                    break
                received += piece
        return received.removeprefix(CONTINUE)


def check_alive(place: Place) -> None:
    for name, address in place.addresses.items():
        target = b"/version" if name == "members" else b"/health"
        answer = exchange(address, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        assert answer.startswith(b"HTTP/1.1 200"), (name, answer, place.server.lines[-3:])
    assert place.server.process.poll() is None


PATHS = [
    *("/", "/health", "/livez", "/readyz/data_corruption", "/metrics", "/version", "/debug/vars"),
    *("/debug/pprof/", "/debug/pprof/profile", "/members", "/members/hashkv", "/leases"),
    *("/members/promote/", "/leases/internal", "/downgrade/enabled", "/raft", "/raft/probing"),
    *("/raft/snapshot", "/raft/stream/message/", "/raft/stream/msgapp/", "/v3/kv/range"),
]
PIECES = ["//", "/", "[", "]", "[::1", "%", "%zz", "%00", "%2f", "?", "&", "=", "#", ";", ":", "@"]
PIECES += ["http://", "http://[", "..", "*", "-1", "0x1", "1_0", "9" * 5000, "a" * 3000, "{", '"']
PIECES += [
    "é",
    "\u2028",
    "\x7f",
    "exclude",
    "seconds=nan",
    "seconds=1e999",
    "verbose",
    "18446744073709551616",
]
BODIES = [b"", b"{}", b"null", b"[" * 60_000, b'{"revision":' + b"9" * 5000 + b"}", b"\xff" * 64]
BODIES += [b'{"revision":1e400}', b'{"revision":"\\ud800"}', b"\0" * 8, b"\xff" * 8 + b"a"]
BODIES += [b"\0\0\0\0\0\0\0\x05abcde", b"\x0a\x00", b"\x08" + b"\x80" * 20 + b"\x01"]
NAMES = ["host", "accept-encoding", "origin", "x-server-from", "x-raft-to", "x-peerurls", "expect"]
NAMES += ["x-server-version", "x-etcd-cluster-id", "x-min-cluster-version", "upgrade", "connection"]
VALUES = [
    "",
    "[",
    "[::1",
    "é",
    "gzip",
    "http://[",
    "http://a:\uff11,",
    "9" * 5000,
    "3.7.1",
    "-",
    "a,b",
]
VALUES += [
    "http://[::1:1",
    "http://a:99999999999999999999",
    "1" * 17,
    "HTTP2-Settings",
    "100-continue",
]

targets = st.builds(
    lambda path, rest: path + "".join(rest),
    st.sampled_from([*PATHS, ""]),
    st.lists(st.sampled_from(PIECES), max_size=4),
)
headers = st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=3)
bodies = st.sampled_from(BODIES) | st.binary(max_size=40)
methods = st.sampled_from(["GET", "POST", "PUT", "HEAD", "OPTIONS", "DELETE", "PATCH", "A"])
requests = st.builds(Sent, methods, targets, headers, bodies, st.booleans())


@pytest.mark.parametrize("listener", LISTENERS)
@settings(max_examples=EXAMPLES)
@example(request=Sent("GET", "//[", [], b"", False))
@example(request=Sent("GET", "//[", [("host", "[")], b"", True))
@example(request=Sent("POST", "/members/promote/" + "9" * 5000, [], b"", False))
@example(request=Sent("GET", "/members/hashkv", [], b"[" * 60_000, False))
@example(request=Sent("GET", "/health?" + "&" * 5000, [], b"", False))
@given(request=requests)
def test_requests(place: Place, listener: str, request: Sent) -> None:
    method, target, headers, body, is_member = request
    target = target.replace("profile", "profile?seconds=0")
    head = f"{method} {target} HTTP/1.1\r\n" + "".join(f"{n}: {v}\r\n" for n, v in headers)
    data = head.encode() + (place.peer_headers if is_member else b"")
    data += b"content-length: %d\r\n\r\n%b" % (len(body), body)
    answer = exchange(place.addresses[listener], data)
    assert not answer.startswith(b"HTTP/1.1 500"), answer
    check_alive(place)


# Members at odd places.


def call(server: Kvorum, name: str, request: Any, response: Any) -> Any:
    with grpc.insecure_channel(server.address) as channel:
        method = channel.unary_unary(
            f"/etcdserverpb.{name}", type(request).SerializeToString, response.FromString
        )
        return method(request, timeout=WAIT_SECONDS_MAX, wait_for_ready=True)


def check_serves(server: Kvorum, url: str) -> None:
    """Check that a server lists a member at this address, and takes a put."""
    listed = call(server, "Cluster/MemberList", pb.MemberListRequest(), pb.MemberListResponse)
    assert [url] in [list(each.peerURLs) for each in listed.members]
    for number in range(3):
        put = pb.PutRequest(key=b"k", value=b"%d" % number)
        call(server, "KV/Put", put, pb.PutResponse)


def test_a_member_whose_address_is_not_ascii(tmp_path: Path) -> None:
    add = pb.MemberAddRequest(peerURLs=["http://\u00e9:2380"], isLearner=True)
    with running_kvorum(tmp_path) as server:
        call(server, "Cluster/MemberAdd", add, pb.MemberAddResponse)
        check_serves(server, "http://%C3%A9:2380")
    with running_kvorum(tmp_path) as server:
        check_serves(server, "http://%C3%A9:2380")
    assert not [line for line in server.lines if "unforeseen error" in line]


@pytest.mark.parametrize(
    "url", ["http://\u00e9:2380", "http://a:1?\u00e9", "nonsense", "http://[:1"]
)
def test_a_member_whose_address_was_stored_as_it_was_given(tmp_path: Path, url: str) -> None:
    harness = Harness(RealFiles(), LmdbEnvironments(native_rows()), str(tmp_path / "member"))
    learner = MemberDocument(7, (url,), is_learner=True)
    change = ConfChange(ChangeType.ADD_LEARNER_NODE, 7, encode_member(learner))

    def steps() -> Steps:
        assert (yield ProposeChange(change)) is None
        return None

    harness.member.start(None, MEMBER, steps())
    harness.until(lambda: harness.member.state.cluster.member(7) is not None)
    harness.end()
    with running_kvorum(tmp_path) as server:
        check_serves(server, url)
    assert not [line for line in server.lines if "unforeseen error" in line]
