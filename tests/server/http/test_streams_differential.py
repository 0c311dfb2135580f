"""Streams of our gateway and of a real etcd's are the same, line by line and chunk by chunk."""

import base64
import hashlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.certificates import Authority, trusting
from tests.server.http.asking import Answer, Connection, Stream, ask, chunk, parsed
from tests.server.http.bodies import BY_PATH, TAILS, values
from tests.server.http.comparing import headers_of, seen, text_of
from tests.server.http.http2 import Http2Stream
from tests.server.http.servers import Both, metric, running_both, running_ours
from tests.server.http.streaming import AT_ONCE, Streams, spoken
from tests.server.http.talking import Talk, talking
from tests.server.http.texts import BLANKS
from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.runs import Lender
from tests.state.auth.servers import OURS_IS_ETCD
from tests.waiting import until

pytestmark = pytest.mark.timeout(0 if SEQUENCES > 1000 else 300)

KEEPALIVE, WATCH = BY_PATH["/v3/lease/keepalive"], BY_PATH["/v3/watch"]
WATCHERS = "etcd_debugging_mvcc_watcher_total"
FOO, BAR, BAZ = "Zm9v", "YmFy", "YmF6"


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Talk]:
    with talking(tmp_path_factory.mktemp("streams")) as found:
        yield found


@pytest.fixture
def both(talk: Talk) -> Iterator[Both]:
    """The two, empty before and after a test."""
    yield talk.both
    talk.reset()


def create(**fields: Any) -> str:
    return f'{{"create_request":{_written(fields)}}}'


def _written(fields: dict[str, Any]) -> str:
    return str(fields).replace("'", '"').replace("True", "true")


def end_revision(talk: Talk) -> int:
    return int(talk.say("/v3/kv/range", key=FOO)["header"]["revision"])


# Watch.


def test_a_watch_that_stays_open(both: Both, talk: Talk) -> None:
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(key=FOO, prev_kv=True))
        assert streams.check_head() == 200
        assert streams.check_line()["result"]["created"] is True
        talk.say("/v3/kv/put", key=FOO, value="MQ==")
        (event,) = streams.check_line()["result"]["events"]
        assert list(event) == ["kv"]
        talk.say("/v3/kv/put", key=FOO, value="Mg==")
        assert list(streams.check_line()["result"]["events"][0]) == ["kv", "prev_kv"]
        streams.say(create(key=BAR, range_end=BAZ))
        assert streams.check_line()["result"]["watch_id"] == "1"
        talk.say("/v3/kv/put", key=BAR)
        streams.check_line()
        streams.end()
        talk.say("/v3/kv/deleterange", key=FOO)
        assert streams.check_line()["result"]["events"][0]["type"] == "DELETE"


@pytest.mark.skipif(OURS_IS_ETCD, reason="etcd's answer waits")
def test_our_answer_does_not_wait_for_the_end_of_the_body(tmp_path: Path) -> None:
    with (
        running_ours(tmp_path / "data") as address,
        Stream(address, "/v3/watch") as stream,
        Stream(address, "/v3/lease/keepalive") as keepalive,
    ):
        stream.say(create(key=FOO))
        assert stream.line()["result"]["created"] is True
        ask(address, "/v3/kv/put", f'{{"key":"{FOO}"}}')
        assert stream.line()["result"]["events"]
        for number in ("7", "8"):
            keepalive.say(f'{{"ID":{number}}}')
            assert keepalive.line()["result"]["ID"] == number


def test_a_transaction_is_one_line(both: Both, talk: Talk) -> None:
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(key="AA==", range_end="AA=="))
        streams.end()
        streams.check_line()
        puts = [{"request_put": {"key": key, "value": "PCY+"}} for key in (FOO, BAR)]
        talk.say("/v3/kv/txn", success=[*puts, {"request_delete_range": {"key": BAZ}}])
        assert len(streams.check_line()["result"]["events"]) == 2


def test_filters(both: Both, talk: Talk) -> None:
    talk.say("/v3/kv/put", key=FOO)
    with Streams(both, "/v3/watch") as streams:
        for filters in (["NOPUT"], ["NODELETE"], [], [0, "NODELETE"]):
            streams.say(create(key=FOO, filters=filters, prev_kv=True))
        streams.end()
        streams.check_lines(4)
        talk.say("/v3/kv/put", key=FOO)
        found = _by_watcher(streams, 2)
        talk.say("/v3/kv/deleterange", key=FOO)
        assert (found, _by_watcher(streams, 2)) == (["1", "2"], ["0", "2"])


