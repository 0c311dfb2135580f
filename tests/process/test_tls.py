"""TLS as users see it: the flags, etcdctl with certificates, compared with a real etcd."""

import json
import re
import ssl
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import cast

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from kvorum.network.edge import CIPHER_SUITES, INCIDENTS, Edge
from kvorum.network.tls.certificates import self_signed
from kvorum.network.tls.security import tls_settings
from kvorum.process.settings import values
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.suggestions import suggestions
from kvorum.server.telemetry.incidents import MESSAGES, IncidentLog
from kvorum.server.telemetry.logs import Logger
from tests.certificates import Authority, Pair, trusting
from tests.etcd import binary, is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.network.edge.wire import Wire
from tests.ports import held_port
from tests.waiting import WAIT_SECONDS_MAX


class Place:
    """An authority, a server's and a client's certificate."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", ["127.0.0.1"])
        self.client = self.authority.issue("root", purposes=["client"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("tls"))


REFUSED_SECONDS = 8
"""How long etcdctl tries before it reports why: enough for a server on a busy machine."""


def etcdctl(url: str, *arguments: str, seconds: float = WAIT_SECONDS_MAX / 2) -> tuple[int, str]:
    """Return etcdctl's exit status and its output."""
    done = subprocess.run(
        [
            str(binary("etcdctl")),
            f"--endpoints={url}",
            f"--dial-timeout={seconds:g}s",
            f"--command-timeout={seconds:g}s",
            *arguments,
        ],
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def identity(place: Place, client: Pair | None, authority: Authority | None = None) -> list[str]:
    flags = [f"--cacert={(authority or place.authority).cert}"]
    if client is not None:
        flags += [f"--cert={client.cert}", f"--key={client.key}"]
    return flags


def security_flags(place: Place, *more: str) -> list[str]:
    return [
        f"--cert-file={place.server.cert}",
        f"--key-file={place.server.key}",
        f"--trusted-ca-file={place.authority.cert}",
        "--client-cert-auth",
        *more,
    ]


@contextmanager
def both(place: Place, tmp_path: Path, *more: str) -> Iterator[dict[str, str]]:
    """Run this server and a real etcd with the same flags; yields their ports."""
    flags = security_flags(place, *more)
    with (
        running_kvorum(tmp_path / "kvorum", *flags, scheme="https") as ours,
        running_etcd(tmp_path / "etcd", *flags, scheme="https") as theirs,
    ):
        yield {
            "kvorum": ours.address.rpartition(":")[2],
            "etcd": theirs.address.rpartition(":")[2],
        }


def test_etcdctl_with_certificates(place: Place, tmp_path: Path) -> None:
    with running_kvorum(tmp_path, *security_flags(place), scheme="https") as server:
        url = f"https://{server.address}"
        flags = identity(place, place.client)
        assert etcdctl(url, *flags, "put", "k", "v") == (0, "OK\n")
        assert etcdctl(url, *flags, "get", "k") == (0, "k\nv\n")
        status, output = etcdctl(url, *flags, "endpoint", "health")
        assert status == 0 and "is healthy" in output
        curl = ["curl", "-sS", "--cacert", str(place.authority.cert)]
        curl += ["--cert", str(place.client.cert), "--key", str(place.client.key)]
        done = subprocess.run(
            [*curl, f"{url}/health"], capture_output=True, timeout=WAIT_SECONDS_MAX, check=True
        )
        assert json.loads(done.stdout)["health"] == "true"
        assert any("serving client traffic securely" in line for line in server.lines)
        done = subprocess.run(
            [*curl, f"{url}/metrics"], capture_output=True, timeout=WAIT_SECONDS_MAX, check=True
        )
        assert b'kvorum_edge_incidents_total{name="tls_handshakes_failed"} 0' in done.stdout


def gist(output: str) -> str:
    """Return what etcdctl says about a failure, without what may differ.

    The alert differs between versions of Go, and the error for a connection that the server has
    closed depends on which side was faster.
    """
    for line in output.splitlines():
        if line.startswith("{"):
            output = json.loads(line).get("error", output)
    closed = r"(read|write) tcp \S+: ([a-z]+: )?[a-z ]+|\bEOF\b|\bconnection reset by peer\b"
    output = re.sub(closed, "connection closed", output.strip())
    return re.sub(r"(remote error: tls: )[a-z ]+", r"\1*", output)


@pytest.mark.long
def test_failures_look_as_a_real_etcds(place: Place, tmp_path: Path) -> None:
    expired = place.authority.issue("late", days=-1, purposes=["client"])
    other = Authority(tmp_path / "other", "other")
    known = identity(place, place.client)
    cases = {
        "well": ("https://127.0.0.1", known),
        "no certificate": ("https://127.0.0.1", identity(place, None)),
        "expired": ("https://127.0.0.1", identity(place, expired)),
        "a stranger": ("https://127.0.0.1", identity(place, other.issue("root"))),
        "another authority": ("https://127.0.0.1", identity(place, place.client, other)),
        "plain text to TLS": ("http://127.0.0.1", []),
        "another name": ("https://localhost", known),
    }
    with both(place, tmp_path) as ports, ThreadPoolExecutor(2 * len(cases)) as pool:
        futures = {
            (name, case): pool.submit(
                etcdctl,
                *(f"{url}:{port}", *flags, "get", "x"),
                seconds=WAIT_SECONDS_MAX / 2 if case == "well" else REFUSED_SECONDS,
            )
            for name, port in ports.items()
            for case, (url, flags) in cases.items()
        }
        said = {
            key: (future.result()[0], gist(future.result()[1])) for key, future in futures.items()
        }
    for case in cases:
        status, text = said["kvorum", case]
        # A real etcd closes with bytes unread, so the client may lose its last words.
        unheard = text.replace("remote error: tls: *", "connection closed")
        # And newer clients may leave out where that happened.
        bare = re.sub(r'connection error: desc = ".*(connection closed)"', r"\1", unheard)
        assert said["etcd", case] in ((status, text), (status, unheard), (status, bare)), case
    assert said["kvorum", "well"] == (0, "")
    assert "remote error: tls: *" in said["kvorum", "expired"][1]


@pytest.mark.long
def test_tls_at_a_plain_port_looks_as_a_real_etcds(place: Place, tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "kvorum") as ours,
        running_etcd(tmp_path / "etcd") as theirs,
        ThreadPoolExecutor(2) as pool,
    ):
        flags = identity(place, place.client)
        said = [
            pool.submit(etcdctl, f"https://{address}", *flags, "get", "x", seconds=REFUSED_SECONDS)
            for address in (ours.address, theirs.address)
        ]
        (status, text), (their_status, their_text) = (future.result() for future in said)
        assert status == their_status == 1
        assert gist(text) == gist(their_text)


