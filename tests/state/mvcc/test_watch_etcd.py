"""A real etcd is asked the same, and sends the same bytes.

Left out is where 3.5.1 answers otherwise than 3.7 (progress while a watcher is not synced,
negative starts, a tombstone at the compacted revision), and how catching up is cut into
responses when writes go on meanwhile.
"""

import queue
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from kvorum.api.codec import HeaderEncoder
from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    PutRequest,
    RequestOp,
    TxnRequest,
    TxnResponse,
    WatchCancelRequest,
    WatchCreateRequest,
    WatchProgressRequest,
    WatchRequest,
    WatchResponse,
)
from kvorum.api.ranges import prefix_end
from kvorum.state.mvcc.watch.hub import REQUEST_BYTES_MAX
from tests.etcd import Etcd, running_etcd
from tests.state.mvcc.watch_walk import FILTERS, KEYS, WIDE
from tests.state.mvcc.watch_world import Operation, Watch, World
from tests.waiting import WAIT_SECONDS_MAX


class EtcdStream:
    """A Watch call to etcd; responses are taken as bytes."""

    def __init__(self, channel: Any) -> None:
        self._requests: queue.Queue[bytes | None] = queue.Queue()
        self._responses: queue.Queue[bytes] = queue.Queue()
        call = channel.stream_stream("/etcdserverpb.Watch/Watch", None, None)
        self._call = call(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            for response in self._call:
                self._responses.put(response)
        except grpc.RpcError:
            return

    def send(self, request: WatchRequest) -> None:
        self._requests.put(request.SerializeToString())

    def take(self, count: int) -> list[bytes]:
        return [self._responses.get(timeout=WAIT_SECONDS_MAX) for _ in range(count)]

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._reader.join()
        assert self._responses.empty()


class Both:
    """Our store and hub, and etcd; every call goes to both and the answers must be equal."""

    def __init__(self, etcd: Etcd) -> None:
        self.channel = grpc.insecure_channel(
            etcd.address, options=[("grpc.max_receive_message_length", -1)]
        )
        self.world = World(fragment_bytes=REQUEST_BYTES_MAX)
        self.model = self.world.model
        self.streams: dict[int, EtcdStream] = {}
        self.compared = 0
        header = self._ask("Txn", TxnRequest(), TxnResponse).header
        self.world.hub.header = HeaderEncoder(header.cluster_id, header.member_id, header.raft_term)
        assert header.revision == self.model.revision

    def _ask(self, method: str, request: Any, response: Any = None) -> Any:
        call = self.channel.unary_unary(f"/etcdserverpb.KV/{method}", None, None)
        answer = call(request.SerializeToString(), timeout=WAIT_SECONDS_MAX)
        return response.FromString(answer) if response else None

    def open(self) -> int:
        client = self.world.open()
        self.streams[client.stream.call] = EtcdStream(self.channel)
        return client.stream.call

    def write(self, operations: list[Operation]) -> None:
        changes = []
        for operation in operations:
            if len(operation) == 2:
                put = PutRequest(key=operation[0], value=operation[1])
                changes.append(RequestOp(request_put=put))
            else:
                delete = DeleteRangeRequest(key=operation[0], range_end=operation[1])
                changes.append(RequestOp(request_delete_range=delete))
        self._ask("Txn", TxnRequest(success=changes))
        self.world.write(operations)
        self.compare()

    def compact(self, revision: int) -> None:
        self._ask("Compact", CompactionRequest(revision=revision))
        self.world.compact(revision)
        self.compare()

    def create(self, call: int, request: WatchCreateRequest) -> None:
        self.streams[call].send(WatchRequest(create_request=request))
        stream = self.world.clients[call].stream
        stream.create(
            request.key,
            request.range_end,
            request.start_revision,
            watch_id=request.watch_id,
            progress_notify=request.progress_notify,
            filters=request.filters,
            prev_kv=request.prev_kv,
            fragment=request.fragment,
        )
        self.compare()

    def cancel(self, call: int, watch_id: int) -> None:
        request = WatchCancelRequest(watch_id=watch_id)
        self.streams[call].send(WatchRequest(cancel_request=request))
        self.world.clients[call].stream.cancel(watch_id)
        self.compare()

    def ask_progress(self, call: int) -> None:
        self.streams[call].send(WatchRequest(progress_request=WatchProgressRequest()))
        self.world.clients[call].stream.request_progress()
        self.compare()

    def compare(self) -> None:
        """Take from etcd as many responses as we sent, and compare them.

        Watchers of one stream are told of one transaction in any order; fragments of one
        response come one behind the other.
        """
        ours: dict[int, list[bytes]] = {}
        for call, response in self._outgoing():
            ours.setdefault(call, []).append(response)
        for call, responses in ours.items():
            theirs = self.streams[call].take(len(responses))
            assert by_watcher(theirs) == by_watcher(responses)
            self.compared += len(responses)

    def _outgoing(self) -> Iterator[tuple[int, bytes]]:
        """Everything; what is large makes a stream full, until the rest of it is taken."""
        yield from self.world.hub.take_outgoing()
        while self.world.hub.has_work:
            self.world.hub.step()
            yield from self.world.hub.take_outgoing()

    def close(self) -> None:
        for stream in self.streams.values():
            stream.close()
        self.channel.close()


def by_watcher(responses: list[bytes]) -> dict[int, list[bytes]]:
    found: dict[int, list[bytes]] = {}
    for response in responses:
        found.setdefault(WatchResponse.FromString(response).watch_id, []).append(response)
    return found


@pytest.fixture
def both(tmp_path: Path) -> Iterator[Both]:
    with running_etcd(tmp_path / "etcd") as etcd:
        both = Both(etcd)
        try:
            yield both
        finally:
            both.close()


class Script:
    """Calls as a seed says, of the kind that 3.5.1 answers as 3.7 does."""

    def __init__(self, both: Both, seed: int) -> None:
        self.both = both
        self.rng = random.Random(seed)
        self.calls = [both.open() for _ in range(3)]
        # Per call: what each id watches, with those a compaction has ended as None.
        self.watches: dict[int, dict[int, Watch | None]] = {call: {} for call in self.calls}

    def write(self) -> None:
        rng = self.rng
        if rng.random() < 0.3:
            key = rng.choice(KEYS)
            self.both.write([(key, rng.choice([b"", prefix_end(key), b"\0"]), None)])
        else:
            keys = rng.sample(KEYS, rng.choice([1, 1, 2, 5]))
            self.both.write([(key, rng.choice([b"", b"x", b"y" * 99])) for key in keys])

    def create(self) -> None:
        rng, model = self.rng, self.both.model
        call = rng.choice(self.calls)
        watches = self.watches[call]
        key = rng.choice(KEYS)
        where = rng.choice(
            [(key, b""), (key, prefix_end(key)), rng.choice(WIDE), (key, rng.choice(KEYS))]
        )
        filters = rng.choice(FILTERS)
        watch_id = rng.choice([0, 0, rng.randint(1, 9), -3])
        start = rng.choice([0, rng.randint(1, model.revision), model.revision + rng.randint(0, 3)])
        if 0 < start <= model.revision:
            watch = Watch(0, *where, start, start, filters)
            # Nothing to be told: etcd would sync it some time later, and nobody could see it.
            # What was deleted at the compacted revision, 3.5.1 has forgotten.
            first = max(start, model.compacted)
            told = model.between(watch, first, model.revision)
            if not told or told[0].kv.mod_revision == model.compacted:
                start = 0
        self.both.create(
            call,
            WatchCreateRequest(
                key=where[0],
                range_end=where[1],
                start_revision=start,
                filters=filters,  # type: ignore[arg-type]
                prev_kv=rng.random() < 0.5,
                watch_id=watch_id,
                fragment=rng.random() < 0.5,
            ),
        )
        if (where[1] and where[1] != b"\0" and where[0] >= where[1]) or (
            watch_id and watch_id in watches
        ):
            return
        if not watch_id:
            client = self.both.world.clients[call]
            while client.next_id in watches:
                client.next_id += 1
            watch_id = client.next_id
            client.next_id += 1
        is_ended = 0 < start < model.compacted
        watches[watch_id] = None if is_ended else Watch(watch_id, *where, start, start)

    def cancel(self) -> None:
        call = self.rng.choice(self.calls)
        watch_id = self.rng.choice([*self.watches[call], 5])
        self.both.cancel(call, watch_id)
        self.watches[call].pop(watch_id, None)

    def ask_progress(self) -> None:
        call = self.rng.choice(self.calls)
        watches = self.watches[call].values()
        current = self.both.model.revision
        if watches and all(watch is not None and watch.start <= current for watch in watches):
            self.both.ask_progress(call)

    def compact(self) -> None:
        model = self.both.model
        revision = self.rng.randint(max(1, model.compacted + 1), model.revision)
        if revision > model.compacted:
            self.both.compact(revision)

    def run(self, steps: int) -> None:
        actions = [self.write] * 10 + [self.create] * 6 + [self.cancel] * 3
        actions += [self.ask_progress] * 2 + [self.compact]
        for _ in range(steps):
            self.rng.choice(actions)()
        for call in self.calls:
            for watch_id in list(self.watches[call]):
                self.both.cancel(call, watch_id)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_calls_get_the_same_bytes(both: Both, seed: int) -> None:
    Script(both, seed).run(150)
    assert both.compared > 100


def test_a_large_transaction_is_fragmented_alike(both: Both) -> None:
    call = both.open()
    for fragment in (True, False):
        request = WatchCreateRequest(key=b"f", range_end=b"g", prev_kv=True, fragment=fragment)
        both.create(call, request)
    counts = set()
    # Two values that make a limit, give or take some bytes; deleted together, and one more.
    for extra in range(-130, -70, 4):
        values = [bytes(1 << 20), bytes((1 << 20) + extra)]
        for number, value in enumerate(values + values[:1]):
            both.write([(b"f%d" % number, value)])
        before = both.compared
        both.write([(b"f0", b"f2", None)])
        counts.add(both.compared - before)
        both.write([(b"f0", b"g", None)])
    assert counts == {2, 3}


def test_history_of_more_revisions_than_a_response_may_have(both: Both) -> None:
    first = both.model.revision + 1
    for number in range(1100):
        both.write([(b"long/%d" % (number % 7), b"%d" % number)])
    call = both.open()
    both.streams[call].send(
        WatchRequest(
            create_request=WatchCreateRequest(
                key=b"long/", range_end=b"long0", start_revision=first, prev_kv=True
            )
        )
    )
    both.world.clients[call].stream.create(b"long/", b"long0", first, prev_kv=True)
    ours = [WatchResponse.FromString(data) for _, data in both._outgoing()]
    theirs = [WatchResponse.FromString(data) for data in both.streams[call].take(3)]
    assert [len(response.events) <= 1000 for response in ours + theirs] == [True] * 6
    assert [e for r in ours for e in r.events] == [e for r in theirs for e in r.events]
    assert [r.header for r in ours] == [r.header for r in theirs]
    assert {r.header.revision for r in ours} == {both.model.revision}