def _by_watcher(streams: Streams, count: int) -> list[str]:
    """Compare lines of several watchers, which may come in any order."""
    ours, theirs = (
        {line["result"].get("watch_id", "0"): line["result"]["events"] for line in lines}
        for lines in (
            [stream.line() for _ in range(count)] for stream in (streams.ours, streams.theirs)
        )
    )
    assert ours == theirs
    return sorted(ours)


def test_several_requests_in_one_chunk(both: Both) -> None:
    with Streams(both, "/v3/watch") as streams:
        cancel = '{"cancel_request":{"watch_id":"1"}}'
        ids = "".join(create(key=FOO, watch_id=each) for each in (5, 5, 0, 6))
        streams.say(create(key=FOO) + create(key=BAR) + cancel + ids)
        streams.end()
        found = [line["result"] for line in streams.check_lines(7)]
        assert found[2] == {"header": found[2]["header"], "watch_id": "1", "canceled": True}
        assert [each.get("watch_id", "0") for each in found] == ["0", "1", "1", "5", "-1", "2", "6"]


@pytest.mark.parametrize(
    "fields",
    [
        {"key": FOO, "start_revision": "-1"},
        {"key": FOO, "range_end": BAR},
        {"key": FOO, "range_end": FOO},
        {},
        {"key": "", "range_end": "AA=="},
    ],
    ids=str,
)
def test_odd_creates_are_answered_and_the_stream_goes_on(
    both: Both, talk: Talk, fields: dict[str, Any]
) -> None:
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(**fields))
        streams.check_line()
        streams.say(create(key=BAR, watch_id=7))
        streams.check_line()
        talk.say("/v3/kv/put", key=BAR)
        count = 2 if fields.get("range_end") == "AA==" else 1
        assert len(_by_watcher(streams, count)) == count


def test_progress(both: Both, talk: Talk) -> None:
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(key=FOO))
        streams.check_line()
        talk.say("/v3/kv/put", key=BAR)
        streams.say('{"progress_request":{}}')
        assert list(streams.check_line()["result"]) == ["header", "watch_id"]


def test_history(both: Both, talk: Talk) -> None:
    first = end_revision(talk) + 1
    for number in range(4):
        talk.say("/v3/kv/put", key=FOO, value=f"MT{number}=", prev_kv=True)
    talk.say("/v3/kv/deleterange", key=FOO)
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(key=FOO, start_revision=first + 1, prev_kv=True))
        streams.end()
        streams.check_line()
        assert len(streams.check_events(4)) == 4
        talk.say("/v3/kv/put", key=FOO)
        streams.check_line()


def test_compacted_history(both: Both, talk: Talk) -> None:
    for _ in range(3):
        talk.say("/v3/kv/put", key=FOO)
    revision = end_revision(talk)
    talk.say("/v3/kv/compaction", revision=revision - 1, physical=True)
    with Streams(both, "/v3/watch") as streams:
        streams.say(create(key=FOO, start_revision=revision - 2))
        streams.end()
        streams.check_line()
        found = streams.check_line()["result"]
        assert (found["canceled"], found["compact_revision"]) == (True, str(revision - 1))


def test_closing_the_connection_cancels_the_watch(both: Both) -> None:
    assert [metric(address, WATCHERS) for address in both] == [0, 0]
    streams = Streams(both, "/v3/watch")
    streams.say(create(key=FOO), create(key=BAR))
    streams.check_lines(2)
    assert [metric(address, WATCHERS) for address in both] == [2, 2]
    streams.close()
    for address in both:
        until("no watchers", lambda address=address: metric(address, WATCHERS) == 0)  # type: ignore[misc]


def test_a_watch_whose_time_is_over(both: Both) -> None:
    for request in (create(key=FOO), "{}", "broken"):
        with Streams(both, "/v3/watch", {"Grpc-Timeout": "1500m"}) as streams:
            streams.say(request)
            streams.end()
            status = streams.check_head()
            if request == create(key=FOO):
                streams.check_line()
            (last,) = streams.check_end()
            assert last["error"]["code"] == 4
            assert status == (200 if request == create(key=FOO) else 504)


