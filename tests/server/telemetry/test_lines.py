"""Lines that operators wait for, compared with those of a real etcd that was used alike."""

import json
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.log_lines import size_text
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.telemetry.request_stats import stats_of
from tests import etcd
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.server.rpc.harness import by_name
from tests.waiting import WAIT_SECONDS_MAX, until

FLAGS = ("--snapshot-count=5", "--quota-backend-bytes=400000", "--log-level=debug")
VALUE = b"x" * 100_000

EXPECTED = [
    ("starting an etcd server", "info"),
    ("serving peer traffic", "info"),
    ("published local member to cluster through raft", "info"),
    ("now serving peer/client/metrics", "info"),
    ("serving client traffic insecurely; this is strongly discouraged!", "info"),
    ("ready to serve client requests", "info"),
    ("added member", "info"),
    ("set initial cluster version", "info"),
    ("triggering snapshot", "info"),
    ("saved snapshot to disk", "info"),
    ("finished scheduled compaction", "info"),
    ("sending database snapshot to client", "info"),
    ("successfully sent database snapshot to client", "info"),
    ("defragmenting", "info"),
    ("finished defragmenting directory", "info"),
    ("removed member", "info"),
    ("updated member", "info"),
    ("added a user", "info"),
    ("created a role", "info"),
    ("request stats", "debug"),
    ("received signal; shutting down", "info"),
    ("closing etcd server", "info"),
    ("closed etcd server", "info"),
]
FIELDS_OF = {
    "added member",
    "set initial cluster version",
    "saved snapshot to disk",
    "triggering snapshot",
    "finished scheduled compaction",
    "sending database snapshot to client",
    "finished defragmenting directory",
    "removed member",
    "updated member",
    "added a user",
    "created a role",
    "request stats",
}
"""Lines whose fields are etcd's, all of them."""


def use(address: str, has: Callable[[str], bool]) -> None:
    """Do what is logged; waits for what is done in the background."""
    with grpc.insecure_channel(address) as channel:

        def ask(name: str, request: Message) -> Any:
            method = by_name(name)
            call = channel.unary_unary(
                method.path, type(request).SerializeToString, method.response.FromString
            )
            return call(request, timeout=WAIT_SECONDS_MAX)

        for number in range(8):
            ask("KV/Put", pb.PutRequest(key=b"k%d" % number))
        ask("KV/Compact", pb.CompactionRequest(revision=5))
        until("the compaction was logged", lambda: has("finished scheduled compaction"))
        snapshot = channel.unary_stream(
            "/etcdserverpb.Maintenance/Snapshot",
            pb.SnapshotRequest.SerializeToString,
            pb.SnapshotResponse.FromString,
        )
        assert list(snapshot(pb.SnapshotRequest(), timeout=WAIT_SECONDS_MAX))
        ask("Maintenance/Defragment", pb.DefragmentRequest())
        puts = (pb.PutRequest(key=b"big%d" % number, value=VALUE) for number in range(100))
        with pytest.raises(grpc.RpcError, match="database space exceeded"):
            deque((ask("KV/Put", put) for put in puts), maxlen=0)
        list_alarms = pb.AlarmRequest(action=pb.AlarmRequest.GET)
        until("the alarm was raised", lambda: bool(ask("Maintenance/Alarm", list_alarms).alarms))
        (alarm,) = ask("Maintenance/Alarm", list_alarms).alarms
        disarm = pb.AlarmRequest.DEACTIVATE
        ask(
            "Maintenance/Alarm",
            pb.AlarmRequest(action=disarm, memberID=alarm.memberID, alarm=alarm.alarm),
        )
        urls = ["http://127.0.0.1:3"]
        added = ask("Cluster/MemberAdd", pb.MemberAddRequest(peerURLs=urls, isLearner=True))
        ask("Cluster/MemberRemove", pb.MemberRemoveRequest(ID=added.member.ID))
        own = added.header.member_id
        urls = ["http://127.0.0.1:2"]
        ask("Cluster/MemberUpdate", pb.MemberUpdateRequest(ID=own, peerURLs=urls))
        ask("Auth/UserAdd", pb.AuthUserAddRequest(name="somebody", password="secret"))
        ask("Auth/RoleAdd", pb.AuthRoleAddRequest(name="something"))


