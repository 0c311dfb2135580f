"""The TCP gateway as a process: what it passes on, whom it avoids, how it ends."""

import hashlib
import random
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from kvorum import Client
from tests.clients.etcdctl import run as etcdctl
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.process.discovery.domain import DOMAIN, Zone, machine_of
from tests.proxy.processes import RunningProxy, running_proxy
from tests.waiting import WAIT_SECONDS_MAX, until

MEBIBYTE = 1024 * 1024
BETWEEN_BYTES_MAX = 64 * MEBIBYTE
"""More than the buffers of four sockets and a pipe, however the system tunes them."""
RESET = struct.pack("ii", 1, 0)
_PATIENT = f"""
import sys
from kvorum.process import gateway_loop, main
gateway_loop.DRAIN_SECONDS_MAX = {WAIT_SECONDS_MAX}
sys.argv[:] = sys.argv[1:]
main.main()
"""
PATIENT = (sys.executable, "-c", _PATIENT)
"""Runs a gateway that waits for its last connections longer than a test may stand still."""


class Member:
    """A server whose connections are handled by a function, each in a thread."""

    def __init__(self, handle: Callable[[socket.socket], None], port: int = 0) -> None:
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", port))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._serve)]
        self._threads[0].start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._serve_one, args=(connection,))
            self._threads.append(thread)
            thread.start()

    def _serve_one(self, connection: socket.socket) -> None:
        connection.settimeout(WAIT_SECONDS_MAX)
        with connection:
            try:
                self._handle(connection)
            except OSError:
                return

    def stop(self) -> None:
        """Listen no more, and wait for the end of what it has."""
        # A thread that waits in `accept` is not woken by closing alone.
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join()


@contextmanager
def running_member(handle: Callable[[socket.socket], None], port: int = 0) -> Iterator[Member]:
    member = Member(handle, port)
    try:
        yield member
    finally:
        member.stop()


def read_all(connection: socket.socket) -> bytes:
    pieces = []
    while piece := connection.recv(MEBIBYTE):
        pieces.append(piece)
    return b"".join(pieces)


def answer_with_digest(connection: socket.socket) -> None:
    """Answer when the client has said everything: a member that needs half-closes."""
    connection.sendall(hashlib.sha256(read_all(connection)).digest())


def echo(connection: socket.socket) -> None:
    while piece := connection.recv(MEBIBYTE):
        connection.sendall(piece)


def named(name: bytes) -> Callable[[socket.socket], None]:
    def handle(connection: socket.socket) -> None:
        connection.sendall(name)

    return handle


def connect(gateway: RunningProxy) -> socket.socket:
    return socket.create_connection(gateway.place, timeout=WAIT_SECONDS_MAX)


def ask(gateway: RunningProxy) -> bytes:
    """Return what the member says that a new connection is forwarded to; empty: nothing."""
    with connect(gateway) as connection:
        return read_all(connection)


def await_descriptors(gateway: RunningProxy, count: int) -> None:
    """Wait until the gateway has so few descriptors open."""
    until(f"the gateway has {count} descriptors", lambda: gateway.descriptors() <= count)


def has_room(connection: socket.socket) -> bool:
    return bool(select.select([], [connection], [], 0)[1])