def test_http2_needs_no_end_of_the_body(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    server = authority.issue("server")
    flags = (f"--cert-file={server.cert}", f"--key-file={server.key}")
    tls = trusting(authority.cert)
    plain = trusting(authority.cert)
    tls.set_alpn_protocols(["h2"])
    heard = []
    with running_both(tmp_path, *flags, scheme="https") as both:
        for address in both:
            with Http2Stream(address, "/v3/watch", tls) as stream:
                stream.say(create(key=FOO).encode())
                lines = [stream.line()]
                stream.say(create(key=BAR).encode(), is_last=True)
                lines.append(stream.line())
                ask(address, "/v3/kv/put", f'{{"key":"{FOO}"}}', tls=plain)
                lines.append(stream.line())
                assert stream.head is not None
                heard.append((headers_of(stream.head), [text_of("", each) for each in lines]))
            with Http2Stream(address, "/v3/lease/keepalive", tls) as stream:
                stream.say(b'{"ID":7}x', is_last=True)
                heard[-1][1].append(text_of("", stream.line()))
                assert stream.line() is None
    ours, theirs = heard
    assert ours == theirs


# Keep-alives.


def test_keepalives(both: Both, talk: Talk) -> None:
    talk.say("/v3/lease/grant", ID=7, TTL=3000)
    with Streams(both, "/v3/lease/keepalive") as streams:
        streams.say('{"ID":7}')
        assert streams.check_head() == 200
        assert streams.check_line()["result"]["TTL"] == "3000"
        streams.say('{"ID":"8"}{"ID":7}', "{}")
        found = streams.check_lines(3)
        assert [list(each["result"]) for each in found] == [
            ["header", "ID"],
            ["header", "ID", "TTL"],
            ["header"],
        ]
        streams.say('{"ID":', "7", "}")
        streams.check_line()
        streams.say('{"ID":7}{"ID":x}{"ID":7}')
        assert len(streams.check_end()) == 1


@pytest.fixture(scope="module")
def lender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender[Talk]]:
    found = Lender(talking, tmp_path_factory)
    yield found
    found.close()


@st.composite
def spoken_bodies(draw: st.DrawFn) -> list[bytes]:
    """Make a body of several values, in pieces."""
    parts: list[bytes] = []
    for value in draw(st.lists(values(KEEPALIVE.request), max_size=5)):
        parts += [draw(st.sampled_from(BLANKS)).encode(), value]
    parts.append(draw(st.sampled_from(TAILS)))
    return spoken(parts, draw(st.lists(st.integers(0, 1000), max_size=4)))


@given(pieces=spoken_bodies())
@settings(
    deadline=None,
    max_examples=SEQUENCES * 2,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_bodies_of_several_values(lender: Lender[Talk], pieces: list[bytes]) -> None:
    with lender.lent() as talk:
        talk.say("/v3/lease/grant", ID=7, TTL=3000)
        with Streams(talk.both, "/v3/lease/keepalive") as streams:
            streams.say(*pieces)
            streams.end()
            streams.check_head()
            streams.check_end()
        talk.say("/v3/lease/revoke", ID=7)


@contextmanager
def running_empty(directory: Path) -> Iterator[Both]:
    with running_both(directory) as both:
        yield both


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lender[Both]]:
    """Lends two whose stores stay empty, so that no watcher has a history."""
    found = Lender(running_empty, tmp_path_factory)
    yield found
    found.close()


