"""How the tool reaches a cluster, and what it says when it does not; beside etcdctl."""

import re
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.operations import Operation
from kvorum.client.sync.client import Client
from tests.certificates import Authority, Pair
from tests.etcd import binary, is_target
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.process.discovery.domain import DOMAIN, Zone, machine_of
from tests.tools.ctl.duel import KINDS, PATIENCE, Duel, duel_of, run_here
from tests.waiting import WAIT_SECONDS_MAX

OURS = (sys.executable, "-m", "kvorum.tools.ctl.main")
QUICKLY = "--command-timeout=100ms"


def check_hint(expected: str, *words: str) -> None:
    """Check what the hint says of a command line that fails when its time is over.

    On a busy machine the tool may not get as far in a second: then it is given more.
    """
    for seconds in (1, 8, 64):
        outcome = run_here([*words, f"--command-timeout={seconds}s"])
        assert (outcome.out, outcome.code) == (b"", 1)
        first, *rest = outcome.err.decode().splitlines()
        (error,) = rest
        assert error.startswith("Error: ") and "context deadline exceeded" in error
        told = first.removeprefix("Hint: ")
        if expected in told:
            return
    raise AssertionError(f"{expected!r} is not in {told!r}")


# Endpoints.


@pytest.mark.parametrize(
    "words",
    [
        ("get", "a"),
        ("put", "a", "b"),
        ("del", "a"),
        ("compaction", "1"),
        ("member", "list"),
        ("member", "remove", "1"),
        ("auth", "status"),
        ("auth", "enable"),
        ("check", "perf", "--load=nonsense"),
        ("get", "a", "--user=a:b", "--dial-timeout=100ms"),
        ("endpoint", "status", "--user=a:b", "--dial-timeout=100ms"),
        ("endpoint", "health", "--user=a:b", "--dial-timeout=100ms", "-w=json"),
        ("user", "list", "--user=a:b", "--dial-timeout=100ms"),
        ("get", "a", "--command-timeout=0s"),
    ],
)
def test_an_endpoint_without_a_server(duel: Duel, words: tuple[str, ...]) -> None:
    with held_port() as port:
        options = [f"--endpoints=127.0.0.1:{port}"]
        if "--command-timeout=0s" not in words:
            options.append(QUICKLY)
        assert duel.compare(*words, *options, endpoints=False).code in (1, 2, 4)


@pytest.mark.parametrize(
    "flag",
    [
        f"--{name}={seconds}"
        for name in ("command-timeout", "dial-timeout", "keepalive-time", "keepalive-timeout")
        for seconds in ("0s", "-1s")
    ],
)
def test_timeouts_of_nothing(duel: Duel, flag: str) -> None:
    duel.compare("put", "timeouts", "1", flag)
    duel.compare("get", "timeouts", flag)
    duel.compare("get", "timeouts", flag, "--user=a:b")
    lease = duel.compare(
        "lease", "grant", "100", flag, save=r"lease (\w+)" if "command" not in flag else ""
    )
    if lease.code == 0:
        duel.compare("lease", "keep-alive", "--once", f"{{{len(duel.saved) - 1}}}", flag)


def test_commands_without_a_deadline_do_not_hang() -> None:
    # etcdctl's do.
    with held_port() as port:
        for words in (("user", "list"), ("role", "add", "x"), ("user", "add", "a:b")):
            check_hint("Connection refused", *words, f"--endpoints=127.0.0.1:{port}")


def test_a_hint_tells_what_to_do() -> None:
    with held_port() as port:
        address = f"127.0.0.1:{port}"
        expected = (
            f"no endpoint could be reached: {address}: Connection refused; see whether the members "
            "run and whether --endpoints names them"
        )
        check_hint(expected, "get", "a", f"--endpoints={address}")


def test_a_server_that_stands_still(tmp_path: Path) -> None:
    with running_kvorum(tmp_path) as running:
        running.process.send_signal(signal.SIGSTOP)
        try:
            address = f"--endpoints={running.address}"
            for words in (
                ("put", "a", "1"),
                ("user", "add", "a:b"),
                ("lease", "grant", "5"),
            ):
                check_hint("it may have taken effect, or not", *words, address)
            check_hint("was not answered in time", "get", "a", address)
        finally:
            running.process.send_signal(signal.SIGCONT)


def test_another_endpoint_serves(duel: Duel) -> None:
    with held_port() as port:
        dead = f"127.0.0.1:{port}"
        duel.saved.append((f"{dead},{duel.theirs}", f"{dead},{duel.ours}"))
        duel.saved.append((f"{duel.theirs},{dead}", f"{duel.ours},{dead}"))
        for number in (len(duel.saved) - 2, len(duel.saved) - 1):
            for words in (("put", "half", "1"), ("get", "half")):
                duel.compare(*words, f"--endpoints={{{number}}}", endpoints=False)


