"""The gRPC proxy as a process: how it starts, serves with TLS on both sides, and ends."""

import http.client
import json
import signal
import socket
import ssl
from pathlib import Path

import pytest

from kvorum import Client
from tests.certificates import Authority, trusting
from tests.clients.etcdctl import run as etcdctl
from tests.etcd import running_etcd
from tests.kvorum import running_kvorum
from tests.process.discovery.domain import DOMAIN, Zone, machine_of
from tests.proxy.processes import running_proxy
from tests.waiting import WAIT_SECONDS_MAX, until

HEALTHY = (200, '{"health":"true","reason":""}')


def page(address: str, path: str, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Fetch a page by plain HTTP, or by TLS where there is a context."""
    connection: http.client.HTTPConnection
    if context is None:
        connection = http.client.HTTPConnection(address, timeout=WAIT_SECONDS_MAX)
    else:
        connection = http.client.HTTPSConnection(address, timeout=WAIT_SECONDS_MAX, context=context)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def await_health(address: str, path: str, context: ssl.SSLContext | None = None) -> None:
    """Wait until a proxy calls itself healthy: a member may once take longer than the second that
    it is given to answer."""
    until(f"{path} is well", lambda: page(address, path, context) == HEALTHY)


def await_metrics(address: str, context: ssl.SSLContext | None = None) -> None:
    """Wait until a proxy shows the metrics of its member, which has some seconds to show them."""
    until(
        "the metrics of the member",
        lambda: "etcd_server_has_leader 1" in page(address, "/metrics", context)[1],
    )


def test_its_lines_tell_where_it_listens(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "data") as server,
        running_proxy(
            "grpc-proxy", f"--endpoints={server.address}", "--metrics-addr=http://127.0.0.1:0"
        ) as proxy,
    ):
        assert proxy.matching_lines(
            "listening for gRPC proxy client requests", address=proxy.address
        )
        metrics = proxy.wait_for("gRPC proxy listening for metrics")["address"]
        assert etcdctl(proxy.address, "put", "hello", "world").output == "OK\n"
        assert etcdctl(proxy.address, "get", "hello").output == "hello\nworld\n"
        for address in (proxy.address, metrics):
            await_health(address, "/health")
            await_health(address, "/proxy/health")
            await_metrics(address)
            assert "etcd_grpc_proxy_cache_hits_total" in page(address, "/proxy/metrics")[1]
            assert "process_open_fds" in page(address, "/proxy/metrics")[1]
            for missing in ("/version", "/v3/kv/range", "/debug/pprof/"):
                assert page(address, missing) == (404, "404 page not found\n")
        listed = json.loads(etcdctl(proxy.address, "member", "list", "-w=json").output)
        assert [(each["name"], each["clientURLs"]) for each in listed["members"]] == [
            (socket.gethostname(), ["127.0.0.1:23790"])
        ]


def test_a_proxy_in_front_of_a_real_etcd(tmp_path: Path) -> None:
    with (
        running_etcd(tmp_path / "data") as server,
        running_proxy("grpc-proxy", f"--endpoints={server.address}") as proxy,
        Client(proxy.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        client.put("hello", "world")
        assert server.get(b"hello") == b"world"
        with client.watch("hello") as watch:
            client.put("hello", "again")
            assert next(iter(watch)).value == b"again"


def test_members_that_are_not_there_yet(tmp_path: Path) -> None:
    """A proxy starts without them, and finds them when they have started."""
    with running_kvorum(tmp_path / "data") as server:
        address = server.address
        with running_proxy("grpc-proxy", f"--endpoints={address}") as proxy:
            server.process.kill()
            server.process.wait()
            status, text = page(proxy.address, "/health")
            assert status == 503
            assert json.loads(text)["health"] == "false"
            assert page(proxy.address, "/metrics") == (500, "Internal server error\n")
            proxy.process.send_signal(signal.SIGTERM)
            assert proxy.end() == -signal.SIGTERM


def test_tls_on_both_sides(tmp_path: Path) -> None:
    members, clients = Authority(tmp_path, "members"), Authority(tmp_path, "clients")
    member, nameless = members.issue("member"), members.issue("")
    shown, user = clients.issue("proxy"), clients.issue("user")
    server_flags = (
        f"--cert-file={member.cert}",
        f"--key-file={member.key}",
        f"--trusted-ca-file={members.cert}",
        "--client-cert-auth",
    )
    with (
        running_kvorum(tmp_path / "data", *server_flags, scheme="https") as server,
        running_proxy(
            "grpc-proxy",
            f"--endpoints={server.address}",
            f"--cacert={members.cert}",
            f"--cert={nameless.cert}",
            f"--key={nameless.key}",
            f"--cert-file={shown.cert}",
            f"--key-file={shown.key}",
            f"--trusted-ca-file={clients.cert}",
            "--metrics-addr=https://127.0.0.1:0",
        ) as proxy,
    ):
        trust = (f"--cacert={clients.cert}", f"--cert={user.cert}", f"--key={user.key}")
        assert etcdctl(proxy.address, *trust, "put", "hello", "world").output == "OK\n"
        assert etcdctl(proxy.address, *trust, "get", "hello").output == "hello\nworld\n"
        context = trusting(clients.cert)
        metrics = proxy.wait_for("gRPC proxy listening for metrics")["address"]
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
            page(metrics, "/health", context)
        context.load_cert_chain(user.cert, user.key)
        for address in (proxy.address, metrics):
            await_health(address, "/health", context)
            await_metrics(address, context)


def test_a_certificate_of_its_own(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "data") as server,
        running_proxy(
            "grpc-proxy",
            f"--endpoints={server.address}",
            "--auto-tls",
            f"--data-dir={tmp_path / 'proxy'}",
            "--tls-min-version=TLS1.3",
        ) as proxy,
    ):
        flags = ("--insecure-skip-tls-verify", "--insecure-transport=false")
        assert etcdctl(proxy.address, *flags, "put", "hello", "world").output == "OK\n"
        assert (tmp_path / "proxy" / "fixtures" / "proxy" / "cert.pem").exists()


def test_members_by_records(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server:
        port = int(server.address.rpartition(":")[2])
        zone = Zone({"etcd-client": [("one", port)]}, {"one": "127.0.0.1"})
        with (
            machine_of(zone, tmp_path) as before,
            running_proxy(
                "grpc-proxy", f"--discovery-srv={DOMAIN}", "--insecure-discovery", before=before
            ) as proxy,
        ):
            assert etcdctl(proxy.address, "put", "hello", "world").output == "OK\n"


def test_a_signal_ends_it_and_its_streams(tmp_path: Path) -> None:
    with running_kvorum(tmp_path / "data") as server:
        with running_proxy("grpc-proxy", f"--endpoints={server.address}") as proxy:
            with Client(proxy.address, timeout=WAIT_SECONDS_MAX) as client:
                client.put("hello", "world")
                proxy.process.send_signal(signal.SIGTERM)
                proxy.wait_for("received signal; shutting down", signal="terminated")
            assert proxy.end() == -signal.SIGTERM
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(proxy.place, timeout=WAIT_SECONDS_MAX)
        assert etcdctl(server.address, "get", "hello").output == "hello\nworld\n"


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "data") as server,
        running_proxy("grpc-proxy", f"--endpoints={server.address}") as proxy,
        socket.create_connection(proxy.place, timeout=WAIT_SECONDS_MAX),
    ):
        proxy.process.send_signal(signal.SIGINT)
        proxy.wait_for("received signal; shutting down", signal="interrupt")
        proxy.process.send_signal(signal.SIGTERM)
        assert proxy.end() == -signal.SIGINT


def test_flags_without_effect_are_logged(tmp_path: Path) -> None:
    flags = ("--enable-pprof", "--experimental-enable-grpc-logging", "--endpoints=127.0.0.1:1")
    with running_proxy("grpc-proxy", *flags, cwd=tmp_path) as proxy:
        for flag in flags[:2]:
            assert proxy.matching_lines("a flag of etcd's has no effect here", flag=flag)
