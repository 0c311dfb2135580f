"""The client of a discovery service against real servers, and against those that misbehave."""

import asyncio
import ssl
from collections.abc import Awaitable, Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvorum.api import errors
from kvorum.api.errors import Code, StatusError
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.tls.credentials import DialSettings
from kvorum.process.discovery import channel
from kvorum.process.discovery.channel import ServiceAddress
from kvorum.process.discovery.client import Client, LoginError, ServiceSettings, parse_endpoint
from kvorum.process.discovery.registry import Registry
from kvorum.process.discovery.service import run, service_settings
from kvorum.process.settings.checks import fill, make_config
from kvorum.process.settings.file import read_content
from kvorum.process.settings.flags import parse_arguments
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import ClusterSettingsError
from tests.certificates import Authority
from tests.etcd import is_target
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.process.discovery.services import RUNNING, SETTINGS

makes = pytest.mark.parametrize("make", RUNNING)


@pytest.fixture(scope="module", params=RUNNING)
def address(request: pytest.FixtureRequest, tmp_path_factory: Any) -> Iterator[str]:
    directory = tmp_path_factory.mktemp("service") / "data"
    with RUNNING[request.param](directory) as server:
        yield server.address


def using(work: Callable[[Client], Awaitable[None]], *endpoints: str, **changes: object) -> None:
    """Do something with a client of these endpoints."""

    async def do() -> None:
        settings = replace(SETTINGS, endpoints=endpoints, **changes)  # type: ignore[arg-type]
        client = Client(settings)
        try:
            await work(client)
        finally:
            client.close()

    asyncio.run(do())


def test_calls(address: str) -> None:
    async def work(client: Client) -> None:
        value = b"v" * 300_000
        revision = (await client.put(pb.PutRequest(key=b"a", value=value))).header.revision
        found = await client.range(pb.RangeRequest(key=b"a"))
        assert found.kvs[0].value == value
        with pytest.raises(StatusError) as caught:
            await client.range(pb.RangeRequest())
        assert caught.value.status == errors.EMPTY_KEY
        changes = asyncio.create_task(
            client.next_change(pb.WatchCreateRequest(key=b"b", start_revision=revision + 1))
        )

        async def put(other: Client) -> None:
            await other.put(pb.PutRequest(key=b"b", value=b"%"))

        other = Client(replace(SETTINGS, endpoints=(address,)))
        await put(other)
        other.close()
        assert [each.kv.value for each in (await changes).events] == [b"%"]
        # Changes that lie in the past count as well.
        again = pb.WatchCreateRequest(key=b"b", start_revision=revision + 1)
        assert [each.kv.value for each in (await client.next_change(again)).events] == [b"%"]

    using(work, address)


def test_a_watch_of_what_is_compacted(tmp_path: Path) -> None:
    async def work(client: Client) -> None:
        for _ in range(3):
            await client.put(pb.PutRequest(key=b"a"))
        answer = await client.put(pb.PutRequest(key=b"a"))
        compaction = pb.CompactionRequest(revision=answer.header.revision, physical=True)
        await client._ask("/etcdserverpb.KV/Compact", compaction.SerializeToString())
        with pytest.raises(StatusError, match="compacted"):
            await client.next_change(pb.WatchCreateRequest(key=b"a", start_revision=2))

    with running_kvorum(tmp_path / "data") as server:
        using(work, server.address)


def test_the_next_endpoint_is_asked_if_one_is_gone(address: str) -> None:
    async def work(client: Client) -> None:
        await client.put(pb.PutRequest(key=b"a"))
        client.close()
        await client.put(pb.PutRequest(key=b"a"))

    with held_port() as port:
        using(work, f"127.0.0.1:{port}", f"http://{address}")

        async def fails(client: Client) -> None:
            with pytest.raises(StatusError, match=f"127.0.0.1:{port}: connection refused") as told:
                await client.range(pb.RangeRequest(key=b"a"))
            assert told.value.status.code is Code.UNAVAILABLE

        using(fails, f"127.0.0.1:{port}")


