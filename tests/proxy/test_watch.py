"""Watches through a proxy: what clients see, and what it costs the members."""

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.edge.interface import EdgeEventKind
from kvorum.proxy import broadcasts, watch
from kvorum.proxy.watch_sessions import GATHERED_BYTES_MAX
from tests.proxy.standing import ADDRESS, ClientStream, Standing
from tests.server.rpc.guarded import Guarded, shown
from tests.server.rpc.harness import Harness

WATCH = "/etcdserverpb.Watch/Watch"


def create(
    key: bytes = b"a", range_end: bytes = b"", start: int = 0, **fields: object
) -> pb.WatchRequest:
    request = pb.WatchCreateRequest(
        key=key,
        range_end=range_end,
        start_revision=start,
        **fields,  # type: ignore[arg-type]
    )
    return pb.WatchRequest(create_request=request)


def cancel(watch_id: int) -> pb.WatchRequest:
    return pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=watch_id))


PROGRESS = pb.WatchRequest(progress_request=pb.WatchProgressRequest())


@pytest.fixture
def standing() -> Standing:
    return Standing()


def put(member: Harness, key: bytes = b"a", value: bytes = b"") -> int:
    revision: int = member.ask("KV/Put", pb.PutRequest(key=key, value=value)).header.revision
    return revision


def compact(member: Harness, revision: int) -> None:
    member.ask("KV/Compact", pb.CompactionRequest(revision=revision, physical=True))


def open_watch(standing: Standing, *requests: pb.WatchRequest) -> ClientStream:
    stream = standing.stream(WATCH)
    for request in requests:
        stream.send(request)
    standing.settle()
    return stream


def revisions(stream: ClientStream) -> list[tuple[int, int]]:
    """Return watch id and revision of every event that arrived."""
    return [
        (response.watch_id, event.kv.mod_revision)
        for response in stream.received()
        for event in response.events
    ]


def watchers_open(standing: Standing) -> int:
    return standing.member.member.hub.watchers_open


# What it costs.


def test_a_thousand_watchers_cost_one(standing: Standing) -> None:
    streams = [standing.stream(WATCH) for _ in range(20)]
    for number in range(50):
        for stream in streams:
            stream.send(create(prev_kv=number % 2 == 0))
        if number % 10 == 0:
            standing.settle()
    standing.settle()
    assert watchers_open(standing) == 1
    assert standing.proxy.counters.watchers_coalesced == 999
    for stream in streams:
        assert len(stream.received()) == 50
    revision = put(standing.member)
    standing.settle()
    for stream in streams:
        assert revisions(stream) == [(each, revision) for each in range(50)]
    for stream in streams:
        stream.leave()
    standing.settle()
    assert watchers_open(standing) == 0
    assert standing.proxy.counters.watchers_coalesced == 0


def test_watches_from_history_become_one(standing: Standing) -> None:
    for _ in range(20):
        put(standing.member)
    put(standing.member, b"other")
    stream = open_watch(standing, create(), *(create(start=each) for each in range(2, 20)))
    standing.pass_time(1.0)
    assert watchers_open(standing) == 1
    expected = [(number + 1, rev) for number in range(18) for rev in range(number + 2, 22)]
    assert sorted(revisions(stream)) == expected
    revision = put(standing.member)
    standing.settle()
    assert sorted(revisions(stream)) == [(each, revision) for each in range(19)]


def test_events_of_one_turn_are_sent_as_one_message(standing: Standing) -> None:
    streams = [open_watch(standing, create(), create(b"other")) for _ in range(3)]
    expected = [put(standing.member) for _ in range(10)]
    standing.settle()
    for stream in streams:
        (response,) = [each for each in stream.received() if each.events]
        assert [event.kv.mod_revision for event in response.events] == expected
        assert response.header.revision == expected[-1]


