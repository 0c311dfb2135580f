"""Watches against a server that loses streams, cuts revisions in pieces, compacts and restores."""

from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import (
    AuthenticateResponse,
    RangeResponse,
    ResponseHeader,
    WatchCreateRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.pb.mvccpb import Event, KeyValue
from kvorum.client import rpcs, watch_set
from kvorum.client.core import Core, CoreSettings, Credentials
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import (
    ClosedError,
    KvorumError,
    RevisionWentBackError,
    WatchCanceledError,
    WatchCompactedError,
    WatchLostError,
)
from kvorum.client.grpc.wire import End, Metadata
from kvorum.client.watch_set import Watch, WatchSet, WatchState

KEYS = (b"a", b"b", b"c")
Told = tuple[int, bytes]
"""A revision and a key."""


@dataclass
class Watcher:
    """A watch as the server knows it."""

    key: bytes
    next: int
    """The first revision that it was not sent."""
    fragments: list[WatchResponse] = field(default_factory=list)
    """What is still to be sent of a revision, before anything else."""


@dataclass
class Opened:
    """A stream of watches."""

    requests: list[bytes]
    token: str
    watchers: dict[int, Watcher] = field(default_factory=dict)


class Store:
    """A server with revisions; it reads requests, and sends, only when it is told to."""

    def __init__(self) -> None:
        self.core: Core
        self.revisions: list[list[bytes]] = [[]]
        """The keys that each revision has changed; the first is revision 1."""
        self.compacted = 0
        self.calls: dict[int, str] = {}
        self.streams: dict[int, Opened] = {}
        self.is_connected = False
        self.is_connecting = False

    @property
    def revision(self) -> int:
        return len(self.revisions)

    # What the core asks of sockets.

    def connect(self, endpoint: int) -> None:  # noqa: ARG002
        assert not self.is_connecting
        self.is_connecting = True

    def disconnect(self, endpoint: int) -> None:  # noqa: ARG002
        self.is_connected = False
        for number in [*self.calls, *self.streams]:
            self.calls.pop(number, None)
            self.streams.pop(number, None)
            self.core.take_end(number, End(Code.UNAVAILABLE, "the connection was closed"))

    def start(
        self,
        call: int,
        endpoint: int,  # noqa: ARG002
        path: str,
        metadata: Metadata,
        message: bytes,
        ends: bool,
    ) -> None:
        assert self.is_connected
        assert ends == (path != rpcs.WATCH.path)
        if path == rpcs.WATCH.path:
            assert len(self.streams) == 0, "all watches share a stream"
            self.streams[call] = Opened([message], dict(metadata).get("token", ""))
        else:
            self.calls[call] = path

    def send(self, call: int, message: bytes) -> None:
        self.streams[call].requests.append(message)

    def cancel(self, call: int) -> None:
        self.streams.pop(call, None)
        self.calls.pop(call, None)

    # What it answers.

    def header(self) -> ResponseHeader:
        return ResponseHeader(revision=self.revision)

    def answer_call(self, number: int, token: str) -> None:
        path = self.calls.pop(number)
        if path == rpcs.AUTHENTICATE.path:
            answer = AuthenticateResponse(token=token).SerializeToString()
        else:
            answer = RangeResponse(header=self.header()).SerializeToString()
        self.core.take_message(number, answer)
        self.core.take_end(number, End(Code.OK, ""))

    def read(self, number: int, valid_token: str) -> None:
        """Read one request of a stream."""
        opened = self.streams[number]
        request = WatchRequest.FromString(opened.requests.pop(0))
        if request.HasField("create_request"):
            create = request.create_request
            watch = create.watch_id
            assert watch not in opened.watchers
            assert create.start_revision > 0, "a watch that could lose what it does not name"
            created = WatchResponse(header=self.header(), watch_id=watch, created=True)
            if opened.token != valid_token:
                created.canceled = True
                created.cancel_reason = (
                    "rpc error: code = Unauthenticated desc = etcdserver: invalid auth token"
                )
            elif create.start_revision <= self.compacted:
                self.tell(number, created)
                created = WatchResponse(
                    watch_id=watch, canceled=True, compact_revision=self.compacted
                )
            else:
                opened.watchers[watch] = Watcher(create.key, create.start_revision)
            self.tell(number, created)
        elif request.HasField("cancel_request"):
            watch = request.cancel_request.watch_id
            if opened.watchers.pop(watch, None) is not None:
                self.tell(number, WatchResponse(watch_id=watch, canceled=True))
        else:
            behind = any(each.next <= self.revision for each in opened.watchers.values())
            if not behind and opened.watchers:
                self.tell(number, WatchResponse(header=self.header(), watch_id=-1))

    def tell(self, number: int, response: WatchResponse) -> None:
        if number in self.streams:
            self.core.take_message(number, response.SerializeToString())

    def push(self, number: int, watch: int, revisions: int, piece: int) -> None:
        """Send what a watcher has not got, of so many revisions, in pieces."""
        watcher = self.streams[number].watchers[watch]
        if watcher.fragments:
            self.tell(number, watcher.fragments.pop(0))
            return
        last = min(watcher.next + revisions - 1, self.revision)
        found = self.expected(watcher.key, watcher.next, last)
        watcher.next = max(watcher.next, last + 1)
        if not found:
            return
        for at in range(0, len(found), piece):
            response = WatchResponse(header=self.header(), watch_id=watch)
            response.fragment = at + piece < len(found)
            response.events.extend(
                # The version tells which stream it came on.
                Event(kv=KeyValue(key=key, mod_revision=revision, version=number))
                for revision, key in found[at : at + piece]
            )
            watcher.fragments.append(response)
        self.tell(number, watcher.fragments.pop(0))

    def expected(self, key: bytes, first: int, last: int) -> list[Told]:
        """Return the events of a watch; the key `a` stands for a range of all."""
        return [
            (revision, each)
            for revision in range(max(first, 1), last + 1)
            for each in self.revisions[revision - 1]
            if key in (b"a", each)
        ]


class Seen:
    """A watch of a user: what it should get, and what it got."""

    def __init__(self, key: bytes, asked_at: int, revision: int) -> None:
        self.key = key
        self.asked_at = asked_at
        self.first = revision
        self.told: list[Told] = []
        self.streams: set[int] = set()
        """The streams that told it."""
        self.told_until = 0
        self.watch: Watch
        self.is_ready = False

    def ready(self) -> None:
        self.is_ready = True


class Watches(RuleBasedStateMachine):
    """Some watches of one client."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Seen] = []
        self.token = "token 0"
        self.tokens = 0

    @initialize(has_user=st.booleans(), kept=st.sampled_from([2, 5, 10_000]))
    def begin(self, has_user: bool, kept: int) -> None:
        credentials = Credentials("root", "secret") if has_user else None
        self.has_user = has_user
        self.token = "" if not has_user else self.token
        self.core = Core([parse_endpoint("127.0.0.1:1")], CoreSettings(credentials=credentials))
        self.store = Store()
        self.store.core = self.core
        self.core.transport = self.store
        self.watching = WatchSet(self.core)
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(watch_set, "KEPT_EVENTS_MAX", kept)

    # What users do.

    @precondition(lambda self: len(self.seen) < 4)
    @rule(
        key=st.sampled_from(KEYS),
        back=st.sampled_from([None, 0, 1, 3, -2]),
        resumes=st.booleans(),
    )
    def watch(self, key: bytes, back: int | None, resumes: bool) -> None:
        now = self.store.revision
        revision = 0 if back is None else max(1, now + 1 - back)
        seen = Seen(key, now, revision)
        seen.watch = self.watching.begin(
            WatchCreateRequest(key=key, start_revision=revision), seen.ready, resumes=resumes
        )
        self.seen.append(seen)

    @precondition(lambda self: self.seen)
    @rule(data=st.data(), count=st.integers(1, 3))
    def take(self, data: st.DataObject, count: int) -> None:
        seen = data.draw(st.sampled_from(self.seen))
        for _ in range(count):
            self._take(seen)

    def _take(self, seen: Seen) -> bool:
        changes = self.watching.take(seen.watch)
        if changes is None:
            return False
        told = [(each.kv.mod_revision, each.kv.key) for each in changes.events]
        # Two answers about progress may tell of the same revision.
        assert changes.revision >= seen.told_until + bool(told), "what was told is told again"
        assert seen.first, "what is told of a watch that has not begun"
        seen.told += told
        seen.streams |= {each.kv.version for each in changes.events}
        assert seen.watch.resumes or len(seen.streams) <= 1, "one stream continues another"
        seen.told_until = changes.revision
        return True

    def _note_begun(self) -> None:
        """A watch from now on begins after the revision that it was answered first."""
        for seen in self.seen:
            if not seen.first and seen.watch.state is not WatchState.ASKING:
                assert self.store.revision >= seen.asked_at
                seen.first = self.store.revision + 1

    @precondition(lambda self: self.seen)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        seen = self.seen.pop(data.draw(st.integers(0, len(self.seen) - 1)))
        self.watching.cancel(seen.watch)
        assert isinstance(seen.watch.error, KvorumError)

    @rule()
    def ask_progress(self) -> None:
        self.watching.request_progress()

    # What happens to the store.

    @rule(keys=st.lists(st.sampled_from(KEYS), min_size=1, max_size=3, unique=True))
    def change(self, keys: list[bytes]) -> None:
        self.store.revisions.append(keys)

    @precondition(lambda self: self.store.revision > 3)
    @rule(data=st.data())
    def compact(self, data: st.DataObject) -> None:
        found = data.draw(st.integers(self.store.compacted, self.store.revision - 1))
        self.store.compacted = found

    @rule()
    def expire(self) -> None:
        if self.has_user:
            self.tokens += 1
            self.token = f"token {self.tokens}"

    # What happens to connections.

    @precondition(lambda self: self.store.is_connecting)
    @rule(succeeds=st.booleans())
    def connect(self, succeeds: bool) -> None:
        self.store.is_connecting = False
        self.store.is_connected = succeeds
        if succeeds:
            self.core.note_connected(0)
        else:
            self.core.note_disconnected(0, "connection refused")

    @precondition(lambda self: self.store.is_connected)
    @rule()
    def lose_connection(self) -> None:
        self.core.note_disconnected(0, "lost")
        self.store.disconnect(0)

    @precondition(lambda self: self.store.streams)
    @rule(end=st.sampled_from([End(Code.UNAVAILABLE, "etcdserver: no leader"), End(Code.OK, "")]))
    def end_stream(self, end: End) -> None:
        (number,) = self.store.streams
        del self.store.streams[number]
        self.core.take_end(number, end)

    # What the server does.

    @precondition(lambda self: self.store.calls)
    @rule(data=st.data())
    def answer_call(self, data: st.DataObject) -> None:
        self._answer(data.draw(st.sampled_from(sorted(self.store.calls))))

    def _answer(self, number: int) -> None:
        self.store.answer_call(number, self.token)
        self._note_begun()

    @precondition(lambda self: any(each.requests for each in self.store.streams.values()))
    @rule()
    def read(self) -> None:
        (number,) = self.store.streams
        self.store.read(number, self.token)

    @precondition(lambda self: any(each.watchers for each in self.store.streams.values()))
    @rule(data=st.data(), revisions=st.integers(1, 3), piece=st.integers(1, 3))
    def push(self, data: st.DataObject, revisions: int, piece: int) -> None:
        ((number, opened),) = self.store.streams.items()
        watch = data.draw(st.sampled_from(sorted(opened.watchers)))
        self.store.push(number, watch, revisions, piece)

    @rule()
    def work(self) -> None:
        """Do all that is to be done, as servers do most of the time."""
        if self.store.is_connecting:
            self.connect(True)
        for number in sorted(self.store.calls):
            self._answer(number)
        for number in list(self.store.streams):
            while number in self.store.streams and self.store.streams[number].requests:
                self.store.read(number, self.token)
            opened = self.store.streams.get(number)
            for watch in list(opened.watchers) if opened is not None else ():
                if number in self.store.streams and watch in self.store.streams[number].watchers:
                    self.store.push(number, watch, 100, 2)

    def _settle(self) -> None:
        for _ in range(40):
            self.work()
            for seen in self.seen:
                while self._take(seen):
                    pass
            self.pass_time(0.3)

    @rule(seconds=st.sampled_from([0.01, 0.5, 2.0]))
    def pass_time(self, seconds: float) -> None:
        now = self.core.now + seconds
        self.core.pass_time(now)
        self.watching.pass_time(now)

    # What holds always.

    @invariant()
    def what_is_told_is_what_happened_so_far(self) -> None:
        for seen in self.seen:
            if seen.told_until:
                expected = self.store.expected(seen.key, seen.first, seen.told_until)
                assert seen.told == expected

    def teardown(self) -> None:
        """Everything works again: every watch gets all that has happened, or says why not."""
        if not hasattr(self, "core"):
            return
        self.patch.undo()
        for _ in range(3):
            self._settle()
            self.store.revisions.append(list(KEYS))
        self._settle()
        for seen in self.seen:
            error = seen.watch.error
            passing = WatchCompactedError if seen.watch.resumes else WatchLostError
            assert error is None or isinstance(error, WatchCompactedError | passing), error
            if error is None:
                assert seen.watch.state is WatchState.OPEN
                expected = self.store.expected(seen.key, seen.first, self.store.revision)
                assert seen.told == expected
            else:
                assert seen.is_ready
            self.watching.cancel(seen.watch)
        assert not self.watching._watches
        assert not self.store.streams
        self.core.close()
        self.watching.close()


TestWatches = Watches.TestCase
TestWatches.settings = settings(stateful_step_count=50)


# What a machine would seldom come across.


class One:
    """One watch, from a revision, whose stream is open."""

    def __init__(self, revisions: int, start: int) -> None:
        self.core = Core([parse_endpoint("127.0.0.1:1")], CoreSettings())
        self.store = Store()
        self.store.core = self.core
        self.core.transport = self.store
        self.store.revisions = [[b"a"] for _ in range(revisions)]
        self.watching = WatchSet(self.core)
        self.wakes = 0
        options = WatchCreateRequest(key=b"a", start_revision=start)
        self.watch = self.watching.begin(options, self._ready)
        self.reopen()

    def _ready(self) -> None:
        self.wakes += 1

    def reopen(self) -> None:
        if not self.store.is_connected:
            self.core.pass_time(self.core.now + 10)
            self.watching.pass_time(self.core.now)
            self.store.is_connecting, self.store.is_connected = False, True
            self.core.note_connected(0)
        while self.store.calls:
            self.store.answer_call(next(iter(self.store.calls)), "")
        self.core.pass_time(self.core.now + 10)
        self.watching.pass_time(self.core.now)
        self.read()

    def read(self) -> None:
        (number,) = self.store.streams
        while self.store.streams.get(number) and self.store.streams[number].requests:
            self.store.read(number, "")
        while self.store.calls:
            self.store.answer_call(next(iter(self.store.calls)), "")


def test_a_store_that_was_restored_from_a_backup_is_noticed() -> None:
    one = One(revisions=10, start=0)
    one.store.revisions = one.store.revisions[:4]
    one.core.note_disconnected(0, "lost")
    one.store.disconnect(0)
    one.reopen()
    error = one.watch.error
    assert isinstance(error, RevisionWentBackError)
    assert (error.seen, error.found) == (10, 4)
    assert one.wakes


def test_a_watch_may_begin_with_a_revision_that_is_yet_to_come() -> None:
    one = One(revisions=2, start=5)
    assert one.watch.error is None
    one.store.revisions += [[b"a"]] * 4
    (number,) = one.store.streams
    one.store.push(number, one.watch.number, 100, 100)
    changes = one.watching.take(one.watch)
    assert changes is not None
    assert [each.kv.mod_revision for each in changes.events] == [5, 6]


def test_progress_that_was_asked_for_before_a_watch_began_is_not_its_own() -> None:
    one = One(revisions=3, start=4)
    one.watching.request_progress()
    second = one.watching.begin(WatchCreateRequest(key=b"a", start_revision=1), one._ready)
    one.read()
    (number,) = one.store.streams
    one.store.push(number, second.number, 100, 100)
    changes = one.watching.take(second)
    assert changes is not None
    assert [each.kv.mod_revision for each in changes.events] == [1, 2, 3]


def test_a_watch_that_waits_for_a_stream_ends_when_the_client_closes() -> None:
    one = One(revisions=3, start=4)
    one.core.note_disconnected(0, "lost")
    one.store.disconnect(0)
    assert one.watch.state is WatchState.LOST
    one.core.close()
    one.watching.close()
    assert isinstance(one.watch.error, ClosedError)
    late = one.watching.begin(WatchCreateRequest(key=b"a"), one._ready)
    assert isinstance(late.error, ClosedError)
    assert one.watching.wake_at() == float("inf")


def test_a_question_for_the_revision_that_is_reset_is_asked_again() -> None:
    """A watch outlives what a stream would outlive, also before it has one."""
    one = One(revisions=3, start=4)
    seen = one.watching.begin(WatchCreateRequest(key=b"b"), one._ready)
    (number,) = one.store.calls
    del one.store.calls[number]
    one.core.take_end(number, End(Code.INTERNAL, "the server reset the call"))
    assert seen.state is WatchState.ASKING and not one.store.calls
    asks_at = one.watching.wake_at()
    assert one.core.now < asks_at < one.core.now + 1
    one.core.pass_time(asks_at)
    one.watching.pass_time(asks_at)
    (number,) = one.store.calls
    one.store.answer_call(number, "")
    assert seen.revision == 4
    assert one.watching.wake_at() == float("inf")


def test_an_unknown_reason_is_passed_on_unchanged() -> None:
    one = One(revisions=3, start=4)
    (number,) = one.store.streams
    response = WatchResponse(watch_id=one.watch.number, canceled=True, cancel_reason="tired")
    one.store.tell(number, response)
    assert isinstance(one.watch.error, WatchCanceledError)
    assert "tired" in str(one.watch.error)


def test_a_watch_that_is_not_resumed_ends_with_its_stream() -> None:
    one = One(revisions=3, start=1)
    lasting = one.watch
    single = one.watching.begin(
        WatchCreateRequest(key=b"a", start_revision=1), one._ready, resumes=False
    )
    one.read()
    (number,) = one.store.streams
    for watch in (lasting, single):
        one.store.push(number, watch.number, 100, 100)
    one.core.note_disconnected(0, "lost")
    one.store.disconnect(0)
    assert isinstance(single.error, WatchLostError) and lasting.error is None
    # What came before is told.
    changes = one.watching.take(single)
    assert changes is not None and changes.revision == 3
    one.reopen()
    assert lasting.state is WatchState.OPEN and single.state is WatchState.ENDED


def test_a_watch_that_is_not_resumed_waits_for_its_first_stream() -> None:
    one = One(revisions=3, start=4)
    one.core.note_disconnected(0, "lost")
    one.store.disconnect(0)
    single = one.watching.begin(
        WatchCreateRequest(key=b"a", start_revision=1), one._ready, resumes=False
    )
    one.reopen()
    assert single.error is None and single.state is WatchState.OPEN


def test_a_watch_that_is_not_resumed_and_keeps_its_share_ends_with_its_stream(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(watch_set, "KEPT_EVENTS_MAX", 2)
    one = One(revisions=3, start=4)
    single = one.watching.begin(
        WatchCreateRequest(key=b"a", start_revision=1), one._ready, resumes=False
    )
    one.read()
    (number,) = one.store.streams
    one.store.push(number, single.number, 2, 100)
    # On the same stream it goes on when what it kept is taken.
    assert one.watching.take(single) is not None
    one.read()
    one.store.revisions.append([b"a"])
    one.store.push(number, single.number, 100, 100)
    assert single.state is WatchState.PARKED
    one.core.note_disconnected(0, "lost")
    one.store.disconnect(0)
    assert one.watching.take(single) is not None
    assert isinstance(single.error, WatchLostError)