@pytest.mark.parametrize(
    "endpoints", ["", ",", "ftp://host:1", "http://", "unix://", "host:nonsense"]
)
def test_endpoints_that_are_none(endpoints: str) -> None:
    outcome = run_here([f"--endpoints={endpoints}", "get", "a"])
    assert (outcome.code, outcome.out) == (2 if endpoints in ("", ",") else 128, b"")
    assert outcome.err.startswith(b"Error: ")


def test_spaces_around_endpoints_do_not_matter(duel: Duel) -> None:
    duel.saved.append((f" {duel.theirs} ", f" {duel.ours} "))
    duel.compare("put", "a", "1", f"--endpoints={{{len(duel.saved) - 1}}}", endpoints=False)


@pytest.mark.parametrize("scheme", ["unix://", "unix:"])
def test_a_socket_that_is_a_file(tmp_path: Path, scheme: str) -> None:
    # etcd makes its sockets of names of hosts and ports.
    path = tmp_path / "socket"
    flags = (f"--listen-client-urls=http://127.0.0.1:0,unix://{path}",)
    with running_kvorum(tmp_path / "data", *flags):
        address = f"--endpoints={scheme}{path}"
        assert run_here([address, *PATIENCE, "put", "a", "1"]).code == 0
        assert run_here([address, *PATIENCE, "get", "a"]).out == b"a\n1\n"
        shown = run_here([address, *PATIENCE, "endpoint", "health"])
        assert shown.out.startswith(f"{scheme}{path} is healthy".encode())


@pytest.mark.parametrize(
    "options",
    [
        ("--max-request-bytes=10",),
        ("--max-request-bytes=15",),
        ("--max-request-bytes=-1",),
        ("--max-recv-bytes=10",),
        ("--max-recv-bytes=-1",),
        ("--max-recv-bytes=10", "--max-request-bytes=11"),
        ("--max-recv-bytes=x",),
    ],
)
def test_messages_that_are_too_long(duel: Duel, options: tuple[str, ...]) -> None:
    for words in (("put", "a", "b" * 10), ("get", "a"), ("member", "list")):
        # Ids are shorter now and then.
        duel.compare(
            *words, *options, change=lambda data: re.sub(rb"(?s)\d\d vs|Usage:.*", b"", data)
        )


def _without_sizes(data: bytes) -> bytes:
    return re.sub(rb"(?s)\d\d vs|Usage:.*", b"", data)


def test_a_value_that_is_too_long(duel: Duel) -> None:
    assert duel.compare("put", "a", stdin=b"a" * (2 << 20)).code == 1
    assert duel.compare("put", "a", "--max-request-bytes=3000000", stdin=b"a" * (2 << 20)).code == 1


# TLS.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module", params=KINDS)
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, authority: Authority
) -> Iterator[Duel]:
    """Servers that want certificates of their clients."""
    if not is_target():
        pytest.skip("etcdctl 3.5.1 needs other flags; 'make oracle' builds 3.7.3")
    server = authority.issue("server")
    flags = (
        f"--cert-file={server.cert}",
        f"--key-file={server.key}",
        f"--trusted-ca-file={authority.cert}",
        "--client-cert-auth",
    )
    directory = tmp_path_factory.mktemp("secured")
    with duel_of(request.param, directory, *flags, scheme="https") as found:
        yield found


def test_certificates(secured: Duel, authority: Authority, tmp_path: Path) -> None:
    own = authority.issue("own", purposes=["client"])
    other = Authority(tmp_path, "other")
    foreign = other.issue("foreign", purposes=["client"])
    ca, pair = f"--cacert={authority.cert}", (f"--cert={own.cert}", f"--key={own.key}")
    good = [
        (ca, *pair),
        (ca, *pair, "--insecure-transport=false"),
        ("--insecure-skip-tls-verify", *pair),
    ]
    bad = [
        (f"--cacert={other.cert}", *pair),
        (ca,),
        (ca, f"--cert={foreign.cert}", f"--key={foreign.key}"),
        pair,
        ("--insecure-transport=false",),
        (),
    ]
    for options, is_good in [*((each, True) for each in good), *((each, False) for each in bad)]:
        # What fails is tried until the time is over.
        outcome = secured.compare("get", "a", *options, *(() if is_good else (QUICKLY,)))
        assert outcome.code == (0 if is_good else 1)


@pytest.mark.parametrize(
    "options",
    [
        ("--cert=",),
        ("--key=",),
        ("--cacert=",),
        ("--cert=/none",),
        ("--key=/none",),
        ("--cert=/none", "--key=/none"),
        ("--cacert=/none",),
    ],
)
def test_files_that_are_missing(duel: Duel, options: tuple[str, ...]) -> None:
    for words in (("get", "a"), ("endpoint", "status"), ("member", "list")):
        assert duel.compare(*words, *options).code == 128