def test_events_of_one_turn_are_sent_in_messages_of_bounded_size(standing: Standing) -> None:
    stream = open_watch(standing, create())
    value = b"x" * (GATHERED_BYTES_MAX // 3)
    expected = [put(standing.member, value=value) for _ in range(10)]
    standing.settle()
    responses = [each for each in stream.received() if each.events]
    assert [event.kv.mod_revision for each in responses for event in each.events] == expected
    assert 1 < len(responses) < 10
    assert all(each.ByteSize() <= GATHERED_BYTES_MAX + 1024 for each in responses)


def test_events_are_sent_in_their_order(standing: Standing) -> None:
    stream = open_watch(standing, create(), create(b"other"))
    expected = [put(standing.member, key) for key in (b"a", b"other", b"other", b"a")]
    standing.settle()
    assert [revision for _, revision in revisions(stream)] == expected


def test_ten_thousand_watchers_on_a_hundred_streams(standing: Standing) -> None:
    streams = [standing.stream(WATCH) for _ in range(100)]
    requests = [create(b"k%d" % (each % 10), prev_kv=each % 20 < 10) for each in range(100)]
    for stream in streams:
        messages = [request.SerializeToString() for request in requests]
        standing.turn(events=[(EdgeEventKind.MESSAGE, stream.call, each) for each in messages])
    standing.settle()
    assert watchers_open(standing) == 10
    for stream in streams:
        assert len(stream.received()) == 100
    expected = [put(standing.member, b"k%d" % number) for number in range(10)]
    standing.settle()
    for stream in streams:
        found = revisions(stream)
        assert sorted(found) == [(number, expected[number % 10]) for number in range(100)]


def test_identities_share_nothing(standing: Standing) -> None:
    opened = standing.upstream.opened
    streams = [
        standing.stream(WATCH, metadata)
        for metadata in (None, {"token": b"x"}, {"authorization": b"x"}, {"hasleader": b"true"})
    ]
    for stream in streams:
        stream.send(create())
    standing.settle()
    assert watchers_open(standing) == 4
    assert standing.upstream.opened - opened == 4


# Who may watch what.


def test_the_member_decides_who_may_watch() -> None:
    harness = Guarded()
    standing = Standing({ADDRESS: harness})
    tokens = [harness.log_in(name) for name in ("root", "u")]
    root, user = (standing.stream(WATCH, shown(token)) for token in tokens)
    nobody = standing.stream(WATCH)
    stranger = standing.stream(WATCH, shown("stranger.1"))
    for stream in (root, user, nobody, stranger):
        stream.send(create(b"a"))
        stream.send(create(b"x"))
    standing.settle()
    assert [each.cancel_reason for each in root.received()] == ["", ""]
    denied = errors.PERMISSION_DENIED.wrapped()
    assert [each.cancel_reason for each in user.received()] == ["", denied]
    assert [each.cancel_reason for each in nobody.received()] == [errors.USER_EMPTY.wrapped()] * 2
    invalid = errors.INVALID_AUTH_TOKEN.wrapped()
    assert [each.cancel_reason for each in stranger.received()] == [invalid] * 2
    harness.succeed("KV/Put", pb.PutRequest(key=b"x"), tokens[0])
    harness.succeed("KV/Put", pb.PutRequest(key=b"a"), tokens[1])
    standing.settle()
    assert len(revisions(root)) == 2
    assert len(revisions(user)) == 1
    assert not revisions(nobody) + revisions(stranger)


def test_a_watcher_that_another_member_refuses_starts_again() -> None:
    harness = Guarded()
    standing = Standing({ADDRESS: harness})
    root = harness.log_in("root")
    stream = standing.stream(WATCH, shown(harness.log_in("u")))
    stream.send(create(b"a"))
    standing.settle()
    # A role that is taken away does not end the watches there are.
    revoke = pb.AuthUserRevokeRoleRequest(name="u", role="r")
    harness.succeed("Auth/UserRevokeRole", revoke, root)
    harness.succeed("KV/Put", pb.PutRequest(key=b"a"), root)
    standing.settle()
    assert len(revisions(stream)) == 1
    assert stream.status is None
    standing.upstream.lose_all()
    standing.pass_time(1.0)
    assert stream.status is not None
    assert stream.status.code is Code.UNAVAILABLE
    assert not watchers_open(standing)


# What clients see.


def test_ids_are_as_at_a_member(standing: Standing) -> None:
    stream = open_watch(
        standing,
        create(watch_id=1),
        create(),
        create(),
        create(watch_id=1),
        create(range_end=b"A"),
        create(start=-1),
        cancel(0),
        create(),
        cancel(77),
    )
    found = stream.received()
    assert [(each.watch_id, each.canceled, each.cancel_reason) for each in found] == [
        (1, False, ""),
        (0, False, ""),
        (2, False, ""),
        (-1, True, errors.WATCH_ID_DUPLICATE.text),
        (-1, True, errors.WATCH_RANGE_EMPTY.text),
        (-1, True, errors.COMPACTED.text),
        (0, True, ""),
        (3, False, ""),
    ]


def test_a_watch_from_now_on_begins_after_what_was_answered(standing: Standing) -> None:
    first = open_watch(standing, create())
    revision = put(standing.member)
    # The member's message is not here yet; a second client knows of the put all the same.
    second = standing.stream(WATCH)
    second.send(create())
    standing.settle()
    (created,) = second.received()
    assert created.created
    assert created.header.revision == revision
    assert revisions(first) == [(0, revision)]
    assert revisions(second) == []


def test_a_future_revision(standing: Standing) -> None:
    stream = open_watch(standing, create(start=5), create())
    for _ in range(6):
        put(standing.member)
    standing.settle()
    found = revisions(stream)
    assert [each for each in found if not each[0]] == [(0, 5), (0, 6), (0, 7)]
    assert watchers_open(standing) == 1


def test_compacted(standing: Standing) -> None:
    for _ in range(5):
        put(standing.member)
    compact(standing.member, 5)
    stream = open_watch(standing, create(start=2), create(start=5), PROGRESS)
    standing.pass_time(0.5)
    stream.send(cancel(0))
    stream.send(PROGRESS)
    standing.pass_time(0.5)
    found = stream.received()
    first = [each for each in found if each.watch_id == 0]
    assert [(each.created, each.canceled, each.compact_revision) for each in first] == [
        (True, False, 0),
        (False, True, 5),
        (False, True, 0),
    ]
    assert first[1].header.revision == 0
    second = [each for each in found if each.watch_id == 1]
    assert [event.kv.mod_revision for each in second for event in each.events] == [5, 6]
    # The first request comes while a watcher is there that a compaction ended.
    assert [each.header.revision for each in found if each.watch_id == -1] == [6]


def test_progress_is_sent_after_all_events(standing: Standing) -> None:
    stream = open_watch(standing, PROGRESS)
    assert stream.received() == []
    for _ in range(3):
        put(standing.member)
    other = put(standing.member, b"b")
    stream.send(create(start=2))
    stream.send(PROGRESS)
    standing.pass_time(0.5)
    found = stream.received()
    assert found[-1].watch_id == -1
    assert found[-1].header.revision == other
    assert sum(len(each.events) for each in found) == 3
    stream.send(create(start=100))
    stream.send(PROGRESS)
    standing.pass_time(0.5)
    (created,) = stream.received()
    assert created.created


def test_periodic_progress() -> None:
    standing = Standing({ADDRESS: Harness(watch_progress_seconds=1.0)})
    stream = open_watch(
        standing,
        create(progress_notify=True),
        create(),
        create(progress_notify=True, filters=[pb.WatchCreateRequest.NOPUT]),
        create(progress_notify=True, start=1000),
    )
    stream.received()
    revision = put(standing.member, b"b")
    standing.pass_time(1.2)
    assert {(each.watch_id, each.header.revision) for each in stream.received()} == {
        (0, revision),
        (2, revision),
    }
    revision = put(standing.member)
    standing.pass_time(1.2)
    found = stream.received()
    # Events are progress enough; who filtered them hears of it.
    assert [each.watch_id for each in found if not each.events] == [2]


def test_large_responses_in_fragments(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "FRAGMENT_BYTES_MAX", 300)
    stream = open_watch(standing, create(range_end=b"z"), create(range_end=b"z", fragment=True))
    stream.received()
    ops = [
        pb.RequestOp(request_put=pb.PutRequest(key=b"k%d" % each, value=bytes(100)))
        for each in range(5)
    ]
    standing.member.ask("KV/Txn", pb.TxnRequest(success=ops))
    standing.settle()
    found = stream.received()
    assert [(each.watch_id, each.fragment) for each in found[:2]] == [(0, False), (1, True)]
    assert [each.fragment for each in found[1:]] == [True] * (len(found) - 2) + [False]
    assert max(each.ByteSize() for each in found[1:]) < 300
    assert found[0].events[:] == [event for each in found[1:] for event in each.events]


def test_a_namespace_is_not_seen() -> None:
    standing = Standing(namespace=b"ns/")
    stream = open_watch(standing, create(b"", b"\0", prev_kv=True), create(b"x", fragment=True))
    stream.received()
    for _ in range(2):
        put(standing.member, b"ns/x")
    put(standing.member, b"x")
    put(standing.member, b"nt")
    standing.member.ask("KV/DeleteRange", pb.DeleteRangeRequest(key=b"ns/x"))
    standing.settle()
    found = stream.received()
    assert {each.events[0].kv.key for each in found} == {b"x"}
    first, second = ([each for each in found if each.watch_id == number] for number in (0, 1))
    assert len(first) == len(second) == 3
    assert first[2].events[0].prev_kv.key == b"x"
    assert not second[2].events[0].HasField("prev_kv")


def test_what_cannot_be_read_ends_the_stream(standing: Standing) -> None:
    stream = open_watch(standing, create())
    standing.happen((EdgeEventKind.MESSAGE, stream.call, b"\xff"))
    assert stream.status is not None
    assert stream.status.code is Code.INTERNAL
    standing.settle()
    assert watchers_open(standing) == 0


def test_too_many_requests(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "REQUESTS_WAITING_MAX", 3)
    stream = standing.stream(WATCH)
    for _ in range(4):
        assert stream.status is None
        stream.send(create())
    assert stream.status == errors.REQUEST_TOO_MANY_REQUESTS


# Members that are lost.


def test_a_lost_member(standing: Standing) -> None:
    stream = open_watch(standing, create(), create(b"q", start=2))
    put(standing.member)
    standing.settle()
    standing.upstream.lose_all()
    last = put(standing.member)
    standing.pass_time(1.0)
    put(standing.member)
    standing.settle()
    assert revisions(stream) == [(0, 2), (0, last), (0, last + 1)]
    assert watchers_open(standing) == 2


def test_a_lost_member_and_a_compaction(standing: Standing) -> None:
    stream = open_watch(standing, create(), create(start=9))
    stream.received()
    standing.upstream.lose_all()
    for _ in range(5):
        put(standing.member)
    compact(standing.member, 5)
    standing.pass_time(1.0)
    (ended,) = stream.received()
    assert (ended.watch_id, ended.canceled, ended.compact_revision) == (0, True, 5)
    for _ in range(4):
        put(standing.member)
    standing.settle()
    assert revisions(stream) == [(1, 9), (1, 10)]


def test_a_member_that_lags_behind() -> None:
    lagging = Harness()
    members = {ADDRESS: Harness(), "127.0.0.1:2": lagging}
    standing = Standing(members)
    stream = open_watch(standing, create())
    for _ in range(5):
        put(members[ADDRESS])
    standing.settle()
    assert [each for _, each in revisions(stream)] == [2, 3, 4, 5, 6]
    standing.upstream.lose_all(ADDRESS)
    del members[ADDRESS]
    standing.pass_time(1.0)
    put(lagging)
    fresh = standing.stream(WATCH)
    fresh.send(create())
    for request in (create(), create(start=4), PROGRESS, cancel(0)):
        stream.send(request)
    standing.pass_time(1.0)
    # For who has seen more, revisions do not go back; nobody else is concerned.
    found = stream.received()
    assert [(each.watch_id, each.header.revision) for each in found] == [(1, 6), (2, 6), (0, 6)]
    (created,) = fresh.received()
    assert created.header.revision == 2
    for _ in range(5):
        put(lagging)
    standing.pass_time(1.0)
    found = stream.received()
    events = [(each.watch_id, event.kv.mod_revision) for each in found for event in each.events]
    assert sorted(events) == [(1, 7), (2, 4), (2, 5), (2, 6), (2, 7)]
    assert [each.header.revision for each in found if each.watch_id == -1] == [7]
    assert revisions(fresh) == [(0, each) for each in range(3, 8)]


def test_progress_keeps_a_quiet_watch_from_being_compacted(standing: Standing) -> None:
    stream = open_watch(standing, create(b"quiet"))
    stream.received()
    for _ in range(5):
        put(standing.member)
    standing.pass_time(11.0)
    compact(standing.member, 5)
    standing.upstream.lose_all()
    standing.pass_time(1.0)
    revision = put(standing.member, b"quiet")
    standing.settle()
    assert revisions(stream) == [(0, revision)]


def test_a_client_that_requires_a_leader_learns_that_there_is_none(standing: Standing) -> None:
    plain = open_watch(standing, create())
    strict = standing.stream(WATCH, {"hasleader": b"true"})
    idle = standing.stream(WATCH, {"hasleader": b"true"})
    strict.send(create())
    standing.pass_time(5.0)
    assert strict.status is None
    members = dict(standing.members)
    standing.upstream.members.clear()
    standing.upstream.lose_all()
    standing.pass_time(5.0)
    assert strict.status == errors.NO_LEADER
    assert idle.status == errors.NO_LEADER
    assert plain.status is None
    standing.upstream.members.update(members)
    standing.pass_time(6.0)
    revision = put(members[ADDRESS])
    standing.settle()
    assert revisions(plain) == [(0, revision)]


@pytest.mark.parametrize(
    ("status", "is_told"),
    [(errors.NO_LEADER, True), (errors.STOPPED, False), (errors.NOT_CAPABLE, True)],
)
def test_how_a_member_ends_a_stream(
    standing: Standing, status: errors.Status, *, is_told: bool
) -> None:
    stream = standing.stream(WATCH, {"hasleader": b"true"})
    stream.send(create())
    standing.settle()
    edge = standing.member.edge
    (watched,) = [call for call, sent in edge.sent.items() if sent and call > 1 << 40]
    standing.member.happen((EdgeEventKind.ENDED, watched, None))
    edge.finish(watched, status)
    standing.pass_time(1.0)
    assert stream.status == (status if is_told else None)
    revision = put(standing.member)
    standing.settle()
    assert revisions(stream) == ([] if is_told else [(0, revision)])


# Slow clients.


def test_a_slow_client_delays_no_other(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "STREAM_PENDING_BYTES_MAX", 1000)
    slow, fast = (open_watch(standing, create(), create(b"b")) for _ in range(2))
    standing.edge.pending[slow.call] = 0
    expected = []
    for _ in range(20):
        expected.append(put(standing.member, value=bytes(300)))
        standing.settle()
    assert revisions(fast) == [(0, each) for each in expected]
    seen = revisions(slow)
    assert 0 < len(seen) < 6
    assert watchers_open(standing) == 2
    # While it reads, it goes on; nothing is lost and nothing comes twice.
    for _ in range(20):
        standing.edge.pending[slow.call] = 0
        standing.happen((EdgeEventKind.WRITABLE, slow.call, None))
        standing.pass_time(0.2)
        seen += revisions(slow)
    assert seen == [(0, each) for each in expected]
    del standing.edge.pending[slow.call]
    revision = put(standing.member)
    standing.pass_time(0.5)
    assert revisions(slow) == revisions(fast) == [(0, revision)]
    assert watchers_open(standing) == 2


@pytest.mark.parametrize("spread_bytes", [0, 20_000])
def test_all_clients_are_slow(
    standing: Standing, monkeypatch: pytest.MonkeyPatch, spread_bytes: int
) -> None:
    monkeypatch.setattr(broadcasts, "FAN_OUT_BYTES_MAX", spread_bytes)
    monkeypatch.setattr(watch, "PENDING_BYTES_MAX", 5000)
    monkeypatch.setattr(watch, "STREAM_PENDING_BYTES_MAX", 1000)
    monkeypatch.setattr(watch, "UNSENT_BYTES_MAX", 500)
    streams = [open_watch(standing, create()) for _ in range(20)]
    for stream in streams:
        stream.received()
        standing.edge.pending[stream.call] = 0
    revision = put(standing.member, value=bytes(600))
    standing.settle()
    if not spread_bytes:
        assert sum(standing.edge.pending.values()) < 7000
        assert sum(bool(stream.received()) for stream in streams) < 12
    # What is small enough is sent to all of them, and nothing more then.
    put(standing.member, value=bytes(600))
    standing.settle()
    assert sum(standing.edge.pending.values()) < max(7000, spread_bytes)
    standing.edge.pending.clear()
    standing.pass_time(0.5)
    newest = put(standing.member)
    standing.pass_time(0.5)
    for stream in streams:
        assert revisions(stream)[-1] == (0, newest)
    assert revision
    assert watchers_open(standing) == 1
