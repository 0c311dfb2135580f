"""The peer port against a real etcd's: the same requests get the same answers.

Both run at the same address, one after the other, so that ids are the same, too.
"""

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import pytest

from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.ports import held_ports
from tests.waiting import WAIT_SECONDS_MAX

INTERNAL = "/leases/internal"
COMPARED_HEADERS = ("content-type", "allow", "x-etcd-cluster-id", "x-content-type-options")


class Request(NamedTuple):
    method: str
    target: str
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


def ask(port: int, request: Request) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_SECONDS_MAX)
    try:
        connection.request(request.method, request.target, request.body, dict(request.headers))
        response = connection.getresponse()
        headers = {name.lower(): value for name, value in response.getheaders()}
        compared = {name: headers[name] for name in COMPARED_HEADERS if name in headers}
        return Answer(response.status, compared, response.read())
    except (http.client.RemoteDisconnected, ConnectionResetError):
        return Answer(0, {}, b"")
    finally:
        connection.close()


class Both(NamedTuple):
    """Where the answers of both are found, by the request."""

    etcd: dict[str, Answer]
    ours: dict[str, Answer]


def sender(cluster_id: str, **changes: str) -> dict[str, str]:
    """Headers of a member of the cluster, with changes; an empty one is left out."""
    headers = {
        "X-Server-From": "5",
        "X-Server-Version": "3.5.1",
        "X-Min-Cluster-Version": "3.0.0",
        "X-Etcd-Cluster-ID": cluster_id,
    } | {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in headers.items() if value}


def requests(cluster_id: str, local_id: int) -> Iterator[tuple[str, Request]]:
    good = sender(cluster_id)
    for path in (
        "/version",
        "/members",
        "/raft",
        "/raft/probing",
        "/raft/snapshot",
        "/raft/stream/message/5",
        "/leases",
        "/leases/internal",
        "/members/hashkv",
        "/members/promote/5",
        "/downgrade/enabled",
    ):
        for method in ("GET", "POST", "PUT", "DELETE"):
            # A stream would not end; a question for the rest of no lease ends etcd's handler.
            if (method, path) not in (("GET", "/raft/stream/message/5"), ("POST", INTERNAL)):
                yield f"{method} {path}", Request(method, path)
    for path in (
        "/",
        "/nosuch",
        "/members/nosuch",
        "/leases/nosuch",
        "/version/",
        "/raft/nosuch",
        "/metrics",
        "/health",
        "/v3/kv/range",
    ):
        yield f"unknown {path}", Request("GET", path)
        yield f"unknown POST {path}", Request("POST", path, body=b"{}")

    for name, path in (("pipeline", "/raft"), ("snapshot", "/raft/snapshot")):
        yield f"{name} without headers", Request("POST", path)
        for case, headers in {
            "of another cluster": sender("5"),
            "without cluster": sender(""),
            "too old": sender(cluster_id, X_Server_Version="2.9.0"),
            "too demanding": sender(cluster_id, X_Min_Cluster_Version="9.0.0"),
            "much newer": sender(cluster_id, X_Server_Version="3.9.0"),
            "good": good,
        }.items():
            yield f"{name} {case}", Request("POST", path, headers, b"garbage")
    heartbeat = encode_message(Message(MessageType.HEARTBEAT, to=local_id, sender=5, term=0))
    local = encode_message(Message(MessageType.HUP, to=local_id))
    yield "a local message", Request("POST", "/raft", good, local)
    yield "a heartbeat of long ago", Request("POST", "/raft", good, heartbeat)
    body = len(heartbeat).to_bytes(8, "big") + heartbeat
    yield "a snapshot that is none", Request("POST", "/raft/snapshot", good, body)

    for kind in ("message", "msgapp"):
        path = f"/raft/stream/{kind}/5"
        to = {"X-Raft-To": f"{local_id:x}"}
        yield f"{kind} without headers", Request("GET", path)
        yield f"{kind} of another cluster", Request("GET", path, sender("5") | to)
        old = sender(cluster_id, X_Server_Version="2.9.0")
        yield f"{kind} too old", Request("GET", path, old | to)
        yield f"{kind} unknown sender", Request("GET", path, good | to)
        yield f"{kind} wrong receiver", Request("GET", path, good | {"X-Raft-To": "6"})
        yield f"{kind} invalid sender", Request("GET", f"/raft/stream/{kind}/xyz", good | to)
    for path in ("/raft/stream/nosuch/5", "/raft/stream/", "/raft/stream/message/"):
        yield f"stream {path}", Request("GET", path, good | {"X-Raft-To": f"{local_id:x}"})

    for path in ("/leases", "/leases/internal"):
        yield f"{path} garbage", Request("POST", path, body=b"\xff\xff\xff")
    yield "unknown lease", Request("POST", "/leases", body=b"\x08\x05")
    yield "rest of an unknown lease", Request("POST", "/leases/internal", body=b"\x0a\x02\x08\x05")
    for case, text in {
        "current": b'{"revision":0}',
        "empty object": b"{}",
        "garbage": b"\xff",
        "a list": b"[]",
        "null": b"null",
        "a text": b'{"revision":"1"}',
        "a fraction": b'{"revision":1.5}',
        "in the future": b'{"revision":99}',
    }.items():
        yield f"hash {case}", Request("GET", "/members/hashkv", body=text)
    same = {"X-Etcd-Cluster-ID": cluster_id}
    yield "hash of this cluster", Request("GET", "/members/hashkv", same, b"{}")
    for name in ("xyz", "", "-1", "99999999999999999999999", "7", str(local_id)):
        yield f"promote {name}", Request("POST", f"/members/promote/{name}")


def flags(peer: int, client: int) -> list[str]:
    return [
        f"--listen-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
        f"--initial-cluster=default=http://127.0.0.1:{peer}",
        f"--advertise-client-urls=http://127.0.0.1:{client}",
    ]


def answers(port: int) -> dict[str, Answer]:
    found = ask(port, Request("GET", "/members"))
    (member,) = json.loads(found.body)
    asked = dict(requests(found.headers["x-etcd-cluster-id"], member["id"]))
    return {name: ask(port, request) for name, request in asked.items()}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    directory: Path = tmp_path_factory.mktemp("peers")
    with held_ports(2) as (peer, client):
        with running_etcd(directory / "etcd", *flags(peer, client)):
            etcd = answers(peer)
        with running_kvorum(directory / "ours", *flags(peer, client)):
            ours = answers(peer)
    return Both(etcd, ours)


NAMES = [name for name, _ in requests("1", 1)]


def normal(body: bytes) -> bytes:
    """Replace what differs between two servers, and what 3.5.1 does not have."""
    body = re.sub(rb'"Now":"[^"]*"', b'"Now":"now"', body)
    body = re.sub(rb'"etcdserver":"[^"]*"', b'"etcdserver":"3.x"', body)
    body = re.sub(rb'"etcdcluster":"[^"]*"', b'"etcdcluster":"3.x"', body)
    if is_target():
        # Decided some time after the start.
        return re.sub(rb'"storage":"[^"]*"', b'"storage":"3.x"', body)
    body = re.sub(rb',"storage":"[^"]*"', b"", body)
    return re.sub(rb',"hash_revision":\d+', b"", body)


@pytest.mark.parametrize("number", range(len(NAMES)), ids=NAMES)
def test_answers_are_alike(both: Both, number: int) -> None:
    etcd, ours = list(both.etcd.values())[number], list(both.ours.values())[number]
    assert ours._replace(body=normal(ours.body)) == etcd._replace(body=normal(etcd.body))