@makes
def test_login(make: str, tmp_path: Path) -> None:
    with RUNNING[make](tmp_path / "data", "--auth-token-ttl=3600") as server:

        async def work(client: Client) -> None:
            await client.put(pb.PutRequest(key=b"a"))
            root = pb.AuthUserAddRequest(name="root", password="secret")
            await client._ask("/etcdserverpb.Auth/UserAdd", root.SerializeToString())
            role = pb.AuthUserGrantRoleRequest(user="root", role="root")
            await client._ask("/etcdserverpb.Auth/RoleAdd", b"\x0a\x04root")
            await client._ask("/etcdserverpb.Auth/UserGrantRole", role.SerializeToString())
            await client._ask("/etcdserverpb.Auth/AuthEnable", b"")
            # From now on it needs a token, which it gets without being told.
            await client.put(pb.PutRequest(key=b"a"))
            client._token = b"nonsense"
            await client.put(pb.PutRequest(key=b"a"))

        using(work, server.address, user="root", password="secret")

        async def refused(client: Client) -> None:
            with pytest.raises(LoginError, match="invalid user ID or password"):
                await client.put(pb.PutRequest(key=b"a"))

        using(refused, server.address, user="root", password="other")

        async def join(client: Client) -> None:
            registry = Registry("token", "m", ["http://h:1"], Logger([]))
            with pytest.raises(
                ClusterSettingsError, match=r"invalid user ID.*--discovery-password"
            ):
                await run(registry.join(), client)

        using(join, server.address, user="root", password="other")


def test_limits_and_tokens_of_a_file(address: str) -> None:
    async def refused(client: Client) -> None:
        with pytest.raises(StatusError, match="larger than max") as caught:
            await client.put(pb.PutRequest(key=b"a", value=b"v" * 100))
        assert caught.value.status.code is Code.RESOURCE_EXHAUSTED

    using(refused, address, request_bytes_max=100)
    using(refused, address, answer_bytes_max=5)

    async def sends_token(client: Client) -> None:
        # While there are no users it is not asked for; 3.5.1 judges it all the same.
        with nullcontext() if is_target() else suppress(StatusError):
            await client.put(pb.PutRequest(key=b"a"))
        assert client._token == b"secret"

    using(sends_token, address, token="secret")


