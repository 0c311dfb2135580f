"""Watches over real connections: the same conversations at a member, ours and etcd's, and through
a proxy in front of it.
"""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.proxy.running import Running, running_proxy
from tests.server.rpc.calls import Call
from tests.server.rpc.oracle import Oracle
from tests.server.rpc.watching import OracleStream, Seen, Watching, sequences
from tests.waiting import until

CONVERSATIONS = 15
NOBODY = pb.WatchRequest(create_request=pb.WatchCreateRequest(key=b"b", range_end=b"a"))
"""Is refused, after everything before it was answered."""
LAST, LAST_ID = b"last", 1000
"""A key that is put behind everything else, and the watch on it that each stream has."""


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def member(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Oracle]:
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(Path(tmp_path_factory.mktemp("member")) / "data") as server:
        oracle = Oracle(server.address)
        yield oracle
        oracle.close()


@pytest.fixture(scope="module")
def proxy(member: Oracle) -> Iterator[Running]:
    with running_proxy(member.address) as running:
        yield running


@pytest.fixture(scope="module")
def proxied(proxy: Running) -> Iterator[Oracle]:
    oracle = Oracle(proxy.address)
    yield oracle
    oracle.close()


def _revision(server: Oracle) -> int:
    answer: Any = server.ask("KV/Range", pb.RangeRequest(key=b"a"))
    revision: int = answer.header.revision
    return revision


class Conversation:
    """A stream to the member, and one through the proxy."""

    def __init__(self, member: Oracle, proxied: Oracle, *, is_etcd: bool) -> None:
        self._member = member
        self._is_etcd = is_etcd
        self._direct, self._through = OracleStream(member), OracleStream(proxied)
        self._streams = (self._direct, self._through)
        self._refusals = 0

    def run(self, steps: list[Call | Watching]) -> None:
        try:
            create = pb.WatchCreateRequest(key=LAST, watch_id=LAST_ID)
            self._ask(pb.WatchRequest(create_request=create))
            for step in steps:
                revision = _revision(self._member)
                if isinstance(step, Call):
                    self._member.ask(step.name, step.request(revision))
                elif step.kind != "progress":
                    self._watch(step.request(revision), revision)
            self._catch_up()
        finally:
            for stream in self._streams:
                stream.close()

    def _ask(self, request: pb.WatchRequest) -> None:
        """Send a request on both streams, and wait until it was answered."""
        self._refusals += 1
        for stream in self._streams:
            stream.send(request)
            stream.send(NOBODY)
        for stream in self._streams:
            assert stream.wait(lambda seen: _refusals(seen) >= self._refusals)

    def _watch(self, request: pb.WatchRequest, revision: int) -> None:
        self._ask(request)
        if 0 < request.create_request.start_revision <= revision:
            # A compaction before the watcher has caught up would end it.
            self._catch_up()

    def _catch_up(self) -> None:
        """Wait until the member has told everything, and the proxy all the same."""
        if self._is_etcd:
            self._member.wait_for_watchers()
        put: Any = self._member.ask("KV/Put", pb.PutRequest(key=LAST))
        # What came before it was told before it, to each watcher that is not behind.
        for stream in self._streams:
            assert stream.wait(partial(_has_last, put.header.revision))
        until(
            "both streams have told the same",
            lambda: self._direct.ask(_comparable) == self._through.ask(_comparable),
        )


def _has_last(revision: int, seen: Seen) -> bool:
    found = seen.responses.get(LAST_ID, [])
    return any(event.kv.mod_revision >= revision for each in found for event in each.events)


def _refusals(seen: Seen) -> int:
    found = seen.responses.get(-1, [])
    return sum(each.cancel_reason == errors.WATCH_RANGE_EMPTY.text for each in found)


def _comparable(seen: Seen) -> dict[int, tuple[list[bytes], list[bytes]]]:
    """Return the answers to each watcher's requests, and its events, however they are grouped."""
    found = {}
    for watch_id, responses in seen.responses.items():
        controls, events = [], []
        last = 0
        for response in responses:
            # Watchers hear of one revision in any order, so some may not have heard of the last.
            events += [each.SerializeToString() for each in response.events if each.kv.key != LAST]
            for event in response.events:
                assert event.kv.mod_revision >= last
                last = event.kv.mod_revision
            if not response.events:
                # A proxy answers for the member, and may not know its newest revision yet.
                answer = pb.WatchResponse()
                answer.CopyFrom(response)
                answer.header.revision = 0
                controls.append(answer.SerializeToString())
        found[watch_id] = controls, events
    return found


@pytest.mark.long
@given(steps=sequences())
@settings(
    deadline=None,
    max_examples=CONVERSATIONS,
    # Without shrinking: what does not come is awaited for long, each time.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
def test_conversations(
    request: pytest.FixtureRequest, member: Oracle, proxied: Oracle, steps: list[Call | Watching]
) -> None:
    is_etcd = request.node.callspec.params["member"] == "etcd"
    Conversation(member, proxied, is_etcd=is_etcd).run(steps)


def _is_told(revision: int, seen: Seen) -> bool:
    return any(each.header.revision >= revision for each in seen.progress)


def test_progress(member: Oracle, proxied: Oracle) -> None:
    stream = OracleStream(proxied)
    try:
        create = pb.WatchCreateRequest(key=b"quiet", start_revision=_revision(member))
        stream.send(pb.WatchRequest(create_request=create))
        for _ in range(5):
            member.ask("KV/Put", pb.PutRequest(key=b"busy"))
            revision = _revision(member)
            # It is told however often others catch up meanwhile.
            stream.send(pb.WatchRequest(progress_request=pb.WatchProgressRequest()))
            assert stream.wait(partial(_is_told, revision))
    finally:
        stream.close()


@pytest.mark.long
def test_many_watchers(member: Oracle, proxied: Oracle, proxy: Running) -> None:
    streams = [OracleStream(proxied) for _ in range(20)]
    try:
        for stream in streams:
            for _ in range(50):
                create = pb.WatchCreateRequest(key=b"many")
                stream.send(pb.WatchRequest(create_request=create))
        for stream in streams:
            assert stream.wait(lambda seen: len(seen.responses) == 50)
        for _ in range(10):
            member.ask("KV/Put", pb.PutRequest(key=b"many"))
        for stream in streams:
            assert stream.wait(
                lambda seen: all(count == (1, 10) for count in seen.counts().values())
            )
        assert proxy.proxy.counters.watchers_coalesced == 999
    finally:
        for stream in streams:
            stream.close()