@pytest.mark.long
def test_a_revoked_client_is_not_let_in(place: Place, tmp_path: Path) -> None:
    revoked = place.authority.issue("revoked", purposes=["client"])
    crl = f"--client-crl-file={place.authority.revoke(revoked)}"
    with both(place, tmp_path, crl) as ports, ThreadPoolExecutor(4) as pool:
        futures = [
            (
                expected,
                pool.submit(
                    etcdctl, f"https://127.0.0.1:{port}", *flags, "get", "x", seconds=seconds
                ),
            )
            for port in ports.values()
            for expected, flags, seconds in (
                (0, identity(place, place.client), WAIT_SECONDS_MAX / 2),
                (1, identity(place, revoked), 3),
            )
        ]
        for expected, future in futures:
            assert future.result()[0] == expected


SUITES = {
    "ECDHE-ECDSA-AES128-GCM-SHA256": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384": "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
}
"""Suites of TLS 1.2, by OpenSSL's names and by Go's."""
FIRST, SECOND = SUITES
VERSIONS = {"1.2": ssl.TLSVersion.TLSv1_2, "1.3": ssl.TLSVersion.TLSv1_3}


def is_served(place: Place, address: str, client: Pair, version: str, suite: str) -> bool:
    """Return whether a client gets an answer that offers one version and one suite."""
    tls = trusting(place.authority.cert)
    tls.check_hostname = False
    tls.load_cert_chain(client.cert, client.key)
    tls.set_alpn_protocols(["h2"])
    tls.set_ciphers(suite)
    tls.minimum_version = tls.maximum_version = VERSIONS[version]
    try:
        with Wire(address, tls=tls) as wire:
            wire.ping()
    except (OSError, EOFError):
        return False
    return True


