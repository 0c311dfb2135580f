"""Where the edge listens, its error if it cannot, and the address of a client."""

import errno
import os
import re
import socket
import stat
from pathlib import Path

import grpc
import pytest

from kvorum.network.edge import EdgeEventKind, Limits, open_edge
from tests.network.edge.client import connect as connect_client
from tests.network.edge.conftest import OpenService
from tests.network.edge.service import ECHO, HELD, METHODS, WAIT_SECONDS, Service
from tests.network.edge.wire import Wire, connect, message
from tests.ports import held_port


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


def test_several_addresses_at_once(open_service: OpenService, tmp_path: Path) -> None:
    addresses = ["127.0.0.1:0", "127.0.0.1:0", f"unix:{tmp_path}/edge.sock"]
    service = open_service(None, *addresses)
    assert [number for number, _ in service.listeners] == [0, 1, 2]
    bound = [address for _, address in service.listeners]
    assert len(set(bound)) == 3
    assert bound[0].startswith("127.0.0.1:") and not bound[0].endswith(":0")
    assert bound[2] == addresses[2]
    for number, address in service.listeners:
        with Wire(address) as wire:
            assert wire.unary(ECHO, b"over h2").data == message(b"over h2")
        with connect(address) as plain:
            plain.sendall(b"GET /held HTTP/1.1\r\nhost: x\r\n\r\n")
            opened = service.next_event(EdgeEventKind.HTTP_OPENED)
            assert opened.detail[0] == number
            service.next_event(EdgeEventKind.HALF_CLOSED, opened.call)
            service.remote.respond(opened.call, 204, [], b"")
            assert plain.recv(100).startswith(b"HTTP/1.1 204 ")


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")
def test_ipv6(open_service: OpenService) -> None:
    service = open_service(None, "[::1]:0")
    assert service.address.startswith("[::1]:")
    with Wire(service.address) as wire:
        wire.call(HELD, message(b""))
        call = service.next_request()[0]
        port = wire.socket.getsockname()[1]
        assert service.remote.peer(call) == f"[::1]:{port}"
    with connect_client(f"ipv6:{service.address}") as client:
        assert client.unary(ECHO, b"x") == b"x"


def test_several_addresses_in_one_target(service: Service) -> None:
    """gRPC's C core sends all of them as the authority."""
    with connect_client(f"ipv4:{service.address},{service.address}") as client:
        assert client.unary(ECHO, b"several") == b"several"


@pytest.mark.parametrize("authority", ["#initially=[127.0.0.1:1;[::1]:2]", "a?b@c", "%2Ftmp:1"])
def test_authorities_that_are_none(service: Service, authority: str) -> None:
    options = [("grpc.default_authority", authority)]
    with grpc.insecure_channel(service.address, options) as channel:
        assert channel.unary_unary(ECHO)(b"any", timeout=WAIT_SECONDS) == b"any"


def test_a_unix_socket_with_a_real_client(open_service: OpenService, tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    service = open_service(None, f"unix:{path}")
    assert stat.S_ISSOCK(path.stat().st_mode)
    with connect_client(f"unix:{path}") as client:
        assert client.unary(ECHO, b"x" * 100_000) == b"x" * 100_000
        future = client.unary_call(HELD, b"")
        call = service.next_request()[0]
        assert isinstance(service.remote.peer(call), str)
        service.remote.reply([(call, b"done")])
        assert future.result(WAIT_SECONDS) == b"done"


def test_a_socket_file_left_behind_is_replaced(open_service: OpenService, tmp_path: Path) -> None:
    path = tmp_path / "edge.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    assert path.exists()
    service = open_service(None, f"unix:{path}")
    with Wire(service.address) as wire:
        assert wire.unary(ECHO, b"").status == (0, "")


@pytest.mark.usefixtures("edge_kind")
def test_an_address_in_use_is_named() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        edge = open_edge(METHODS)
        try:
            with pytest.raises(OSError, match=address) as raised:
                edge.listen(address)
            assert raised.value.errno == errno.EADDRINUSE
            # It can still listen elsewhere.
            with connect(edge.listen("127.0.0.1:0")[1]):
                pass
        finally:
            edge.stop()


@pytest.mark.usefixtures("edge_kind")
@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:65536",
        "127.0.0.1:http-ish",
        "no-port",
        "203.0.113.1:0",
        "nowhere.invalid:0",
        "unix:/nonexistent/directory/edge.sock",
        "unix:/tmp/" + "x" * 200,
    ],
)
def test_addresses_that_cannot_be(address: str) -> None:
    edge = open_edge(METHODS)
    try:
        with pytest.raises(OSError, match=re.escape(address)):
            edge.listen(address)
    finally:
        edge.stop()


@pytest.mark.usefixtures("edge_kind")
def test_a_port_is_shared_if_both_ask_for_it() -> None:
    one, two = open_edge(METHODS), open_edge(METHODS)
    try:
        _, address = one.listen("127.0.0.1:0", reuse_port=True)
        assert two.listen(address, reuse_port=True)[1] == address
        with pytest.raises(OSError, match=address):
            two.listen(address)
        _, address = one.listen("127.0.0.1:0")
        with pytest.raises(OSError, match=address):
            two.listen(address, reuse_port=True)
    finally:
        one.stop()
        two.stop()


def test_a_connection_past_the_limit_waits(open_service: OpenService) -> None:
    service = open_service(Limits(connections_max=2))
    with Wire(service.address) as first, Wire(service.address) as second:
        assert first.unary(ECHO, b"1").status == (0, "")
        assert second.unary(ECHO, b"2").status == (0, "")
        with Wire(service.address) as third:
            stream = third.call(ECHO, message(b"3"))
            # Two full rounds of the others later it still has no answer.
            for wire in (first, second):
                assert wire.unary(ECHO, b"more").status == (0, "")
            third.socket.setblocking(False)
            with pytest.raises(BlockingIOError):
                third.socket.recv(1)
            assert service.remote.counters()["connections_open"] == 2
            third.socket.settimeout(WAIT_SECONDS)
            first.socket.close()
            assert third.answer(stream).status == (0, "")


def test_a_port_is_free_again_after_stop(open_service: OpenService) -> None:
    # Nobody else gets it meanwhile: it stays bound, as servers may share it, and nobody listens.
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        first = open_service(None, address)
        with Wire(address) as wire:
            assert wire.unary(ECHO, b"").status == (0, "")
            first.stop_edge()
            assert wire.until_closed() in (None, 0)
        open_service(None, address)
        with Wire(address) as wire:
            assert wire.unary(ECHO, b"").status == (0, "")


def test_the_descriptor_limit_is_raised(open_service: OpenService) -> None:
    service = open_service()
    with Path(f"/proc/{os.getpid()}/limits").open() as limits:
        line = next(line for line in limits if line.startswith("Max open files"))
    soft, hard = line.split()[3:5]
    assert soft == hard
    assert service.remote.counters()["connections_open"] == 0