def is_asleep(gateway: RunningProxy) -> bool:
    """Return whether the gateway waits for something: it has done all that it can do by now."""
    stats = Path(f"/proc/{gateway.process.pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "S" for stat in stats)


def test_a_client_that_has_said_everything_still_gets_its_answer() -> None:
    """The gateway of etcd closes both ways as soon as one ends."""
    source = random.Random(1)
    sizes = [0, 1, 1000, 65_536, 65_537, 3_000_000]
    with (
        running_member(answer_with_digest) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
        ExitStack() as held,
    ):
        clients = []
        for size in sizes:
            client, data = held.enter_context(connect(gateway)), source.randbytes(size)
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            clients.append((client, hashlib.sha256(data).digest()))
        for client, digest in clients:
            assert read_all(client) == digest


def test_a_member_that_has_said_everything_still_hears() -> None:
    heard: list[bytes] = []

    def speak_first(connection: socket.socket) -> None:
        connection.sendall(b"bye")
        connection.shutdown(socket.SHUT_WR)
        heard.append(read_all(connection))

    with (
        running_member(speak_first) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
        connect(gateway) as client,
    ):
        assert read_all(client) == b"bye"
        client.sendall(b"x" * MEBIBYTE)
        client.shutdown(socket.SHUT_WR)
        member.stop()
    assert heard == [b"x" * MEBIBYTE]


def test_breaks_are_passed_on() -> None:
    outcomes: list[object] = []

    def break_off(connection: socket.socket) -> None:
        connection.recv(1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)

    def expect_a_break(connection: socket.socket) -> None:
        connection.sendall(b"!")
        try:
            outcomes.append(connection.recv(1))
        except ConnectionResetError as error:
            outcomes.append(type(error))

    with (
        running_member(break_off) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
        connect(gateway) as client,
    ):
        client.sendall(b"x")
        with pytest.raises(ConnectionResetError):
            client.recv(1)
    with (
        running_member(expect_a_break) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
    ):
        with connect(gateway) as client:
            assert client.recv(1) == b"!"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        member.stop()
    assert outcomes == [ConnectionResetError]


def test_a_member_that_does_not_read_holds_its_client_back_and_no_other() -> None:
    reads = threading.Event()

    def read_late(connection: socket.socket) -> None:
        if connection.recv(1) == b"s":
            reads.wait(WAIT_SECONDS_MAX)
            answer_with_digest(connection)
        else:
            connection.sendall(b"quick")

    with (
        running_member(read_late) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
        connect(gateway) as slow,
    ):
        slow.sendall(b"s")
        slow.setblocking(False)
        sent, piece, digest = 0, random.Random(2).randbytes(MEBIBYTE), hashlib.sha256()

        def is_held_back() -> bool:
            """Send what there is room for; return whether none is left and none is made."""
            nonlocal sent
            while has_room(slow):
                count = slow.send(piece)
                digest.update(piece[:count])
                sent += count
                assert sent < BETWEEN_BYTES_MAX
            return is_asleep(gateway) and not has_room(slow)

        until("the client is held back", is_held_back)
        with connect(gateway) as quick:
            quick.sendall(b"q")
            assert quick.recv(5) == b"quick"
        reads.set()
        slow.setblocking(True)
        slow.shutdown(socket.SHUT_WR)
        assert read_all(slow) == digest.digest()


def test_members_are_asked_in_turn() -> None:
    names = [b"one", b"two", b"three"]
    with ExitStack() as held:
        members = [held.enter_context(running_member(named(name))) for name in names]
        addresses = ",".join(f"http://{each.address}" for each in members)
        gateway = held.enter_context(running_proxy("gateway", f"--endpoints={addresses}"))
        found = [ask(gateway) for _ in range(9)]
        assert sorted(found) == sorted(names * 3)
        assert gateway.matching_lines("ready to proxy client requests")[0]["endpoints"] == [
            each.address for each in members
        ]


def test_members_that_die_are_avoided_until_they_are_back() -> None:
    with held_port() as port, running_member(named(b"stays")) as member:
        endpoints = f"--endpoints=127.0.0.1:{port},{member.address}"
        with running_proxy("gateway", endpoints, "--retry-delay=200ms") as gateway:
            with running_member(named(b"goes"), port):
                assert {ask(gateway) for _ in range(4)} == {b"stays", b"goes"}
            assert {ask(gateway) for _ in range(4)} == {b"stays"}
            line = gateway.wait_for("deactivated endpoint", address=f"127.0.0.1:{port}")
            assert line["interval"] == "200ms"
            assert line["error"] == f"dial tcp 127.0.0.1:{port}: connect: connection refused"
            gateway.wait_for(
                "failed to activate endpoint (stay inactive for another interval)",
                address=f"127.0.0.1:{port}",
            )
            with running_member(named(b"back"), port):
                gateway.wait_for("activated", address=f"127.0.0.1:{port}")
                assert {ask(gateway) for _ in range(4)} == {b"stays", b"back"}


def test_a_client_without_any_member_is_disconnected() -> None:
    with (
        held_port() as port,
        running_proxy("gateway", f"--endpoints=127.0.0.1:{port}", "--retry-delay=200ms") as gateway,
    ):
        assert ask(gateway) == b""
        assert ask(gateway) == b""
        with running_member(named(b"back"), port):
            gateway.wait_for("activated")
            assert ask(gateway) == b"back"


@pytest.mark.long
def test_thousands_of_connections_leave_no_descriptor_behind() -> None:
    source = random.Random(3)
    with (
        running_member(echo) as member,
        running_proxy("gateway", f"--endpoints={member.address}") as gateway,
    ):
        with connect(gateway) as client:
            client.sendall(b"x" * 4 * MEBIBYTE)
            client.shutdown(socket.SHUT_WR)
            assert len(read_all(client)) == 4 * MEBIBYTE
        await_descriptors(gateway, 1000)
        before = gateway.descriptors()
        for _ in range(20):
            clients = [connect(gateway) for _ in range(100)]
            for client in clients:
                kind = source.randrange(4)
                if kind:
                    client.sendall(b"hello")
                if kind >= 2:
                    assert client.recv(5, socket.MSG_WAITALL) == b"hello"
                if kind == 3:
                    client.shutdown(socket.SHUT_WR)
                    assert client.recv(1) == b""
                elif kind == 2:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
        # Pipes are kept for others; they were made before.
        await_descriptors(gateway, before)


@pytest.mark.parametrize("command", ["gateway", "grpc-proxy"])
def test_the_service_manager_hears_that_it_serves(command: str, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        path = str(tmp_path / "notify")
        manager.bind(path)
        manager.settimeout(WAIT_SECONDS_MAX)
        before = ("env", f"NOTIFY_SOCKET={path}")
        with running_proxy(command, "--endpoints=127.0.0.1:1", before=before) as proxy:
            assert manager.recv(100) == b"READY=1"
            proxy.wait_for("successfully notified init daemon")


def test_a_signal_ends_it_when_the_last_connection_has_ended() -> None:
    with (
        running_member(echo) as member,
        running_proxy("gateway", f"--endpoints={member.address}", before=PATIENT) as gateway,
    ):
        with connect(gateway) as client:
            client.sendall(b"before")
            assert client.recv(6, socket.MSG_WAITALL) == b"before"
            gateway.process.send_signal(signal.SIGTERM)
            gateway.wait_for("received signal; shutting down", signal="terminated")
            client.sendall(b"after")
            assert client.recv(5, socket.MSG_WAITALL) == b"after"
            with pytest.raises(ConnectionRefusedError):
                connect(gateway)
        assert gateway.end() == -signal.SIGTERM


def test_a_second_signal_ends_it_at_once() -> None:
    with (
        running_member(echo) as member,
        running_proxy("gateway", f"--endpoints={member.address}", before=PATIENT) as gateway,
        connect(gateway) as client,
    ):
        client.sendall(b"x")
        assert client.recv(1) == b"x"
        gateway.process.send_signal(signal.SIGINT)
        gateway.wait_for("received signal; shutting down", signal="interrupt")
        gateway.process.send_signal(signal.SIGTERM)
        assert client.recv(1) == b""
        assert gateway.end() == -signal.SIGINT


def test_members_by_records_the_preferred_ones_first(tmp_path: Path) -> None:
    with (
        running_member(named(b"first")) as first,
        running_member(named(b"second")) as second,
    ):
        ports = [int(each.address.rpartition(":")[2]) for each in (first, second)]
        services = {"etcd-client": [("one", ports[0]), ("two", ports[1])]}
        zone = Zone(services, {"one": "127.0.0.1", "two": "127.0.0.1"})
        with (
            machine_of(zone, tmp_path) as before,
            running_proxy(
                "gateway", f"--discovery-srv={DOMAIN}", "--insecure-discovery", before=before
            ) as gateway,
        ):
            assert {ask(gateway) for _ in range(4)} == {b"first"}
            first.stop()
            assert {ask(gateway) for _ in range(4)} == {b"second"}
            gateway.wait_for("deactivated endpoint", address=f"one.{DOMAIN}:{ports[0]}")


@pytest.mark.parametrize("program", ["kvorum", "etcd"])
def test_clients_of_a_cluster_behind_it(program: str, tmp_path: Path) -> None:
    running = running_etcd if program == "etcd" else running_kvorum
    with (
        running(tmp_path / "data") as server,
        running_proxy("gateway", f"--endpoints={server.address}") as gateway,
    ):
        assert etcdctl(gateway.address, "put", "hello", "world").output == "OK\n"
        assert etcdctl(gateway.address, "get", "hello").output == "hello\nworld\n"
        with Client(gateway.address, timeout=WAIT_SECONDS_MAX) as client:
            value = random.Random(4).randbytes(MEBIBYTE)
            client.put("large", value)
            got = client.get("large")
            assert got is not None
            assert got.value == value