@pytest.mark.long
@pytest.mark.parametrize(
    ("flags", "served"),
    [
        (["--tls-min-version=TLS1.3"], {("known", "1.3", FIRST), ("unknown", "1.3", FIRST)}),
        (
            [
                "--tls-max-version=TLS1.2",
                f"--cipher-suites={SUITES[FIRST]}",
                "--client-cert-allowed-hostname=known.example",
            ],
            {("known", "1.2", FIRST)},
        ),
    ],
    ids=["the lowest version", "the highest version, a suite, and a name"],
)
def test_whom_versions_suites_and_names_let_in(
    place: Place, tmp_path: Path, flags: list[str], served: set[tuple[str, str, str]]
) -> None:
    pairs = {
        name: place.authority.issue(name, [f"{name}.example"]) for name in ("known", "unknown")
    }
    offers = [
        (name, version, suite)
        for name in pairs
        for version, suite in (("1.2", FIRST), ("1.2", SECOND), ("1.3", FIRST))
    ]
    with ExitStack() as stack:
        run = stack.enter_context
        secure = security_flags(place, *flags)
        ours = run(running_kvorum(tmp_path / "kvorum", *secure, scheme="https"))
        addresses = [ours.address]
        if is_target():
            # 3.5.1 has no flags for versions.
            theirs = run(running_etcd(tmp_path / "etcd", *secure, scheme="https"))
            addresses.append(theirs.address)
        for address in addresses:
            found = {
                (name, version, suite)
                for name, version, suite in offers
                if is_served(place, address, pairs[name], version, suite)
            }
            assert found == served


def test_a_certificate_made_by_the_server(tmp_path: Path) -> None:
    unchecked = ["--insecure-transport=false", "--insecure-skip-tls-verify"]
    files = [tmp_path / "fixtures" / "client" / name for name in ("cert.pem", "key.pem")]
    made = []
    for _ in range(2):
        with running_kvorum(tmp_path, "--auto-tls", scheme="https") as server:
            assert etcdctl(f"https://{server.address}", *unchecked, "put", "k", "v")[0] == 0
        made.append([path.read_bytes() for path in files])
    assert made[0] == made[1]
    assert stat.S_IMODE(files[1].stat().st_mode) == 0o600
    checked = [f"--cacert={files[0]}"]
    with running_kvorum(tmp_path, "--auto-tls", scheme="https") as server:
        assert etcdctl(f"https://{server.address}", *checked, "get", "k") == (0, "k\nv\n")


def test_both_schemes_at_one_address(place: Place, tmp_path: Path) -> None:
    with ExitStack() as stack:
        address = f"127.0.0.1:{stack.enter_context(held_port())}"
        urls = [
            f"--listen-client-urls=http://{address},https://{address},unixs://{tmp_path}/socket",
            f"--advertise-client-urls=http://{address}",
        ]
        flags = security_flags(place)
        server = stack.enter_context(running_kvorum(tmp_path / "data", *flags, *urls))
        assert etcdctl(f"http://{address}", "put", "k", "v") == (0, "OK\n")
        known = identity(place, place.client)
        assert etcdctl(f"https://{address}", *known, "get", "k") == (0, "k\nv\n")
        curl = ["curl", "-sS", "--unix-socket", f"{tmp_path}/socket"]
        curl += ["--cacert", str(place.authority.cert)]
        curl += ["--cert", str(place.client.cert), "--key", str(place.client.key)]
        done = subprocess.run(
            [*curl, "https://127.0.0.1/health"],
            capture_output=True,
            timeout=WAIT_SECONDS_MAX,
            check=True,
        )
        assert json.loads(done.stdout)["health"] == "true"
        said = [json.loads(line)["msg"] for line in server.lines]
        assert any("ignoring key and cert files" in message for message in said)


CERTS = {"cert-file": "c", "key-file": "k"}
SECURE = {"listen-client-urls": values.urls("https://127.0.0.1:1"), "advertise-client-urls": ()}


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (SECURE, "must be provided for client url https://127.0.0.1:1 with HTTPS scheme"),
        (
            {"listen-metrics-urls": values.urls("https://127.0.0.1:1")},
            "must be provided for metrics secure url",
        ),
        ({"cipher-suites": ("TLS_X",)}, 'unexpected TLS cipher suite "TLS_X"'),
        ({"cipher-suites": ("TLS_RSA_WITH_RC4_128_SHA",)}, "is offered by this server"),
        ({"tls-min-version": "TLS1.1"}, 'unexpected TLS version "TLS1.1"'),
        ({"tls-min-version": "TLS1.3", "tls-max-version": "TLS1.2"}, "is greater than max"),
        (
            {"tls-min-version": "TLS1.3", "cipher-suites": CIPHER_SUITES[:1]},
            "cipher suites cannot be configured when only TLS1.3 is enabled",
        ),
        ({"client-cert-file": "x"}, "must be given together"),
    ],
)
def test_flags_that_cannot_be_followed(given: dict[str, object], text: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(text)):
        make_config(given)


