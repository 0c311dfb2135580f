"""Calls of a real gRPC client: payloads, metadata, statuses, sizes, and streams both ways."""

import queue
import random
import threading
from collections.abc import Iterator

import grpc
import pytest

from kvorum.api.errors import Code, Status, message_too_large
from kvorum.network.edge import COUNTERS, INCIDENTS, EdgeEventKind, Limits
from kvorum.network.edge.interface import LEVELS
from tests.network.edge.client import Client, connect, failure
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import (
    ECHO,
    ECHO_STREAM,
    HELD,
    HELD_STREAM,
    OK,
    PATHS,
    WAIT_SECONDS,
    Service,
)


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with connect(service.address) as client:
        yield client


class Feed:
    """What a test sends on a stream, when it sends it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()

    def send(self, payload: bytes) -> None:
        self._queue.put(payload)

    def close(self) -> None:
        self._queue.put(None)

    def __iter__(self) -> Iterator[bytes]:
        while (payload := self._queue.get()) is not None:
            yield payload


@pytest.mark.parametrize("size", [0, 1, 5, 16379, 16384, 65535, 65536, 1 << 20])
def test_unary_payloads_of_every_size(client: Client, size: int) -> None:
    payload = random.Random(size).randbytes(size)
    assert client.unary(ECHO, payload) == payload


def test_a_request_is_call_method_payload_and_metadata(service: Service, client: Client) -> None:
    future = client.unary_call(HELD, b"payload")
    call, method, payload, metadata = service.next_request()
    assert (PATHS[method], payload, metadata) == (HELD, b"payload", None)
    service.remote.reply([(call, b"answer")])
    assert future.result(WAIT_SECONDS) == b"answer"
    assert future.code() == grpc.StatusCode.OK
    assert future.initial_metadata() == ()
    assert future.trailing_metadata() == ()


@pytest.mark.parametrize(
    ("sent", "reported"),
    [
        ([], None),
        ([("other", "x"), ("tokens", "y")], None),
        ([("token", "first"), ("other", "x"), ("token", "second")], {"token": b"first"}),
        ([("token", "")], {"token": b""}),
        (
            [("hasleader", "true"), ("authorization", "Bearer t")],
            {"hasleader": b"true", "authorization": b"Bearer t"},
        ),
    ],
)
@pytest.mark.parametrize("path", [HELD, HELD_STREAM])
def test_metadata_is_the_first_value_of_subscribed_keys(
    service: Service,
    client: Client,
    path: str,
    sent: list[tuple[str, str]],
    reported: dict[str, bytes] | None,
) -> None:
    if path == HELD:
        future = client.unary_call(path, b"", metadata=sent)
        call, _, _, metadata = service.next_request()
        service.remote.reply([(call, b"")])
        assert future.result(WAIT_SECONDS) == b""
    else:
        stream = client.stream(path, [], metadata=sent)
        opened = service.next_event(EdgeEventKind.OPENED)
        metadata = opened.detail[1]
        service.remote.finish(opened.call, OK)
        assert list(stream) == []
    assert metadata == reported


def test_initial_metadata_and_trailers_of_a_stream(service: Service, client: Client) -> None:
    feed = Feed()
    stream = client.stream(HELD_STREAM, feed)
    call = service.next_event(EdgeEventKind.OPENED).call
    service.remote.start(call, [("early", "1"), ("twice", "a"), ("twice", "b")])
    # It is here before any message is.
    assert stream.initial_metadata() == (("early", "1"), ("twice", "a"), ("twice", "b"))
    service.remote.send([(call, b"one")])
    assert next(stream) == b"one"
    service.remote.finish(call, OK, [("late", "2")])
    assert list(stream) == []
    assert stream.trailing_metadata() == (("late", "2"),)
    feed.close()


def test_a_unary_call_served_by_start_send_and_finish(service: Service, client: Client) -> None:
    future = client.unary_call(HELD, b"")
    call = service.next_request()[0]
    service.remote.start(call, [("early", "1")])
    service.remote.send([(call, b"answer")])
    service.remote.finish(call, OK, [("late", "2")])
    assert future.result(WAIT_SECONDS) == b"answer"
    assert future.initial_metadata() == (("early", "1"),)
    assert future.trailing_metadata() == (("late", "2"),)


def test_a_unary_call_finished_without_a_message(service: Service, client: Client) -> None:
    future = client.unary_call(HELD, b"")
    call = service.next_request()[0]
    status = Status(Code.NOT_FOUND, "etcdserver: requested lease not found")
    service.remote.finish(call, status, [("late", "2")])
    assert failure(future) == status
    assert ("late", "2") in future.trailing_metadata()


@pytest.mark.parametrize(
    "status",
    [
        Status(Code.INVALID_ARGUMENT, "etcdserver: key is not provided"),
        Status(Code.UNKNOWN, 'ümläut, 日本, 🜁, 100 %, %41, "quoted"\n\ttab, \x7f'),
        Status(Code.UNAUTHENTICATED, ""),
        Status(Code.DATA_LOSS, "long " * 500),
        *(Status(code, code.name) for code in Code if code is not Code.OK),
    ],
)
def test_errors_arrive_with_code_and_text(service: Service, client: Client, status: Status) -> None:
    future = client.unary_call(HELD, b"")
    call = service.next_request()[0]
    service.remote.reply([(call, status)])
    assert failure(future) == status

    feed = Feed()
    stream = client.stream(HELD_STREAM, feed)
    call = service.next_event(EdgeEventKind.OPENED).call
    service.remote.send([(call, b"before")])
    service.remote.finish(call, status)
    assert next(stream) == b"before"
    with pytest.raises(grpc.RpcError):
        next(stream)
    assert (stream.code().value[0], stream.details()) == status
    feed.close()


def test_server_streaming(service: Service, client: Client) -> None:
    stream = client.channel.unary_stream(HELD_STREAM)(b"go", timeout=WAIT_SECONDS)
    call = service.next_event(EdgeEventKind.OPENED).call
    assert service.next_event(EdgeEventKind.MESSAGE, call).detail == b"go"
    service.next_event(EdgeEventKind.HALF_CLOSED, call)
    for number in range(100):
        service.remote.send([(call, b"%d" % number)])
    service.remote.finish(call, OK)
    assert list(stream) == [b"%d" % number for number in range(100)]


def test_bidirectional_streaming_in_turns(client: Client) -> None:
    feed = Feed()
    stream = client.stream(ECHO_STREAM, feed)
    for number in range(50):
        payload = b"x" * number
        feed.send(payload)
        assert next(stream) == payload
    feed.close()
    assert list(stream) == []
    assert stream.code() == grpc.StatusCode.OK


def test_messages_of_a_stream_keep_their_order(client: Client) -> None:
    source = random.Random(7)
    payloads = [b"%d:" % n + source.randbytes(source.choice([0, 1, 300])) for n in range(3000)]
    assert list(client.stream(ECHO_STREAM, payloads)) == payloads


def test_a_batch_of_sends_keeps_the_order_of_each_call(service: Service, client: Client) -> None:
    feeds = [Feed() for _ in range(3)]
    streams = {}
    for feed in feeds:
        stream = client.stream(HELD_STREAM, feed)
        streams[service.next_event(EdgeEventKind.OPENED).call] = stream
    batch = [(call, b"%d" % number) for number in range(200) for call in streams]
    service.remote.send(batch)
    for call in streams:
        service.remote.finish(call, OK)
    for stream in streams.values():
        assert list(stream) == [b"%d" % number for number in range(200)]
    for feed in feeds:
        feed.close()


def test_messages_to_many_streams_arrive_whole_however_long(
    service: Service, client: Client
) -> None:
    feeds = [Feed() for _ in range(3)]
    streams = {}
    for feed in feeds:
        stream = client.stream(HELD_STREAM, feed)
        streams[service.next_event(EdgeEventKind.OPENED).call] = stream
    sizes = (0, 1, 300, 16 * 1024 - 11, 16 * 1024, 0, 100_000, 5, 5)
    messages = [bytes((number,)) * size for number, size in enumerate(sizes)]
    service.remote.send([(call, message) for message in messages for call in streams])
    for call in streams:
        service.remote.finish(call, OK)
    for stream in streams.values():
        assert list(stream) == messages
    for feed in feeds:
        feed.close()


def test_half_close_comes_after_the_last_message(service: Service, client: Client) -> None:
    stream = client.stream(HELD_STREAM, [b"a", b"", b"c"])
    call = service.next_event(EdgeEventKind.OPENED).call
    assert [service.next_event(EdgeEventKind.MESSAGE, call).detail for _ in range(3)] == [
        b"a",
        b"",
        b"c",
    ]
    service.next_event(EdgeEventKind.HALF_CLOSED, call)
    service.remote.send([(call, b"still open")])
    assert next(stream) == b"still open"
    service.remote.finish(call, OK)
    assert list(stream) == []


def test_a_stream_finished_before_its_client_is_done(service: Service, client: Client) -> None:
    feed = Feed()
    stream = client.stream(HELD_STREAM, feed)
    call = service.next_event(EdgeEventKind.OPENED).call
    service.remote.finish(call, OK)
    assert list(stream) == []
    feed.close()
    assert client.unary(ECHO, b"next") == b"next"
    assert service.events.empty(), "nothing is said of a call after it was finished"


@pytest.mark.parametrize("over", [0, 1])
@pytest.mark.parametrize("path", [ECHO, ECHO_STREAM])
def test_the_largest_message_and_one_byte_more(
    open_service: OpenService, path: str, over: int
) -> None:
    limit = 100_000
    service = open_service(Limits(request_bytes_max=limit))
    payload = b"x" * (limit + over)
    with connect(service.address) as client:
        future = client.unary_call(path, payload)
        if over:
            assert failure(future) == message_too_large(limit + 1, limit)
            assert service.remote.counters()["requests_refused"] == 1
        else:
            assert future.result(WAIT_SECONDS) == payload
        assert client.unary(ECHO, b"next") == b"next"


@pytest.mark.parametrize("path", [ECHO, ECHO_STREAM])
def test_gzip_requests_are_accepted(client: Client, path: str) -> None:
    payload = b"compressible " * 10_000
    gzip = grpc.Compression.Gzip
    if path == ECHO:
        assert client.unary(path, payload, compression=gzip) == payload
    else:
        assert list(client.stream(path, [payload] * 3, compression=gzip)) == [payload] * 3


@pytest.mark.parametrize("path", [ECHO, ECHO_STREAM])
def test_other_encodings_are_not(client: Client, path: str) -> None:
    future = client.unary_call(path, b"x" * 1000, compression=grpc.Compression.Deflate)
    assert failure(future) == (
        Code.UNIMPLEMENTED,
        'grpc: Decompressor is not installed for grpc-encoding "deflate"',
    )


def test_large_replies_pass_flow_control(service: Service, client: Client) -> None:
    payload = random.Random(1).randbytes(1 << 20) * 20
    future = client.unary_call(HELD, b"")
    call = service.next_request()[0]
    service.remote.reply([(call, payload)])
    assert future.result(WAIT_SECONDS) == payload

    feed = Feed()
    stream = client.stream(HELD_STREAM, feed)
    call = service.next_event(EdgeEventKind.OPENED).call
    service.remote.send([(call, payload)] * 2)
    service.remote.finish(call, OK)
    assert [len(message) for message in stream] == [len(payload)] * 2
    feed.close()


def test_many_calls_at_once(service: Service) -> None:
    clients, calls = 5, 200
    failures: queue.SimpleQueue[object] = queue.SimpleQueue()

    def run(number: int) -> None:
        with connect(service.address) as client:
            futures = [
                (payload, client.unary_call(ECHO, payload))
                for payload in (b"%d %d" % (number, call) for call in range(calls))
            ]
            for payload, future in futures:
                if future.result(WAIT_SECONDS) != payload:
                    failures.put(payload)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures.empty()
    counters = service.remote.counters()
    assert counters["calls_received"] == clients * calls


def test_replies_in_one_batch_reach_their_own_calls(service: Service, client: Client) -> None:
    futures = {b"%d" % n: client.unary_call(HELD, b"%d" % n) for n in range(300)}
    requests = [service.next_request() for _ in futures]
    assert len({request[0] for request in requests}) == len(requests), "call numbers differ"
    random.Random(3).shuffle(requests)
    replies: list[tuple[int, bytes | Status]] = [
        (call, b"re " + payload)
        if int(payload) % 2
        else (call, Status(Code.ABORTED, payload.decode()))
        for call, _, payload, _ in requests
    ]
    service.remote.reply(replies)
    for payload, future in futures.items():
        if int(payload) % 2:
            assert future.result(WAIT_SECONDS) == b"re " + payload
        else:
            assert failure(future) == (Code.ABORTED, payload.decode())


def test_counters(service: Service, client: Client) -> None:
    feed = Feed()
    stream = client.stream(HELD_STREAM, feed)
    call = service.next_event(EdgeEventKind.OPENED).call
    feed.send(b"x" * 1000)
    service.next_event(EdgeEventKind.MESSAGE, call)
    assert client.unary(ECHO, b"y" * 1000) == b"y" * 1000
    # The counter is written after the bytes are, and the client may be faster.
    service.until(lambda edge: edge.counters()["bytes_written"] > 1000)
    counters = service.remote.counters()
    assert set(counters) == {*COUNTERS, *LEVELS, *INCIDENTS}
    assert all(type(value) is int for value in counters.values())
    assert counters["connections_accepted"] == counters["connections_open"] == 1
    assert counters["calls_received"] == 2
    assert counters["calls_open"] == 1
    assert counters["messages_received"] == 2
    assert counters["messages_sent"] == 1
    assert counters["bytes_read"] > 2000
    assert counters["deadlines_exceeded"] == counters["requests_refused"] == 0
    service.remote.finish(call, OK)
    assert list(stream) == []
    feed.close()
    client.channel.close()
    service.until(lambda edge: edge.counters()["connections_open"] == 0)
    counters = service.remote.counters()
    assert counters["calls_open"] == 0
    assert counters["connections_accepted"] == 1
