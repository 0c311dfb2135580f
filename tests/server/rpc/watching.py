"""Watch streams to both servers: the same requests, the responses, and how they are compared."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

import grpc
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from tests.server.rpc.calls import (
    At,
    Call,
    compact_calls,
    flags,
    grants,
    lease_calls,
    txn_calls,
    writes,
)
from tests.server.rpc.harness import Harness
from tests.server.rpc.oracle import Oracle
from tests.waiting import WAIT_SECONDS_MAX

T = TypeVar("T")


class Watching(NamedTuple):
    """One request on the stream, with a revision relative to the current one."""

    kind: str
    fields: dict[str, Any]

    def request(self, revision: int) -> pb.WatchRequest:
        fields = dict(self.fields)
        if isinstance(fields.get("start_revision"), At):
            fields["start_revision"] = max(1, revision + fields["start_revision"].offset)
        if self.kind == "create":
            return pb.WatchRequest(create_request=pb.WatchCreateRequest(**fields))
        if self.kind == "cancel":
            return pb.WatchRequest(cancel_request=pb.WatchCancelRequest(**fields))
        if self.kind == "progress":
            return pb.WatchRequest(progress_request=pb.WatchProgressRequest())
        return pb.WatchRequest()


creates = st.fixed_dictionaries(
    {
        "key": st.sampled_from([b"", b"a", b"a", b"b", b"c"]),
        "range_end": st.sampled_from([b"", b"\0", b"\0", b"c", b"\xff", b"a"]),
        "start_revision": st.one_of(
            st.sampled_from([0, 0, 0, 1]), st.integers(-6, 3).map(At), st.just(-2)
        ),
        "progress_notify": flags,
        "filters": st.sampled_from([[], [], [0], [1], [0, 1], [9]]),
        "prev_kv": flags,
        "watch_id": st.sampled_from([0, 0, 0, 1, 5, -7]),
        "fragment": flags,
    }
).map(lambda fields: Watching("create", fields))
cancels = st.sampled_from([0, 1, 2, 5, -7]).map(lambda each: Watching("cancel", {"watch_id": each}))
others = st.sampled_from([Watching("progress", {}), Watching("nothing", {})])
requests = st.one_of(creates, creates, creates, cancels, others)
steps: st.SearchStrategy[Call | Watching] = st.one_of(
    requests, writes, writes, writes, txn_calls, lease_calls, compact_calls
)


@st.composite
def sequences(draw: st.DrawFn) -> list[Call | Watching]:
    """Make some history, some watchers, and then any steps."""
    found: list[Call | Watching] = []
    found += draw(st.lists(grants, max_size=1))
    found += draw(st.lists(writes, min_size=2, max_size=6))
    found += draw(st.lists(creates, min_size=1, max_size=3))
    return found + draw(st.lists(steps, min_size=10, max_size=25))


class Seen:
    """What a stream has sent, by watcher; responses without a watcher are kept apart."""

    def __init__(self) -> None:
        self.responses: dict[int, list[pb.WatchResponse]] = {}
        self.progress: list[pb.WatchResponse] = []

    def add(self, response: pb.WatchResponse) -> None:
        is_control = response.created or response.canceled
        if response.watch_id == -1 and not is_control and not response.events:
            self.progress.append(response)
        else:
            self.responses.setdefault(response.watch_id, []).append(response)

    def counts(self) -> dict[int, tuple[int, int]]:
        """Return how many control responses and events each watcher has had."""
        return {
            watch_id: (
                sum(1 for each in found if not each.events),
                sum(len(each.events) for each in found),
            )
            for watch_id, found in self.responses.items()
        }


class OracleStream:
    """A watch stream to a real server, read by a thread."""

    def __init__(self, oracle: Oracle) -> None:
        self._requests: queue.SimpleQueue[pb.WatchRequest | None] = queue.SimpleQueue()
        self._changed = threading.Condition()
        self.seen = Seen()
        self._call = oracle.stream("Watch/Watch", self._sent())
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _sent(self) -> Iterator[pb.WatchRequest]:
        while (request := self._requests.get()) is not None:
            yield request

    def _read(self) -> None:
        try:
            for response in self._call:
                with self._changed:
                    self.seen.add(response)
                    self._changed.notify_all()
        except grpc.RpcError:
            pass

    def send(self, request: pb.WatchRequest) -> None:
        self._requests.put(request)

    def wait(self, condition: Callable[[Seen], bool]) -> bool:
        """Wait until enough was seen; False if that does not happen."""
        with self._changed:
            return self._changed.wait_for(lambda: condition(self.seen), WAIT_SECONDS_MAX)

    def ask(self, question: Callable[[Seen], T]) -> T:
        """Look at what was seen so far, while nothing is added to it."""
        with self._changed:
            return question(self.seen)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join()


class OwnStream:
    """A watch stream to our services."""

    def __init__(self, harness: Harness) -> None:
        self._stream = harness.open("Watch/Watch")
        self.seen = Seen()

    def send(self, request: pb.WatchRequest) -> None:
        self._stream.send(request)
        self.look()

    def look(self) -> None:
        for response in self._stream.received():
            self.seen.add(response)

    def close(self) -> None:
        self._stream.cancel()