def test_flags_of_peers_are_understood() -> None:
    flags: dict[str, object] = {"peer-cert-allowed-cn": ("a",), "peer-trusted-ca-file": "ca"}
    security = make_config(flags).peer_security
    assert (security.allowed_names, security.trusted_ca_file) == (("a",), "ca")
    with pytest.raises(ConfigError, match="mutually exclusive"):
        make_config({**flags, "peer-cert-allowed-hostname": ("b",)})


def test_cipher_suites_by_the_names_of_go() -> None:
    config = make_config(
        {
            **SECURE,
            **CERTS,
            "cipher-suites": (
                "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305",
                "TLS_RSA_WITH_AES_128_CBC_SHA",
                "TLS_AES_128_GCM_SHA256",
            ),
        }
    )
    ((_, settings),) = tls_settings(
        config.client_security, config.listen_client_urls, Path("unused")
    ).items()
    assert settings is not None
    assert settings.cipher_suites == ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",)
    told = dict(suggestions(config, {}))
    assert told["cipher suites that are weak are not offered"] == {
        "left_out": ["TLS_RSA_WITH_AES_128_CBC_SHA"]
    }


def test_a_certificate_that_cannot_serve_again_is_replaced(tmp_path: Path) -> None:
    cert_file, key_file = self_signed(tmp_path, ["127.0.0.1:2379", "localhost"], 2)
    first = cert_file.read_bytes()
    certificate = x509.load_pem_x509_certificate(first)
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(one.value) for one in names] == ["127.0.0.1", "localhost"]
    lasts = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    assert lasts.days == 2 * 365
    assert self_signed(tmp_path, [], 2) and cert_file.read_bytes() == first
    key_file.write_text("broken")
    assert self_signed(tmp_path, ["x"], 2) and cert_file.read_bytes() != first
    # A certificate that has expired.
    self_signed(tmp_path / "late", ["x"], 0)
    late = (tmp_path / "late" / "cert.pem").read_bytes()
    self_signed(tmp_path / "late", ["x"], 1)
    assert (tmp_path / "late" / "cert.pem").read_bytes() != late
    # A key on the curve that etcd uses.
    slow = ec.generate_private_key(ec.SECP521R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    key_file.write_bytes(slow)
    self_signed(tmp_path, ["x"], 1)
    assert key_file.read_bytes() != slow


class Told(Logger):
    """Keeps what is logged."""

    def __init__(self) -> None:
        super().__init__([])
        self.lines: list[tuple[str, str, int]] = []
        self.fields: dict[str, object] = {}

    def warning(self, message: str, /, **fields: object) -> None:
        self.fields = fields
        times = fields["times"]
        assert isinstance(times, int)
        self.lines.append((message, str(fields["error"]), times))


def test_a_burst_is_told_of_once() -> None:
    logger = Told()
    log = IncidentLog(cast(Edge, None), logger, {9})

    def happens(name: str, times: int, now: float) -> None:
        log.log([(name, 0, "peer", "why", times)], now)

    happens("pings_excessive", 5, 100.0)
    for second in range(1, 10):
        happens("pings_excessive", 1000, 100.0 + second)
    happens("resets_excessive", 1, 105.0)
    happens("pings_excessive", 1, 111.0)
    messages = [(message, times) for message, _, times in logger.lines]
    assert messages == [
        (MESSAGES["pings_excessive"], 5),
        (MESSAGES["resets_excessive"], 1),
        (MESSAGES["pings_excessive"], 9001),
    ]
    # The end of a burst is reported, too, even if nothing happens after it.
    happens("resets_excessive", 7, 106.0)
    log.log([], 110.0)
    assert len(logger.lines) == 3
    log.log([], 116.0)
    assert logger.lines.pop()[::2] == (MESSAGES["resets_excessive"], 7)
    log.log([("tls_handshakes_failed", 0, "peer", "EOF", 1)], 200.0)
    assert len(logger.lines) == 3, "who only opened a connection is nothing to warn of"
    assert set(MESSAGES) == set(INCIDENTS)


def test_a_flood_is_named_with_where_it_comes_from() -> None:
    logger = Told()
    log = IncidentLog(cast(Edge, None), logger, {9})
    log.log([("tls_handshakes_failed", 0, "10.0.0.1:5", "EOF", 1)], 100.0)
    for second in range(5):
        peer = f"10.0.0.{second % 2 + 1}:{second}"
        log.log([("tls_handshakes_failed", 0, peer, "EOF", 1000)], 101.0 + second)
    log.log([], 111.0)
    ((message, _, times),) = logger.lines
    assert (message, times) == (MESSAGES["tls_handshakes_failed"], 5000)
    assert logger.fields["incident"] == "tls_handshakes_failed"
    assert logger.fields["from"] == ["10.0.0.1", "10.0.0.2"]
