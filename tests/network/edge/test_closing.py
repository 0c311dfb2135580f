"""The end of an edge: draining lets calls finish, stopping does not, a fork leaves it to one."""

import contextlib
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hyperframe.frame import GoAwayFrame

from kvorum.network.edge import EdgeEventKind
from tests.network.edge.client import connect as connect_client
from tests.network.edge.conftest import OpenEdge, OpenService
from tests.network.edge.loop import shake_hands
from tests.network.edge.service import ECHO, HELD, HELD_STREAM, OK, WAIT_SECONDS, Service
from tests.network.edge.wire import Reply, Wire, connect, message
from tests.ports import held_port
from tests.waiting import until

REPOSITORY = Path(__file__).parents[3]


def test_drain_of_an_idle_edge(open_service: OpenService) -> None:
    with held_port() as port:
        service = open_service(None, f"127.0.0.1:{port}")
        assert not service.remote.is_drained()
        service.remote.drain()
        service.until(lambda edge: edge.is_drained())
        with pytest.raises(ConnectionRefusedError):
            connect(service.address)


def test_drain_lets_calls_finish(service: Service) -> None:
    with Wire(service.address) as wire, connect(service.address) as plain:
        unary = wire.call(HELD, message(b""))
        unary_call = service.next_request()[0]
        stream = wire.call(HELD_STREAM, message(b"a"), end=False)
        stream_call = service.next_event(EdgeEventKind.OPENED).call
        service.next_event(EdgeEventKind.MESSAGE, stream_call)
        plain.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        http_call = service.next_event(EdgeEventKind.HTTP_OPENED).call
        service.next_event(EdgeEventKind.HALF_CLOSED, http_call)

        service.remote.drain()
        while wire.goaway is None:
            wire.pump()
        assert wire.goaway.error_code == 0
        assert not service.remote.is_drained()

        # The open stream still goes both ways.
        wire.data(stream, message(b"b"), end=True)
        assert service.next_event(EdgeEventKind.MESSAGE, stream_call).detail == b"b"
        service.next_event(EdgeEventKind.HALF_CLOSED, stream_call)
        service.remote.send([(stream_call, b"c")])
        service.remote.finish(stream_call, OK)
        assert wire.answer(stream).data == message(b"c")
        assert wire.answer(stream).status == (0, "")
        service.remote.reply([(unary_call, b"d")])
        assert wire.answer(unary).data == message(b"d")
        assert wire.until_closed() == 0
        assert not service.remote.is_drained()

        service.remote.respond(http_call, 200, [], b"e")
        with plain.makefile("rb") as file:
            assert Reply(file).body == b"e"
            assert file.read() == b""
    service.until(lambda edge: edge.is_drained())


def test_drain_serves_what_is_on_its_way(service: Service) -> None:
    with Wire(service.address) as wire:
        held = wire.call(HELD_STREAM, message(b""), end=False)
        stream_call = service.next_event(EdgeEventKind.OPENED).call
        service.next_event(EdgeEventKind.MESSAGE, stream_call)
        service.remote.drain()
        while not isinstance(wire.read_frame(), GoAwayFrame):
            pass
        # The edge cannot know yet that the client has read this.
        late = wire.call(HELD, message(b""))
        call = service.next_request()[0]
        assert not service.remote.is_quiet()
        while wire.goaway is None:
            wire.pump()
        assert wire.goaway.last_stream_id == late
        service.until(lambda edge: edge.is_quiet())
        service.remote.reply([(call, b"")])
        assert wire.answer(late).status == (0, "")
        assert not service.remote.is_drained(), "a stream is open"
        service.remote.finish(stream_call, OK)
        assert wire.answer(held).status == (0, "")
        assert wire.until_closed() == 0
    service.until(lambda edge: edge.is_drained())


def test_quiet_when_the_last_call_was_polled(open_it: OpenEdge) -> None:
    """A client that confirms leaves calls behind that the loop has not seen."""
    edge, address = open_it()
    with Wire(address) as wire:
        shake_hands(edge, wire)
        assert not edge.is_quiet()
        edge.drain()
        for _ in range(20):
            wire.call(HELD, message(b""))

        def confirm() -> None:
            while wire.goaway is None or wire.goaway.last_stream_id > wire.last_stream:
                wire.pump()

        thread = threading.Thread(target=confirm)
        thread.start()
        while thread.is_alive():
            assert edge.poll(0, 0) == ([], [])
            assert not edge.is_quiet()
            thread.join(0.002)
        calls = 0

        def is_quiet() -> bool:
            nonlocal calls
            calls += len(edge.poll(1, 1 << 20)[0])
            return edge.is_quiet()

        until("no client opens a call any more", is_quiet)
        assert calls == 20


def test_quiet_without_clients(service: Service) -> None:
    assert not service.remote.is_quiet()
    with Wire(service.address) as wire, connect(service.address) as plain:
        wire.ping()
        plain.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        service.next_event(EdgeEventKind.HTTP_OPENED)
        service.next_event(EdgeEventKind.HALF_CLOSED)
        service.remote.drain()
        assert not service.remote.is_quiet()
        wire.socket.close()
        # A request on HTTP/1.1 is the connection's last.
        service.until(lambda edge: edge.is_quiet())
        assert not service.remote.is_drained()


