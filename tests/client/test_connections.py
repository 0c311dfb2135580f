"""How a client connects: TLS whose certificates change, unix sockets, servers that say nothing."""

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from kvorum.client.aio.client import AsyncClient
from kvorum.client.errors import DeadlineError, UnavailableError
from kvorum.client.sync.client import Client
from kvorum.client.threads import KEEPALIVE
from tests.certificates import Authority, Pair, replace
from tests.etcd import _running as etcd_at
from tests.etcd import is_target, running_etcd
from tests.kvorum import _running as kvorum_at
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.waiting import until

TIMEOUT_SECONDS = 60.0
Server = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(params=["kvorum", "etcd"])
def server_at(request: pytest.FixtureRequest) -> Server:
    return kvorum_at if request.param == "kvorum" else etcd_at


def tls_flags(authority: Authority, pair: Pair) -> tuple[str, ...]:
    return (
        f"--cert-file={pair.cert}",
        f"--key-file={pair.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    )


@pytest.mark.long
def test_renewed_certificates_need_no_new_client(server_at: Server, tmp_path: Path) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    shown = old.issue("client", file="shown")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.cert.read_bytes())
    ca, cert, key = str(trusted), str(shown.cert), str(shown.key)
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        with Client(
            f"https://{address}", ca=ca, cert=cert, key=key, timeout=TIMEOUT_SECONDS
        ) as client:
            flags = tls_flags(old, old.issue("server"))
            with server_at(tmp_path / "first", port, *flags, scheme="https"):
                client.put("a", "1")
                with (
                    # It shows no certificate of its own.
                    Client(address, timeout=2.0, ca=ca) as stranger,
                    pytest.raises((UnavailableError, DeadlineError), match="certificate"),
                ):
                    stranger.get("a")
            renewed = new.issue("client", file="renewed")
            replace(trusted, new.cert.read_bytes())
            replace(shown.key, renewed.key.read_bytes())
            replace(shown.cert, renewed.cert.read_bytes())
            flags = tls_flags(new, new.issue("server"))
            with server_at(tmp_path / "second", port, *flags, scheme="https"):
                assert client.count(prefix="") == 0

                async def page() -> int:
                    async with (
                        AsyncClient(
                            f"https://{address}", ca=ca, cert=cert, key=key, timeout=TIMEOUT_SECONDS
                        ) as loop_client,
                        await loop_client.lease(60) as lease,
                    ):
                        await loop_client.put("b", "x" * 1_000_000, lease=lease.id)
                        found = await loop_client.get("b")
                        assert found is not None
                        return len(found.value)

                assert asyncio.run(page()) == 1_000_000
                with (
                    Client(f"https://{address}", timeout=2.0, ca=str(old.cert)) as stranger,
                    pytest.raises(UnavailableError, match="certificate is not accepted"),
                ):
                    stranger.get("a")


@pytest.mark.parametrize("running", [running_kvorum, running_etcd])
def test_a_unix_socket_is_an_endpoint(running: Server, tmp_path: Path) -> None:
    if running is running_etcd and not is_target():
        pytest.skip("etcd 3.5.1 listens only on sockets in its working directory")
    # A port in its name is what etcd needs; the file is called just so.
    path = tmp_path / "socket:1"
    flags = (f"--listen-client-urls=http://127.0.0.1:0,unix://{path}",)
    with running(tmp_path / "data", *flags):
        with Client(f"unix://{path}", timeout=TIMEOUT_SECONDS) as client:
            client.put("a", "1")
            assert client.count("a") == 1

        async def page() -> int:
            async with AsyncClient(f"unix:{path}", timeout=TIMEOUT_SECONDS) as client:
                return await client.count("a")

        assert asyncio.run(page()) == 1


# Endpoints that accept a connection and do nothing of use with it.


@contextmanager
def accepting(take: Callable[[socket.socket], None]) -> Iterator[str]:
    """Accept connections for as long as the block takes; return where."""
    accepted: list[socket.socket] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                accepted.append(connection)
                take(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
            for connection in accepted:
                connection.close()


def keep_silent(connection: socket.socket) -> None:
    """Neither read nor send."""


def hang_up(connection: socket.socket) -> None:
    connection.close()


def speak_nonsense(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n" + b"x" * 64)


@pytest.mark.long
@pytest.mark.parametrize("take", [keep_silent, hang_up, speak_nonsense])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_an_endpoint_that_is_no_server_does_not_keep_calls_from_one_that_is(
    take: Callable[[socket.socket], None],
    scheme: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(KEEPALIVE, "ping_seconds", 0.2)
    monkeypatch.setattr(KEEPALIVE, "pong_seconds_max", 0.2)
    with running_kvorum(tmp_path) as server, accepting(take) as bad:
        endpoints = [f"{scheme}://{bad}", f"http://{server.address}"]
        for _ in range(3):
            with Client(endpoints, timeout=TIMEOUT_SECONDS) as client:
                assert client.count("a") == 0

            async def page() -> None:
                async with AsyncClient(endpoints, timeout=TIMEOUT_SECONDS) as client:
                    assert await client.count("a") == 0

            asyncio.run(page())


def test_a_turn_does_not_wait_for_a_reader_that_is_late() -> None:
    """The reader empties its bell only when it has the lock."""
    with Client("127.0.0.1:1") as client:
        shell = client.shell
        shell.start_reading()
        until("somebody reads", lambda: shell._reader is not None)
        with shell.lock:
            shell._read_until = 0.0
            # More rings than a socket takes.
            for _ in range(10_000):
                shell.enter()
                shell.leave()
