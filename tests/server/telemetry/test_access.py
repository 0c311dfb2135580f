"""The access log: a line for each call, nothing secret in any, bounded whatever happens."""

import http.client
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb import v3electionpb, v3lockpb
from kvorum.network.edge.interface import Request
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.config import ConfigError
from kvorum.server.rpc.interface import Clients
from kvorum.server.rpc.table import GATEWAY_KEY, NUMBERS, RPCS
from kvorum.server.telemetry import line_writer
from kvorum.server.telemetry.access import KEY_BYTES_MAX, WAIT_SECONDS, AccessLog
from kvorum.server.telemetry.line_writer import LineWriter, open_access_log, write_to
from tests.edges import EDGES
from tests.kvorum import running_kvorum
from tests.process.client import connected
from tests.server.rpc.harness import Harness
from tests.server.seams import RecordingLogger
from tests.waiting import WAIT_SECONDS_MAX

SECRET = "tell-nobody"
PUT = NUMBERS["/etcdserverpb.KV/Put"]
RANGE = NUMBERS["/etcdserverpb.KV/Range"]


class Kept:
    """Keeps what is written."""

    def __init__(self) -> None:
        self.data = b""

    def put(self, data: bytes, count: int) -> None:
        assert data.count(b"\n") == count
        self.data += data

    @property
    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data.decode().splitlines()]


def access_of(harness: Harness, one_in: int = 1, prefix: bytes = b"") -> Kept:
    """Have a server write an access log; return what it writes."""
    kept, member = Kept(), harness.member
    log = AccessLog(
        Clients(harness.edge),
        kept,
        (member.state.cluster.cluster_id, member.id),
        lambda: harness.now,
        lambda: 1_700_000_000.0 + harness.now,
        one_in=one_in,
        prefix=prefix,
    )
    harness.server.log_access(log)
    return kept


def shown(key: bytes) -> str:
    return key[:KEY_BYTES_MAX].decode(errors="backslashreplace")


# What a line says.


def _put(key: bytes) -> Message:
    return pb.PutRequest(key=key, value=SECRET.encode())


def _txn(key: bytes) -> Message:
    put = pb.RequestOp(request_put=pb.PutRequest(key=b"other", value=SECRET.encode()))
    compare = pb.Compare(key=key, value=SECRET.encode(), target=pb.Compare.VALUE)
    return pb.TxnRequest(compare=[compare], success=[put], failure=[put])


def _operation(key: bytes) -> Message:
    put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=SECRET.encode()))
    return pb.TxnRequest(success=[put])


REQUESTS: dict[str, Callable[[bytes], Message]] = {
    "KV/Put": _put,
    "KV/Range": lambda key: pb.RangeRequest(key=key),
    "KV/DeleteRange": lambda key: pb.DeleteRangeRequest(key=key, prev_kv=True),
    "KV/Txn": _txn,
}


@settings(max_examples=60, deadline=None)
@given(
    calls=st.lists(
        st.tuples(st.sampled_from([*REQUESTS]), st.binary(min_size=1, max_size=200)), max_size=5
    )
)
def test_each_call_is_a_line_without_its_values(calls: list[tuple[str, bytes]]) -> None:
    harness = Harness()
    kept = access_of(harness)
    answers = [harness.ask(name, REQUESTS[name](key)) for name, key in calls]
    harness.pass_time(2 * WAIT_SECONDS)
    assert SECRET.encode() not in kept.data
    assert not set(kept.data) & {*range(0x20), *range(0x7F, 0x100)} - {0x0A}
    for (name, key), answer, line in zip(calls, answers, kept.lines, strict=True):
        assert line["method"] == f"/etcdserverpb.{name}"
        assert line["key"] == shown(key)
        assert line.get("key_bytes") == (len(key) if len(key) > KEY_BYTES_MAX else None)
        if isinstance(answer, Status):
            assert line["code"] == answer.code.name
        else:
            assert (line["code"], line["revision"]) == ("OK", answer.header.revision)
        assert line["took_us"] >= 0 and line["remote"].startswith("127.0.0.1:")
        assert line["ts"].startswith("2023-11-14T")