def test_drain_accepts_no_new_call(service: Service) -> None:
    with Wire(service.address) as wire:
        held = wire.call(HELD, message(b""))
        call = service.next_request()[0]
        service.remote.drain()
        while wire.goaway is None or wire.goaway.last_stream_id > held:
            # A first GOAWAY may leave room for calls that are on their way; a last one follows.
            wire.pump()
        late = wire.call(HELD, message(b""))
        service.remote.reply([(call, b"")])
        assert wire.answer(held).status == (0, "")
        wire.until_closed()
        assert wire.answers[late].headers == {}
        assert service.requests.empty()


def test_drain_closes_idle_keep_alive_connections(service: Service) -> None:
    with connect(service.address) as plain:
        plain.sendall(b"GET /echo HTTP/1.1\r\nhost: x\r\n\r\n")
        with plain.makefile("rb") as file:
            assert Reply(file).status == 200
            service.remote.drain()
            assert file.read() == b""


def test_the_client_library_moves_on_when_drained(open_service: OpenService) -> None:
    first = open_service()
    with connect_client(first.address) as client:
        assert client.unary(ECHO, b"1") == b"1"
        future = client.unary_call(HELD, b"")
        call = first.next_request()[0]
        first.remote.drain()
        first.remote.reply([(call, b"2")])
        assert future.result(WAIT_SECONDS) == b"2"
        first.until(lambda edge: edge.is_drained())


def test_stop_closes_everything_at_once(open_service: OpenService) -> None:
    with held_port() as port:
        _stop_amid_calls(open_service(None, f"127.0.0.1:{port}"))


def _stop_amid_calls(service: Service) -> None:
    with Wire(service.address) as wire, connect(service.address) as plain:
        wire.call(HELD, message(b""))
        service.next_request()
        wire.call(HELD_STREAM, message(b"a"), end=False)
        service.next_event(EdgeEventKind.OPENED)
        service.next_event(EdgeEventKind.MESSAGE)
        plain.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
        service.next_event(EdgeEventKind.HTTP_OPENED)
        service.stop_edge()
        assert wire.until_closed() in (None, 0)
        with contextlib.suppress(ConnectionResetError):
            assert plain.recv(100) == b""
    with pytest.raises(ConnectionRefusedError):
        connect(service.address)


def test_stop_with_unread_and_unwritten_bytes(service: Service) -> None:
    with Wire(service.address, credit=False) as wire:
        wire.call(HELD_STREAM, b"")
        call = service.next_event(EdgeEventKind.OPENED).call
        service.remote.send([(call, bytes(8 << 20))])
        assert service.remote.pending_bytes(call) > 0
        service.stop_edge()


def test_an_edge_may_be_stopped_twice(service: Service) -> None:
    with Wire(service.address) as wire:
        wire.call(HELD, message(b""))
        call = service.next_request()[0]
        service.stop_edge()
        # A late answer is ignored, or refused for what it is; it does not crash.
        with contextlib.suppress(ValueError):
            service.remote.reply([(call, b"late")])
        service.remote.stop()


FORK = """
import os
from tests.network.edge.service import ECHO, Service
from tests.network.edge.wire import Wire

def disturb(edge):
    # The edge of the child is closed; what it does with this is its own matter.
    for use in (
        lambda: edge.reply([(1, b"x")]),
        lambda: edge.send([(1, b"x")]),
        lambda: edge.poll(10, 1000),
        lambda: edge.announce_sleep(),
        lambda: edge.drain(),
        lambda: edge.stop(),
    ):
        try:
            use()
        except Exception:
            pass

service = Service()
with Wire(service.address) as wire:
    assert wire.unary(ECHO, b"before").status == (0, "")
    child = os.fork()
    if child == 0:
        disturb(service.edge)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status
    for _ in range(100):
        assert wire.unary(ECHO, b"after").status == (0, "")
with Wire(service.address) as wire:
    assert wire.unary(ECHO, b"new").status == (0, "")
service.stop()
print("done")
"""

FORGET = """
from kvorum.network.edge import open_edge
from tests.network.edge.service import METHODS

edge = open_edge(METHODS)
edge.listen("127.0.0.1:0")
print("done")
"""

THREADS = """
import os
from kvorum.network.edge import open_edge
from tests.network.edge.loop import wait
from tests.network.edge.service import METHODS
from tests.network.edge.wire import Wire
from tests.waiting import until

descriptors = len(os.listdir("/proc/self/fd"))
for _ in range(3):
    edge = open_edge(METHODS)
    _, address = edge.listen("127.0.0.1:0")
    with Wire(address) as wire:
        wire.call("/test.Echo/Unary", b"\\0\\0\\0\\0\\0")
        while not edge.poll(10, 1000)[0]:
            wait(edge)
    edge.write_log(1, 0, b"", False)
    edge.stop()
    # The kernel may show a thread for a moment after it was joined.
    until("no thread is left", lambda: len(os.listdir("/proc/self/task")) == 1)
    assert len(os.listdir("/proc/self/fd")) == descriptors, "descriptors are left"
print("done")
"""


@pytest.mark.usefixtures("edge_kind")
@pytest.mark.parametrize("script", [FORK, FORGET, THREADS], ids=["fork", "forget", "threads"])
def test_a_process_comes_to_its_end(script: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