def test_files_that_are_no_certificates(tmp_path: Path, authority: Authority) -> None:
    nonsense = tmp_path / "nonsense"
    nonsense.write_text("nonsense")
    own, another = authority.issue("one"), authority.issue("two")
    for options in (
        (f"--cacert={nonsense}",),
        (f"--cert={nonsense}", f"--key={own.key}"),
        (f"--cert={own.cert}", f"--key={nonsense}"),
        (f"--cert={own.cert}", f"--key={another.key}"),
    ):
        outcome = run_here(["get", "a", *options])
        assert outcome.code == 128
        assert str(tmp_path).encode() in outcome.err or str(another.key).encode() in outcome.err


class Handshaker(socketserver.ThreadingTCPServer):
    """A server that shakes hands, wants a certificate, and says nothing else."""

    daemon_threads = True

    def __init__(self, authority: Authority, pair: Pair) -> None:
        super().__init__(("127.0.0.1", 0), socketserver.BaseRequestHandler)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(pair.cert, pair.key)
        self._context.load_verify_locations(authority.cert)
        self._context.verify_mode = ssl.CERT_REQUIRED
        self._context.set_alpn_protocols(["h2"])

    def finish_request(self, request: socket.socket, _address: object) -> None:  # type: ignore[override]
        with suppress(OSError), self._context.wrap_socket(request, server_side=True) as secured:
            secured.recv(1)

    @contextmanager
    def running(self) -> Iterator[str]:
        thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{self.server_address[1]}"
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


@pytest.mark.long
def test_what_to_do_about_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ca = f"--cacert={authority.cert}"

    def check(expected: str, *options: str, days: int = 1, host: str = "127.0.0.1") -> None:
        pair = authority.issue("server", [host], days=days)
        with Handshaker(authority, pair).running() as address:
            check_hint(expected, "get", "a", f"--endpoints={address}", *options)

    check("certificate has expired; renew", ca, days=-1)
    check("a name that the certificate has", ca, host="elsewhere.test")
    check("--cert and --key name it", ca)
    check("--cacert names the authority", "--insecure-transport=false")
    check("https:// (or --cacert")


def test_tls_where_none_is_spoken(tmp_path: Path) -> None:
    with running_kvorum(tmp_path) as running:
        check_hint(
            "it is http:// without TLS", "get", "a", f"--endpoints=https://{running.address}"
        )


# Who we are.


def test_a_token_that_was_made_elsewhere(duel: Duel) -> None:
    duel.compare("user", "add", "root:pw")
    duel.compare("auth", "enable")
    request = pb.AuthenticateRequest(name="root", password="pw").SerializeToString()
    tokens = []
    for address in (duel.theirs, duel.ours):
        with Client(address) as client:
            login = Operation(rpcs.AUTHENTICATE, request, pb.AuthenticateResponse.FromString)
            tokens.append(client.run(login).token)
    duel.saved.append((tokens[0], tokens[1]))
    token = f"--auth-jwt-token={{{len(duel.saved) - 1}}}"
    try:
        duel.compare("put", "a", "1", token)
        duel.compare("user", "list", token)
        duel.compare("endpoint", "health", token)
    finally:
        duel.compare("auth", "disable", token)
        duel.compare("user", "delete", "root")
        duel.compare("role", "delete", "root")


# SRV records.


def test_srv_records_name_the_endpoints(duel: Duel, tmp_path: Path) -> None:
    ports = [int(each.rpartition(":")[2]) for each in (duel.theirs, duel.ours)]
    for tool, port in zip(((str(binary("etcdctl")),), OURS), ports, strict=True):
        zone = Zone(
            {"etcd-client": [("one", port)], "etcd-client-blue": [("one", port)]},
            {"one": "127.0.0.1"},
        )
        with machine_of(zone, tmp_path) as machine:
            begin = [*machine, *tool, f"--discovery-srv={DOMAIN}"]

            def run(*words: str, begin: list[str] = begin) -> subprocess.CompletedProcess[bytes]:
                return subprocess.run(
                    [*begin, *PATIENCE, *words], capture_output=True, timeout=WAIT_SECONDS_MAX
                )

            assert run("put", "srv", "1").stdout == b"OK\n"
            assert run("get", "srv", "--discovery-srv-name=blue").stdout == b"srv\n1\n"
            health = run("endpoint", "health", "--cluster")
            assert b" is healthy: " in health.stdout
            none = run("get", "srv", "--discovery-srv-name=red")
            assert (none.returncode, none.stdout) == (1, b"")
            # None is left, so that the flag counts, where nobody is.
            with held_port() as free:
                options = ("--insecure-discovery=false", f"--endpoints=127.0.0.1:{free}", QUICKLY)
                insecure = run("get", "srv", *options)
            assert insecure.returncode == 1
            assert b'ignoring discovered insecure endpoint "http://one.' in insecure.stderr