@given(requests=st.lists(st.tuples(st.integers(0, len(RPCS) - 1), st.binary(max_size=40))))
def test_any_bytes_are_a_line(requests: list[tuple[int, bytes]]) -> None:
    kept = Kept()
    log = AccessLog(NOWHERE, kept, (1, 2), lambda: 1.0, lambda: 1.0, one_in=1, prefix=b"")
    log.receive([(number, method, data, None) for number, (method, data) in enumerate(requests)])
    log.reply([(number, data) for number, (_, data) in enumerate(requests)])
    log.flush()
    assert [line["method"] for line in kept.lines] == [RPCS[method].path for method, _ in requests]


class _Nowhere:
    """Clients of whom nothing is known."""

    def remote(self, _call: int) -> str:
        return ""

    def certificate_name(self, _call: int) -> str:
        return ""


NOWHERE = _Nowhere()

OTHERS: dict[str, Callable[[bytes], Message]] = {
    "etcdserverpb.KV/Txn": _operation,
    "v3lockpb.Lock/Lock": lambda key: v3lockpb.LockRequest(name=key),
    "v3lockpb.Lock/Unlock": lambda key: v3lockpb.UnlockRequest(key=key),
    "v3electionpb.Election/Campaign": lambda key: v3electionpb.CampaignRequest(
        name=key, value=SECRET.encode()
    ),
    "v3electionpb.Election/Proclaim": lambda key: v3electionpb.ProclaimRequest(
        leader=v3electionpb.LeaderKey(name=key), value=SECRET.encode()
    ),
    "v3electionpb.Election/Leader": lambda key: v3electionpb.LeaderRequest(name=key),
    "v3electionpb.Election/Resign": lambda key: v3electionpb.ResignRequest(
        leader=v3electionpb.LeaderKey(name=key)
    ),
}


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("length", [3, 127, 128, 300])
def test_keys_of_other_calls(name: str, length: int) -> None:
    kept, key = Kept(), b"k" * length
    log = AccessLog(NOWHERE, kept, (1, 2), lambda: 1.0, lambda: 1.0, one_in=1, prefix=b"")
    log.receive([(1, NUMBERS[f"/{name}"], OTHERS[name](key).SerializeToString(), None)])
    log.reply([(1, b"")])
    log.flush()
    (line,) = kept.lines
    assert line["key"] == shown(key) and SECRET not in str(line)