@given(bodies=st.lists(st.lists(values(WATCH.request), max_size=4), min_size=20, max_size=20))
@settings(
    deadline=None,
    max_examples=max(1, SEQUENCES // 50),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_bodies_of_watches(empty: Lender[Both], bodies: list[list[bytes]]) -> None:
    """Every watch goes on until its time is over, so many are made at the same time."""
    with empty.lent() as both, ThreadPoolExecutor(2 * len(bodies)) as pool:
        found = [
            [pool.submit(_watched, address, b" ".join(body)) for body in bodies] for address in both
        ]
        for body, ours, theirs in zip(bodies, *found, strict=True):
            assert ours.result() == theirs.result(), body


def _watched(address: str, body: bytes) -> tuple[int, dict[str, str], list[str]]:
    """Watch for a while; return what the lines say but for the words of the end."""
    answer = ask(address, "/v3/watch", body, {**AT_ONCE, "Grpc-Timeout": "4000m"})
    *lines, end = answer.chunks
    assert parsed(end)["error"]["code"] == 4
    found = seen("/v3/watch", Answer(answer.status, answer.headers, lines))
    # Responses to progress requests come in between as soon as nothing is behind.
    return answer.status, headers_of(answer), sorted(found.values)


# Snapshots.


def test_snapshots(both: Both, talk: Talk) -> None:
    # More than the largest of messages, ours or etcd's, so that some are followed by others.
    for number in range(120):
        talk.say("/v3/kv/put", key=base64.b64encode(b"k%d" % number).decode(), value="MTEx" * 999)
    ours, theirs = (_snapshot(address) for address in both)
    assert ours == theirs


def _snapshot(address: str) -> tuple[int, dict[str, str], set[str]]:
    answer = ask(address, "/v3/maintenance/snapshot")
    results = [parsed(line)["result"] for line in answer.body.splitlines()]
    blobs = [base64.b64decode(each["blob"]) for each in results]
    assert hashlib.sha256(b"".join(blobs[:-1])).digest() == blobs[-1]
    remaining = [int(each.get("remaining_bytes", "0")) for each in results]
    assert remaining == sorted(remaining, reverse=True)
    assert remaining[-2:] == [0, 0]
    return answer.status, headers_of(answer), {str(list(each)) for each in results}


# Elections.


def test_observe(both: Both, talk: Talk) -> None:
    talk.say("/v3/lease/grant", ID=7, TTL=3000)
    with Streams(both, "/v3/election/observe") as streams:
        streams.say(f'{{"name":"{FOO}"}}')
        streams.end()
        leader = talk.say("/v3/election/campaign", name=FOO, lease=7, value="MQ==")["leader"]
        assert streams.check_head() == 200
        assert streams.check_line()["result"]["kv"]["value"] == "MQ=="
        talk.say("/v3/election/proclaim", leader=leader, value="Mg==")
        assert streams.check_line()["result"]["kv"]["value"] == "Mg=="
        with Streams(both, "/v3/election/observe") as others:
            others.say(f'{{"name":"{FOO}"}} and more')
            others.end()
            others.check_line()
        talk.say("/v3/election/resign", leader=leader)
        talk.say("/v3/election/campaign", name=FOO, lease=7, value="Mw==")
        assert streams.check_line()["result"]["kv"]["value"] == "Mw=="


def test_an_observation_whose_time_is_over(both: Both) -> None:
    with Streams(both, "/v3/election/observe", {"Grpc-Timeout": "200m"}) as streams:
        streams.say(f'{{"name":"{FOO}"}}')
        streams.end()
        assert streams.check_head() == 504
        (line,) = streams.check_end()
        assert line == {"error": {"code": 4, "message": "context deadline exceeded"}}


# Before a stream begins.


@pytest.mark.parametrize("path", ["/v3/maintenance/snapshot", "/v3/election/observe"])
@pytest.mark.parametrize("body", [b"{", b"[]", b'{"name":7,"x":"\xff"}', b"null", b"x"])
def test_streams_that_do_not_begin(talk: Talk, path: str, body: bytes) -> None:
    assert talk.check(path, body).status == 400


@pytest.mark.parametrize("path", ["/v3/watch", "/v3/lease/keepalive", "/v3/maintenance/snapshot"])
def test_a_bad_limit_of_time_is_told_as_for_unary_calls(talk: Talk, path: str) -> None:
    assert talk.check(path, b"{}", {"Grpc-Timeout": "7x"}).status == 400


def test_bodies_that_are_cut_off(both: Both) -> None:
    for path in ("/v3/kv/put", "/v3/watch", "/v3/lease/keepalive", "/v3/maintenance/snapshot"):
        for address in both:
            with Connection(address) as connection:
                connection.open(path)
                connection.send(chunk(b'{"key":"Zm9v"'), b"5\r\nab")
    for address in both:
        found = ask(address, "/v3/kv/range", f'{{"key":"{FOO}"}}').json
        assert list(found) == ["header"]