@makes
def test_tls(make: str, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server, own = authority.issue("server"), authority.issue("own", purposes=["client"])
    flags = (
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    )
    security = DialSettings(str(own.cert), str(own.key), str(authority.cert))

    async def works(client: Client) -> None:
        await client.put(pb.PutRequest(key=b"a"))

    def fails(problem: str) -> Callable[[Client], Awaitable[None]]:
        async def work(client: Client) -> None:
            with pytest.raises(StatusError, match=problem) as caught:
                await client.put(pb.PutRequest(key=b"a"))
            assert caught.value.status.code is Code.UNAVAILABLE

        return work

    with RUNNING[make](tmp_path / "data", *flags, scheme="https") as running:
        port = running.address.rpartition(":")[2]
        using(works, running.address, security=security)
        using(works, f"https://localhost:{port}", security=security)
        using(works, running.address, security=replace(security, ca_file="", insecure=True))
        using(works, running.address, security=replace(security, server_name="localhost"))
        using(fails("tls"), running.address, security=replace(security, server_name="other"))
        using(fails("tls"), f"https://{running.address}")
        using(fails("127.0.0.1"), running.address)
        using(fails(r"/none\.pem"), running.address, security=DialSettings(ca_file="/none.pem"))
        using(fails("."), running.address, security=replace(security, cert_file="", key_file=""))


Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def against(answer: Answer, problem: str, code: Code = Code.UNAVAILABLE, **changes: object) -> None:
    """Call a server that answers as a test wants."""

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await answer(reader, writer)
        finally:
            writer.transport.abort()

    async def do() -> None:
        async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            settings = replace(SETTINGS, endpoints=(f"127.0.0.1:{port}",), **changes)  # type: ignore[arg-type]
            client = Client(settings)
            with pytest.raises(StatusError, match=problem) as caught:
                await client.range(pb.RangeRequest(key=b"a"))
            assert caught.value.status.code is code
            client.close()

    asyncio.run(do())


SERVER_SETTINGS = b"\0\0\0\4\0\0\0\0\0"


def frame(kind: int, flags: int, stream: int, body: bytes) -> bytes:
    return len(body).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + body


def literal(name: bytes, value: bytes) -> bytes:
    return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value


def answering(*frames: bytes) -> Answer:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(SERVER_SETTINGS)
        # The call has been made when its path is there; everything before comes at once.
        await reader.readuntil(b"\0\0\0\0\3\x0a\1a")
        for each in frames:
            writer.write(each)
        await reader.read()

    return answer


GRPC = literal(b":status", b"200") + literal(b"content-type", b"application/grpc")


@pytest.mark.parametrize(
    ("frames", "problem", "code"),
    [
        ([frame(1, 4, 1, GRPC), frame(9, 4, 1, b"")], "does not speak HTTP/2: ", Code.UNAVAILABLE),
        ([frame(7, 0, 0, b"\0" * 7 + b"\2")], r"ended the connection \(code 2\)", Code.UNAVAILABLE),
        ([frame(3, 0, 1, b"\0\0\0\2")], r"reset the stream \(code 2\)", Code.UNAVAILABLE),
        ([frame(3, 0, 1, b"\0\0\0\7")], r"reset the stream \(code 7\)", Code.UNAVAILABLE),
        (
            [frame(1, 4, 1, literal(b":status", b"103")), frame(1, 5, 1, GRPC)],
            "without a status",
            Code.INTERNAL,
        ),
        (
            [frame(1, 4, 1, literal(b":status", b"200") + literal(b"content-type", b"text/html"))],
            "HTTP status 200 instead of a gRPC answer",
            Code.UNAVAILABLE,
        ),
        ([frame(1, 4, 1, GRPC), frame(1, 5, 1, literal(b"x", b"y"))], "Unknown", Code.UNKNOWN),
        (
            [frame(1, 5, 1, literal(b":status", b"404"))],
            "HTTP status 404 instead of a gRPC answer",
            Code.UNAVAILABLE,
        ),
        (
            [
                frame(
                    1, 5, 1, GRPC + literal(b"grpc-status", b"7") + literal(b"grpc-message", b"%41")
                )
            ],
            "A",
            Code.PERMISSION_DENIED,
        ),
        ([frame(1, 4, 1, GRPC), frame(0, 1, 1, b"")], "without a status", Code.INTERNAL),
        (
            [frame(1, 5, 1, GRPC + literal(b"grpc-status", b"x"))],
            "Unknown",
            Code.UNKNOWN,
        ),
        (
            [frame(1, 4, 1, GRPC), frame(0, 0, 1, b"\0\xff\xff\xff\xff")],
            "larger than max",
            Code.RESOURCE_EXHAUSTED,
        ),
        ([frame(1, 4, 1, GRPC), frame(0, 0, 1, b"\1\0\0\0\1x")], "compressed", Code.INTERNAL),
    ],
)
def test_answers_that_are_none(frames: list[bytes], problem: str, code: Code) -> None:
    against(answering(*frames), problem, code)


def test_a_server_that_goes_away_has_answered_before() -> None:
    answer = pb.RangeResponse(count=3).SerializeToString()
    trailers = literal(b"grpc-status", b"0")
    frames = frame(1, 4, 1, GRPC) + frame(0, 0, 1, b"\0\0\0\0" + bytes([len(answer)]) + answer)
    frames += frame(1, 5, 1, trailers) + frame(7, 0, 0, b"\0\0\0\1" + b"\0" * 4)

    async def do() -> None:
        hung_up = asyncio.Event()

        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await answering(frames)(reader, writer)
            writer.transport.abort()
            hung_up.set()

        async with await asyncio.start_server(served, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            client = Client(replace(SETTINGS, endpoints=(f"127.0.0.1:{port}",)))
            assert (await client.range(pb.RangeRequest(key=b"a"))).count == 3
            # The client closes a connection that the server leaves.
            await hung_up.wait()

    asyncio.run(do())


def test_a_server_that_takes_no_call() -> None:
    async def do() -> None:
        connection = channel.Channel(ServiceAddress("h", 1, "", False), 2.0, 6.0, 1)
        connection.data_received(frame(4, 0, 0, b"\0\3" + b"\0" * 4))
        call = connection.begin("/s/M", b"", (), 1.0)
        with pytest.raises(StatusError, match="takes no call"):
            await call.message()

    asyncio.run(do())


def test_a_server_of_another_protocol() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await reader.read()

    against(answer, "does not speak HTTP/2")


def test_a_server_that_hangs_up() -> None:
    async def answer(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read(1)

    against(answer, "reset|closed")


async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    while await reader.read(65536):
        pass


def test_a_server_that_says_nothing() -> None:
    against(silent, "no connection within 0.05 s", dial_seconds=0.05)


def test_a_call_that_takes_too_long() -> None:
    against(answering(), "deadline exceeded", Code.DEADLINE_EXCEEDED, request_seconds=0.2)


def test_a_server_that_has_died_is_found_by_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel, "PING_SECONDS_MIN", 0.01)
    against(answering(), "keepalive ping failed", ping_seconds=0.05, ping_timeout_seconds=0.05)


def test_pings_are_rare_whatever_was_asked_for() -> None:
    async def do() -> float:
        return channel.Channel(ServiceAddress("h", 1, "", False), 2.0, 6.0, 1)._ping_seconds

    assert asyncio.run(do()) == 10.0


@pytest.mark.parametrize(
    ("text", "is_secure", "expected"),
    [
        ("127.0.0.1:1", False, ServiceAddress("127.0.0.1", 1, "", False)),
        ("host:1", True, ServiceAddress("host", 1, "", True)),
        ("http://host:1", True, ServiceAddress("host", 1, "", False)),
        ("https://[::1]:1/", False, ServiceAddress("::1", 1, "", True)),
        ("unix:///a/b", False, ServiceAddress("", 0, "/a/b", False)),
        ("unix://a", True, ServiceAddress("", 0, "a", True)),
        ("unixs:a", False, ServiceAddress("", 0, "a", True)),
    ],
)
def test_endpoints(text: str, is_secure: bool, expected: ServiceAddress) -> None:
    assert parse_endpoint(text, is_secure=is_secure) == expected


@pytest.mark.parametrize("text", ["host", "http://host", "ftp://host:1", "host:x", "h:65536"])
def test_endpoints_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match=text.rpartition("/")[2]):
        parse_endpoint(text, is_secure=False)


def settings_of(*flags: str) -> ServiceSettings:
    return service_settings(fill(parse_arguments(flags)[0]))


def test_flags_become_settings() -> None:
    usual = settings_of()
    assert usual.security is None
    assert (usual.dial_seconds, usual.request_seconds) == (2.0, 5.0)
    assert (usual.ping_seconds, usual.ping_timeout_seconds) == (2.0, 6.0)
    changed = settings_of(
        "--discovery-endpoints=b:1,a:1",
        "--discovery-dial-timeout=1s",
        "--discovery-request-timeout=3s",
        "--discovery-keepalive-time=4s",
        "--discovery-keepalive-timeout=5s",
        "--discovery-cert=c",
        "--discovery-key=k",
        "--discovery-cacert=a",
        "--discovery-user=u",
        "--discovery-password=p:w",
    )
    assert changed == ServiceSettings(
        endpoints=("a:1", "b:1"),
        dial_seconds=1.0,
        request_seconds=3.0,
        ping_seconds=4.0,
        ping_timeout_seconds=5.0,
        security=DialSettings("c", "k", "a"),
        user="u",
        password="p:w",
        token="",
        request_bytes_max=SETTINGS.request_bytes_max,
        answer_bytes_max=SETTINGS.answer_bytes_max,
    )
    assert settings_of("--discovery-insecure-transport=false").security == DialSettings()
    trusting = settings_of("--discovery-insecure-skip-tls-verify").security
    assert trusting == DialSettings(insecure=True)
    content = b"""
discovery-config:
  client:
    max-request-bytes: 1
    max-recv-bytes: 2
    secure: {server-name: name}
    auth: {token: secret}
"""
    in_file = service_settings(fill(read_content(content).given))
    assert in_file.security == DialSettings(server_name="name")
    assert (in_file.request_bytes_max, in_file.answer_bytes_max) == (1, 2)
    assert in_file.token == "secret"
    named = make_config(parse_arguments(["--discovery-user=u:p:w"])[0])
    assert (named.discovery_user, named.discovery_password) == ("u", "p:w")


def test_a_context_offers_http2(monkeypatch: pytest.MonkeyPatch) -> None:
    offered: list[object] = []
    monkeypatch.setattr(ssl.SSLContext, "set_alpn_protocols", lambda _, each: offered.append(each))

    async def work(client: Client) -> None:
        with pytest.raises(StatusError):
            await client.range(pb.RangeRequest(key=b"a"))

    with held_port() as port:
        using(work, f"https://127.0.0.1:{port}")
    assert offered == [["h2"]]