def test_of_users_only_their_names_are_told() -> None:
    harness = Harness()
    kept = access_of(harness)
    harness.ask("Auth/UserAdd", pb.AuthUserAddRequest(name="root", password=SECRET))
    harness.ask("Auth/RoleAdd", pb.AuthRoleAddRequest(name="root"))
    harness.ask("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user="root", role="root"))
    harness.ask("Auth/AuthEnable", pb.AuthEnableRequest())
    bad = pb.AuthenticateRequest(name="root", password=SECRET + "!")
    assert isinstance(harness.ask("Auth/Authenticate", bad), Status)
    login = harness.ask("Auth/Authenticate", pb.AuthenticateRequest(name="root", password=SECRET))
    token = {"token": login.token.encode()}
    harness.ask("KV/Put", pb.PutRequest(key=b"k", value=SECRET.encode()), token)
    harness.ask("KV/Put", pb.PutRequest(key=b"k"))
    harness.ask("KV/Put", pb.PutRequest(key=b"k"), {"token": b"made.up"})
    watch = harness.open("Watch/Watch", token)
    harness.pass_time(1.0)
    assert SECRET.encode() not in kept.data and login.token.encode() not in kept.data
    found = [(line["method"].split("/")[2], line.get("user"), line["code"]) for line in kept.lines]
    assert found == [
        ("UserAdd", None, "OK"),
        ("RoleAdd", None, "OK"),
        ("UserGrantRole", None, "OK"),
        ("AuthEnable", None, "OK"),
        ("Authenticate", None, "INVALID_ARGUMENT"),
        ("Authenticate", None, "OK"),
        ("Put", "root", "OK"),
        ("Put", None, "INVALID_ARGUMENT"),
        ("Put", None, "UNAUTHENTICATED"),
    ]
    assert kept.lines[0]["name"] == kept.lines[4]["name"] == "root"
    create = pb.WatchCreateRequest(key=b"w")
    watch.send(pb.WatchRequest(create_request=create))
    watch.send(pb.WatchRequest(create_request=create))
    harness.pass_time(1.0)
    watch.cancel()
    harness.pass_time(1.0)
    opened, ended = kept.lines[len(found) :]
    assert (opened["stream"], opened["user"], opened["key"]) == ("opened", "root", "w")
    assert (ended["stream"], ended["user"], ended["code"]) == ("ended", "root", "CANCELLED")
    assert ended["took_us"] == 2_000_000 and "code" not in opened
    change = pb.AuthUserChangePasswordRequest(name="root", password=SECRET)
    harness.ask("Auth/UserChangePassword", change, token)
    harness.pass_time(1.0)
    assert (kept.lines[-1]["user"], kept.lines[-1]["name"]) == ("root", "root")
    assert SECRET.encode() not in kept.data


def test_streams_and_calls_of_the_gateway() -> None:
    harness = Harness()
    kept = access_of(harness)
    harness.open("Lease/LeaseKeepAlive").cancel()
    stream = harness.open("Lease/LeaseKeepAlive")
    for _ in range(3):
        stream.send(pb.LeaseKeepAliveRequest(ID=7))
    harness.ask("KV/Range", pb.RangeRequest(key=b"a"), {GATEWAY_KEY: b"*/*"})
    harness.end()
    found = [(line.get("stream"), line.get("via"), line.get("code")) for line in kept.lines]
    assert sorted(found, key=str) == sorted(
        [
            ("ended", None, "CANCELLED"),
            ("opened", None, None),
            (None, "gateway", "OK"),
            ("ended", None, "UNAVAILABLE"),
        ],
        key=str,
    )


# Which calls.


@pytest.mark.parametrize("one_in", [0, 1, 2, 7, 100])
def test_samples_are_fair_to_calls_that_alternate(one_in: int) -> None:
    kept, calls = Kept(), 20_000
    log = AccessLog(NOWHERE, kept, (1, 2), lambda: 1.0, lambda: 1.0, one_in=one_in, prefix=b"")
    requests: list[Request] = [(n, (PUT, RANGE)[n % 2], b"\x0a\x01k", None) for n in range(calls)]
    for start in range(0, calls, 50):
        log.receive(requests[start : start + 50])
        log.reply([(call, b"") for call, *_ in requests[start : start + 50]])
    log.flush()
    expected = calls / max(one_in, 1) / 2
    for method in (PUT, RANGE):
        found = sum(line["method"] == RPCS[method].path for line in kept.lines)
        assert abs(found - expected) <= 2 + expected / 50


KEYS = st.binary(max_size=3).map(lambda data: bytes(b"ab\xff"[each % 3] for each in data))


@given(key=KEYS, range_end=KEYS | st.just(b"\0"), prefix=KEYS.filter(bool))
def test_a_prefix_chooses_calls_that_touch_it(key: bytes, range_end: bytes, prefix: bytes) -> None:
    kept = Kept()
    log = AccessLog(NOWHERE, kept, (1, 2), lambda: 1.0, lambda: 1.0, one_in=1, prefix=prefix)
    ranges = [pb.RangeRequest(key=key, range_end=range_end), pb.RangeRequest(key=key)]
    put = pb.PutRequest(key=key, value=prefix)
    log.receive([(n, RANGE, each.SerializeToString(), None) for n, each in enumerate(ranges)])
    log.receive([(2, PUT, put.SerializeToString(), None)])
    log.receive([(3, NUMBERS["/etcdserverpb.Cluster/MemberList"], b"", None)])
    log.reply([(n, b"") for n in range(4)])
    log.flush()

    is_under = key.startswith(prefix)
    # The last of the keys that begin so, for all that these examples can tell.
    last = prefix + b"\xff" * 8
    is_crossed = bool(range_end) and key <= last and (range_end == b"\0" or range_end > prefix)
    expected = [is_under or is_crossed, is_under, is_under]
    if not key:
        expected = [False] * 3
    assert len(kept.lines) == sum(expected)


def test_a_prefix_chooses_streams_by_their_first_message() -> None:
    harness = Harness()
    kept = access_of(harness, prefix=b"/a/")
    for key in (b"/a/b", b"/b"):
        create = pb.WatchCreateRequest(key=key)
        harness.open("Watch/Watch").send(pb.WatchRequest(create_request=create))
    harness.open("Watch/Watch")
    harness.end()
    assert [(line["key"], line["stream"]) for line in kept.lines] == [
        ("/a/b", "opened"),
        ("/a/b", "ended"),
    ]


# Where lines go.


def test_a_reader_that_is_too_slow_costs_lines_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(line_writer, "WAITING_BYTES_MAX", 1000)
    reading, writing = os.pipe()
    logger = RecordingLogger()
    writer = LineWriter(write_to(writing))
    # More than the pipe takes, and then more than may wait.
    writer.put(b"x" * 1000, 1)
    os.set_blocking(writing, True)
    full = b"y" * 500 + b"\n"
    for _ in range(1000):
        writer.put(full, 1)
    writer.warn_of_drops(logger, 0.0)
    writer.warn_of_drops(logger, 1.0)
    ((message, fields),) = logger.lines
    assert "dropped lines of the access log" in message and fields["lines"] == fields["total"]
    # What was taken arrives once it is read.
    reader = threading.Thread(
        target=lambda: [None for _ in iter(lambda: os.read(reading, 999), b"")]
    )
    reader.start()
    writer.stop()
    os.close(writing)
    reader.join()
    os.close(reading)


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    logger = RecordingLogger()
    writer = LineWriter(write_to(full))
    writer.put(b"a line\nanother\n", 2)
    writer.stop()
    writer.warn_of_drops(logger, 0.0)
    assert logger.lines[0][1]["lines"] == 2
    os.close(full)


def test_a_file_is_rotated(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    rules = '{"maxsize":1}'
    given = {"access-log": str(path), "log-rotation-config-json": rules}
    writer = open_access_log(make_config(given))
    assert writer is not None
    for _ in range(3):
        writer.put(b"x" * 600_000 + b"\n", 1)
    writer.stop()
    assert sorted(each.stat().st_size for each in tmp_path.iterdir()) == [600_001] * 3
    assert open_access_log(make_config({})) is None
    with pytest.raises(ConfigError, match="couldn't open sink"):
        open_access_log(make_config({"access-log": str(tmp_path)}))


@pytest.mark.parametrize("edge", EDGES)
def test_a_server_writes_it(edge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVORUM_EDGE", edge)
    path = tmp_path / "access.log"
    with running_kvorum(tmp_path / "data", f"--access-log={path}") as server:
        with connected(server.address) as client:
            client.put(b"\x00k", SECRET.encode())
        connection = http.client.HTTPConnection(server.address, timeout=WAIT_SECONDS_MAX)
        connection.request("POST", "/v3/kv/range", '{"key":"AGs="}')
        assert connection.getresponse().status == 200
        connection.close()
    put, read = [json.loads(line) for line in path.read_text().splitlines()]
    assert (put["method"], put["key"], put["revision"]) == ("/etcdserverpb.KV/Put", "\x00k", 2)
    assert (read["method"], read["via"], read["code"]) == (
        "/etcdserverpb.KV/Range",
        "gateway",
        "OK",
    )
    assert put["remote"].startswith("127.0.0.1:") and put["remote"] != read["remote"]
    assert path.stat().st_mode & 0o777 == 0o600
