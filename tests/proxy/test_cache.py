"""Serializable reads through a proxy, against the store's own history."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.network.edge.interface import Metadata
from kvorum.proxy.cache import ENTRY_BYTES, ENTRY_SHARE_MAX, Cache, CachedRange
from kvorum.proxy.freshness import FRESH_SECONDS, IDLE_SECONDS, Freshness
from kvorum.server.rpc.table import NUMBERS
from tests.proxy.standing import ADDRESS, Standing
from tests.server.rpc.guarded import Guarded

_RANGE = NUMBERS[rpcs.RANGE.path]
KEYS = (b"a", b"b", b"ba", b"c")
READS = (
    pb.RangeRequest(key=b"a", serializable=True),
    pb.RangeRequest(key=b"b", serializable=True),
    pb.RangeRequest(key=b"b", range_end=b"c", serializable=True),
    pb.RangeRequest(key=b"b", range_end=b"c", serializable=True, limit=1),
    pb.RangeRequest(key=b"b", range_end=b"c", serializable=True, count_only=True),
    pb.RangeRequest(key=b"b", range_end=b"\0", serializable=True, keys_only=True),
    pb.RangeRequest(key=b"\0", range_end=b"\0", serializable=True),
)
key_of = st.sampled_from(KEYS)
writes = st.one_of(
    st.builds(
        lambda key, value: (rpcs.PUT.path, pb.PutRequest(key=key, value=value)),
        key_of,
        st.binary(max_size=3),
    ),
    st.builds(lambda key: (rpcs.DELETE_RANGE.path, pb.DeleteRangeRequest(key=key)), key_of),
    st.just((rpcs.DELETE_RANGE.path, pb.DeleteRangeRequest(key=b"b", range_end=b"\0"))),
    st.builds(lambda key: (rpcs.TXN.path, _nested_put(key)), key_of),
)
steps = st.one_of(
    st.tuples(st.just("read"), st.sampled_from(READS)),
    st.tuples(st.just("read and settle"), st.sampled_from(READS)),
    st.tuples(st.just("read and settle"), st.sampled_from(READS[:3])),
    st.tuples(st.just("write"), writes),
    st.tuples(st.just("write and settle"), writes),
    st.tuples(st.just("write elsewhere"), writes),
    st.tuples(st.just("arrive"), st.integers(1, 3)),
    st.tuples(st.just("turn"), st.none()),
    st.tuples(st.just("hear streams"), st.booleans()),
    st.tuples(st.just("rarely"), st.sampled_from((*([None] * 8), "wait", "lose"))),
)


def _nested_put(key: bytes) -> pb.TxnRequest:
    put = pb.RequestOp(request_put=pb.PutRequest(key=key, value=b"in a transaction"))
    inner = pb.RequestOp(request_txn=pb.TxnRequest(success=[put]))
    return pb.TxnRequest(success=[inner])


class _History:
    """Reads that were begun through a proxy, each with what its client knew."""

    def __init__(self, standing: Standing) -> None:
        self._standing = standing
        self._reads: dict[int, tuple[pb.RangeRequest, int]] = {}
        self._writes: dict[int, str] = {}
        self._known = 0

    def read(self, request: pb.RangeRequest) -> None:
        self.look()
        call = self._standing.begin(rpcs.RANGE.path, request)
        self._reads[call] = request, self._known
        self.look()

    def write(self, path: str, message: Any) -> None:
        self._writes[self._standing.begin(path, message)] = path

    @property
    def is_answered(self) -> bool:
        return not self._reads and not self._writes

    def look(self) -> None:
        """Check what was answered since the last time."""
        standing = self._standing
        for call in [each for each in self._writes if each in standing.edge.replies]:
            answer = standing.answer(self._writes.pop(call), call)
            if not isinstance(answer, errors.Status):
                self._known = max(self._known, answer.header.revision)
        for call in [each for each in self._reads if each in standing.edge.replies]:
            request, known = self._reads.pop(call)
            answer = standing.answer(rpcs.RANGE.path, call)
            if not isinstance(answer, errors.Status):
                self._check(request, known, answer)

    def _check(self, request: pb.RangeRequest, known: int, answer: pb.RangeResponse) -> None:
        revision = answer.header.revision
        assert revision >= known, "a client's write is not in what it reads"
        question = pb.RangeRequest()
        question.CopyFrom(request)
        question.revision = revision
        expected = self._standing.call_member(rpcs.RANGE.path, question)
        for each in (expected, answer):
            each.ClearField("header")
        assert answer == expected, f"the store was not so at revision {revision}"


@settings(max_examples=50, deadline=None)
@given(st.lists(steps, max_size=60), st.sampled_from((1 << 20, 25 * ENTRY_BYTES)))
def test_what_is_read_is_the_store_as_it_was_after_every_own_write(
    taken: list[tuple[str, Any]], bytes_max: int
) -> None:
    standing = Standing(cache_bytes_max=bytes_max)
    history = _History(standing)
    cache = standing.proxy.cache
    assert cache is not None
    for request in READS[:3]:
        _warm(standing, request)
    for what, detail in taken:
        match what:
            case "read" | "read and settle":
                history.read(detail)
            case "write" | "write and settle":
                history.write(*detail)
            case "write elsewhere":
                standing.call_member(*detail)
            case "arrive":
                standing.upstream.arrive(detail)
            case "turn":
                standing.turn()
            case "hear streams":
                standing.upstream.delivers_streams = detail
            case "rarely":
                _trouble(standing, detail)
        if what.endswith("settle"):
            standing.settle()
        history.look()
        assert cache.bytes <= bytes_max
    standing.upstream.delivers_streams = True
    standing.pass_time(6, step=0.5)
    history.look()
    assert history.is_answered


def _trouble(standing: Standing, kind: str | None) -> None:
    if kind == "wait":
        standing.pass_time(1.0, step=0.2)
    elif kind == "lose":
        standing.upstream.delivers_streams = True
        standing.turn()
        standing.upstream.lose_all()


def _read(standing: Standing, request: pb.RangeRequest, token: bytes | None = None) -> Any:
    metadata = None if token is None else {"token": token}
    return standing.call(rpcs.RANGE.path, request, metadata)


def _hits(standing: Standing) -> int:
    assert standing.proxy.cache is not None
    return standing.proxy.cache.hits


def _warm(standing: Standing, request: pb.RangeRequest) -> None:
    """Read until the cache answers."""
    for _ in range(10):
        before = _hits(standing)
        _read(standing, request)
        if _hits(standing) > before:
            return
    raise AssertionError("the cache does not answer")


def test_what_is_cached_costs_no_call() -> None:
    standing = Standing()
    standing.call_member(rpcs.PUT.path, pb.PutRequest(key=b"a", value=b"1"))
    _warm(standing, READS[0])
    standing.begin(rpcs.RANGE.path, READS[0])
    assert not standing.upstream._leaving
    assert standing.proxy.routes.calls_in_flight == 0


def test_a_write_elsewhere_is_seen_without_a_request() -> None:
    standing = Standing()
    _warm(standing, READS[2])
    standing.call_member(rpcs.PUT.path, pb.PutRequest(key=b"bb", value=b"new"))
    standing.settle()
    assert [kv.value for kv in _read(standing, READS[2]).kvs] == [b"new"]


def test_an_own_write_of_another_key_does_not_empty_the_cache() -> None:
    standing = Standing()
    _warm(standing, READS[0])
    written = standing.call(rpcs.PUT.path, pb.PutRequest(key=b"zzz", value=b"1"))
    _read(standing, READS[0])
    before = _hits(standing)
    answer = _read(standing, READS[0])
    assert _hits(standing) == before + 1
    assert answer.header.revision >= written.header.revision


def test_without_use_nothing_is_watched() -> None:
    standing = Standing()
    _warm(standing, READS[0])
    assert standing.member.member.hub.watchers_open == 1
    standing.pass_time(IDLE_SECONDS + 2, step=1.0)
    assert standing.member.member.hub.watchers_open == 0


def test_answers_that_are_too_large_are_not_kept() -> None:
    standing = Standing(cache_bytes_max=1 << 16)
    large = pb.PutRequest(key=b"a", value=b"v" * ((1 << 16) // ENTRY_SHARE_MAX))
    standing.call(rpcs.PUT.path, large)
    for _ in range(4):
        _read(standing, READS[0])
    assert _hits(standing) == 0


def _guarded() -> Standing:
    """Return a proxy before a member with users, whose authentication is disabled for now."""
    member = Guarded()
    root = {"token": member.log_in("root").encode()}
    member.ask("KV/Put", pb.PutRequest(key=b"a", value=b"of u"), root)
    member.ask("KV/Put", pb.PutRequest(key=b"b", value=b"of root"), root)
    member.ask("Auth/AuthDisable", pb.AuthDisableRequest(), root)
    return Standing({ADDRESS: member})


def _token(standing: Standing, user: str) -> bytes:
    """Log in through the proxy."""
    request = pb.AuthenticateRequest(name=user, password=user)
    token: str = standing.call(rpcs.AUTHENTICATE.path, request).token
    return token.encode()


def test_no_client_gets_what_only_another_may_read() -> None:
    standing = _guarded()
    standing.call(rpcs.AUTH_ENABLE.path, pb.AuthEnableRequest())
    root, user = _token(standing, "root"), _token(standing, "u")
    for _ in range(5):
        assert _read(standing, READS[1], root).count == 1
        assert _read(standing, READS[1], user) == errors.PERMISSION_DENIED
        assert _read(standing, READS[0], user).count == 1
        assert _read(standing, READS[0]) == errors.USER_EMPTY
    assert _hits(standing) == 0


def test_callers_with_credentials_are_not_served_from_what_others_have_read() -> None:
    standing = _guarded()
    _warm(standing, READS[0])
    before = _hits(standing)
    _read(standing, READS[0], b"whatever")
    standing.call(rpcs.RANGE.path, READS[0], {"authorization": b"whatever"})
    assert _hits(standing) == before


def test_those_who_ask_the_same_at_once_are_answered_alike_unless_they_show_credentials() -> None:
    standing = _guarded()
    _warm(standing, READS[0])
    before, message = _hits(standing), READS[0].SerializeToString()
    shown: tuple[Metadata | None, ...] = (None, {"client-api-version": b"3.7"}, {"token": b"x"})
    standing.turn([(1000 + at, _RANGE, message, each) for at, each in enumerate((*shown, None))])
    assert sorted(standing.edge.replies.keys() & range(1000, 1004)) == [1000, 1001, 1003]
    assert len({standing.edge.replies[call] for call in (1000, 1001, 1003)}) == 1
    assert _hits(standing) == before + 3


def test_authentication_that_is_enabled_through_the_proxy_empties_it_at_once() -> None:
    standing = _guarded()
    _warm(standing, READS[0])
    standing.call(rpcs.AUTH_ENABLE.path, pb.AuthEnableRequest())
    assert _read(standing, READS[0]) == errors.USER_EMPTY


def test_authentication_that_is_enabled_elsewhere_is_soon_noticed() -> None:
    standing = _guarded()
    _warm(standing, READS[0])
    standing.call_member(rpcs.AUTH_ENABLE.path, pb.AuthEnableRequest())
    standing.pass_time(FRESH_SECONDS)
    assert _read(standing, READS[0]) == errors.USER_EMPTY


def test_a_stream_of_watches_that_breaks_takes_the_cache_with_it() -> None:
    standing = Standing()
    _warm(standing, READS[0])
    standing.upstream.lose_all()
    standing.turn()
    assert standing.proxy.cache is not None
    assert len(standing.proxy.cache) == 0
    standing.pass_time(2)
    _warm(standing, READS[0])


def test_an_answer_that_is_older_than_a_change_is_not_kept() -> None:
    standing = Standing()
    _warm(standing, READS[2])
    _read(standing, READS[3])
    standing.begin(rpcs.RANGE.path, READS[3])
    standing.upstream.arrive()
    # The member has answered, and nobody has heard of it.
    standing.call_member(rpcs.PUT.path, pb.PutRequest(key=b"b", value=b"new"))
    standing.settle()
    for _ in range(4):
        assert [kv.value for kv in _read(standing, READS[3]).kvs] == [b"new"]


class _Wire:
    """Routes that record the messages sent on one stream."""

    def __init__(self) -> None:
        self.now = 0.0
        self.sent: list[pb.WatchRequest] = []

    def open_stream(self, *_: object) -> int:
        return 1

    def send(self, _: int, message: bytes) -> None:
        self.sent.append(pb.WatchRequest.FromString(message))

    def start_unary(self, *_: object) -> int:
        return 2


def test_progress_does_not_cover_watches_created_after_the_request() -> None:
    wire = _Wire()
    cache = Cache(1 << 20)
    freshness = cache.freshness = Freshness(cache, wire)  # type: ignore[arg-type]
    first, second = CachedRange(b"a", b""), CachedRange(b"b", b"")
    progress = pb.WatchResponse(watch_id=-1)
    progress.header.revision = 7
    freshness.watch_range(first)
    freshness.request_progress()
    freshness.watch_range(second)
    wire.now += 1.0
    freshness.request_progress()
    assert [each.WhichOneof("request_union") for each in wire.sent].count("progress_request") == 2
    freshness.take_message(progress.SerializeToString())
    assert (freshness.complete_revision(first), freshness.complete_revision(second)) == (7, 0)
    freshness.request_progress()
    # This may be the answer to the repeated question, which was sent before the last one.
    progress.header.revision = 8
    freshness.take_message(progress.SerializeToString())
    assert (freshness.complete_revision(first), freshness.complete_revision(second)) == (7, 0)
    progress.header.revision = 9
    freshness.take_message(progress.SerializeToString())
    assert (freshness.complete_revision(first), freshness.complete_revision(second)) == (9, 9)
