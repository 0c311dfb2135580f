"""Flags of the process, from the command line to what they do."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from hyperframe.frame import PingFrame, SettingsFrame

from kvorum.network.tls.security import tls_settings
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.flags import parse_arguments
from kvorum.process.tokens import open_tokens
from kvorum.server.settings import edge_limits
from kvorum.server.telemetry.logs import Logger
from kvorum.state.auth.tokens import SimpleTokens
from tests.network.edge.wire import PREFACE, Wire, grpc_headers
from tests.process.fork_server import ForkServer, fork_server, running
from tests.server.rpc.harness import by_name
from tests.waiting import WAIT_SECONDS_MAX

WATCH = by_name("Watch/Watch").path
MAX_CONCURRENT_STREAMS = 3


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    with fork_server(tmp_path_factory.mktemp("servers")) as made:
        yield made


def test_pings_and_streams_of_clients(servers: ForkServer, tmp_path: Path) -> None:
    flags = ("--grpc-keepalive-min-time=0s", "--max-concurrent-streams=7")
    with (
        running(servers, tmp_path / "data", *flags) as server,
        Wire(server.address) as frequent,
    ):
        frequent.open(grpc_headers(WATCH))
        for _ in range(20):
            frequent.ping()
        assert frequent.goaway is None
        assert frequent.settings[MAX_CONCURRENT_STREAMS] == 7


def test_clients_that_answer_no_ping_are_let_go(servers: ForkServer, tmp_path: Path) -> None:
    flags = ("--grpc-keepalive-interval=50ms", "--grpc-keepalive-timeout=500ms")
    # Nobody waits for as long as the default, to see which of both it was.
    limits = edge_limits(make_config(parse_arguments(flags)[0]))
    assert (limits.keepalive_seconds, limits.keepalive_timeout_seconds) == (0.05, 0.5)
    with (
        running(servers, tmp_path / "data", *flags) as server,
        Wire(server.address, greet=False) as silent,
    ):
        silent.socket.settimeout(WAIT_SECONDS_MAX)
        call = silent.headers_frame(1, grpc_headers(WATCH)).serialize()
        silent.send_bytes(PREFACE + SettingsFrame(0).serialize() + call)
        frames = []
        while (frame := silent.read_frame()) is not None:
            frames.append(frame)
        assert any(isinstance(frame, PingFrame) for frame in frames)


def test_a_token_lasts_as_long_as_it_is_told_to() -> None:
    for seconds in (5, 500):
        given, _ = parse_arguments([f"--auth-token-ttl={seconds}"])
        tokens = open_tokens(make_config(given), Logger([]))
        assert isinstance(tokens, SimpleTokens)
        used, unused = (tokens.assign("user", text, 7, 0.0) for text in ("a", "b"))
        assert tokens.verify(used, seconds - 1.0, 0.0) is not None
        # From its last use on.
        assert tokens.verify(used, 2.0 * seconds - 2.0, 0.0) is not None
        assert tokens.verify(unused, 2.0 * seconds - 2.0, 0.0) is None


def test_where_and_how_the_log_is_written(servers: ForkServer, tmp_path: Path) -> None:
    log = tmp_path / "log"
    flags = (f"--log-outputs={log}", "--log-level=fatal", "--log-format=console")
    refused = servers.start(tmp_path / "data", *flags, "--auto-compaction-retention=x")
    assert refused.wait() == 1
    (line,) = log.read_text().splitlines()
    assert line.split("\t")[1] == "fatal"


def test_certificates_last_as_many_years_as_asked_for(tmp_path: Path) -> None:
    for years in (1, 3):
        flags = (f"--self-signed-cert-validity={years}", "--auto-tls")
        urls = ("--listen-client-urls=https://127.0.0.1:1", "--advertise-client-urls=https://a:1")
        config = make_config(parse_arguments([*flags, *urls])[0])
        fixtures = tmp_path / str(years)
        (made,) = tls_settings(config.client_security, config.listen_client_urls, fixtures).values()
        assert made is not None
        certificate = x509.load_pem_x509_certificate(Path(made.cert_file).read_bytes())
        lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
        assert lasts.days == 365 * years