def entries(path: Path) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
    assert found
    return found


@pytest.mark.long
def test_lines_are_those_of_a_real_etcd(tmp_path: Path) -> None:
    if not etcd.is_target():
        pytest.skip("older versions log other lines")
    theirs, ours = tmp_path / "theirs.log", tmp_path / "ours.log"
    for running, path in ((running_etcd, theirs), (running_kvorum, ours)):
        outputs = f"--log-outputs=stderr,{path}"
        with running(tmp_path / path.stem, *FLAGS, outputs) as server:
            use(server.address, lambda text, path=path: text in path.read_text())  # type: ignore[misc]
    logged: list[dict[tuple[str, str], dict[str, Any]]] = [{}, {}]
    for lines, path in zip(logged, (theirs, ours), strict=True):
        for entry in entries(path):
            lines.setdefault((entry["msg"], entry["level"]), entry)
    for each in EXPECTED:
        assert each in logged[0], f"etcd does not log {each}"
        assert each in logged[1], f"not logged: {each}"
    for each in EXPECTED:
        if each[0] in FIELDS_OF:
            assert set(logged[0][each]) - {"logger"} <= set(logged[1][each]), each
    # This one etcd logs only where its first check let a request pass; the others it had once.
    for message in (
        "message exceeded backend quota; raising alarm",
        "alarm raised",
        "alarm disarmed",
    ):
        assert (message, "warn") in logged[1], message
    text = ours.read_text()
    assert "secret" not in text and "xxxx" not in text
    # Of raft's own lines, those of an election.
    assert any(entry.get("logger") == "raft" for entry in entries(ours))


# Sizes as Go's library for them writes them, tried there.
SIZES = {0: "0 B", 9: "9 B", 10: "10 B", 999: "999 B", 1000: "1.0 kB", 20480: "20 kB"}
SIZES |= {9949: "9.9 kB", 9950: "10 kB", 900_000: "900 kB", 1_234_567: "1.2 MB", 2**31: "2.1 GB"}


@pytest.mark.parametrize(("count", "text"), SIZES.items())
def test_sizes(count: int, text: str) -> None:
    assert size_text(count) == text


SECRET = b"tell-nobody"
OPERATIONS = st.lists(
    st.sampled_from(
        [
            pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=SECRET)),
            pb.RequestOp(request_range=pb.RangeRequest(key=b"k")),
            pb.RequestOp(
                request_txn=pb.TxnRequest(
                    success=[pb.RequestOp(request_put=pb.PutRequest(key=b"k", value=SECRET))]
                )
            ),
        ]
    ),
    max_size=4,
)


@given(success=OPERATIONS, failure=OPERATIONS, succeeded=st.booleans())
def test_what_is_told_of_a_transaction(
    success: list[pb.RequestOp], failure: list[pb.RequestOp], succeeded: bool
) -> None:
    compare = pb.Compare(key=b"k", target=pb.Compare.VALUE, value=SECRET)
    request = pb.TxnRequest(compare=[compare], success=success, failure=failure)
    answer = pb.TxnResponse(succeeded=succeeded).SerializeToString()
    count, size, _, answered, text = stats_of(
        NUMBERS["/etcdserverpb.KV/Txn"], request.SerializeToString(), answer
    )
    chosen = success if succeeded else failure
    assert (count, size) == (len(chosen), sum(each.ByteSize() for each in chosen))
    assert answered == len(answer)
    assert SECRET.decode() not in text and 'key: "k"' in text


@given(st.binary(max_size=40), st.binary(max_size=40), st.sampled_from(["Range", "Put", "Txn"]))
def test_what_cannot_be_read_is_unknown(payload: bytes, answer: bytes, name: str) -> None:
    assert len(stats_of(NUMBERS[f"/etcdserverpb.KV/{name}"], payload, answer)) == 5
