"""Which certificates let a member in: the same as with a real etcd."""

import asyncio
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvorum.api.boundary import Boundary
from kvorum.network.edge import TlsSettings
from kvorum.network.tls.credentials import DialSettings
from kvorum.network.tls.security import Security, dial_settings, tls_settings
from kvorum.process.peer_address_check import PeerAddressCheck
from kvorum.process.settings import values
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.suggestions import suggestions
from kvorum.server.telemetry.logs import Logger
from tests.certificates import Authority, Pair
from tests.cluster.members import TIMING
from tests.etcd import is_target, running_etcd
from tests.home_made import make
from tests.kvorum import READY, command, running_kvorum
from tests.network.dialer.dialing import RESPONDED, Dialing
from tests.ports import held_port
from tests.waiting import WAIT_SECONDS_MAX, until


class Place:
    """An authority, a member's certificate, and those of others that dial it."""

    def __init__(self, directory: Path) -> None:
        self.authority = authority = Authority(directory)
        self.member = authority.issue("member")
        self.others = {
            "a member": self.member,
            "another address": authority.issue("other", ["127.0.0.2"]),
            "a name for the address": authority.issue("named", ["localhost"]),
            "a name beside another address": authority.issue("two", ["127.0.0.2", "localhost"]),
            "another name": authority.issue("unknown", ["no.such.host.invalid"]),
            "no name": authority.issue("nameless", []),
            "names that cannot be read": authority.issue("bad", names=b"\x30\x0bnonsense"),
            "a name that ends early": authority.issue("early", names=b"\x30\x05\x82\x03a\0b"),
            "revoked": authority.issue("revoked"),
            "for servers only": authority.issue("servant", purposes=["server"]),
            "a stranger": Authority(directory / "other", "other").issue("stranger"),
        }
        self.crl = authority.revoke(self.others["revoked"])

    def dial(self, pair: Pair | None = None) -> DialSettings:
        pair = pair or self.member
        return DialSettings(str(pair.cert), str(pair.key), str(self.authority.cert))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("certificates"))


def peer_flags(port: int) -> tuple[str, list[str]]:
    """Return a URL for members, and the flags that listen there."""
    url = f"https://127.0.0.1:{port}"
    return url, [
        f"--listen-peer-urls={url}",
        f"--initial-advertise-peer-urls={url}",
        f"--initial-cluster=default={url}",
    ]


def is_served(url: str, settings: DialSettings) -> bool:
    """Return whether a member that dials with these settings gets an answer."""
    dialing = Dialing(settings, WAIT_SECONDS_MAX)
    try:
        event = dialing.next(dialing.dialer.request(url, "GET", "/version", [], b""))
        return event.kind == RESPONDED and event.detail[0] == 200
    finally:
        dialing.close()


FLAGS = {
    "as it is": ("", ""),
    "a revocation list": ("--peer-crl-file={crl}", ""),
    "common names": ("--peer-cert-allowed-cn=member", ""),
    "host names": ("--peer-cert-allowed-hostname=localhost", ""),
    "any address": (
        "--peer-skip-client-san-verification",
        "--experimental-peer-skip-client-san-verification",
    ),
}


@pytest.mark.parametrize("case", FLAGS)
def test_members_are_let_in_as_a_real_etcd_lets_them_in(
    place: Place, tmp_path: Path, case: str
) -> None:
    flag, older = FLAGS[case]
    flag, older = flag.format(crl=place.crl), (older or flag).format(crl=place.crl)
    common = [
        f"--peer-cert-file={place.member.cert}",
        f"--peer-key-file={place.member.key}",
        f"--peer-trusted-ca-file={place.authority.cert}",
        "--peer-client-cert-auth",
    ]
    with ExitStack() as stack:
        ours, flags = peer_flags(stack.enter_context(held_port()))
        more = [flag] if flag else []
        server = stack.enter_context(running_kvorum(tmp_path / "ours", *flags, *common, *more))
        theirs, flags = peer_flags(stack.enter_context(held_port()))
        more = [flag if is_target() else older] if flag else []
        stack.enter_context(running_etcd(tmp_path / "theirs", *flags, *common, *more))
        for other, pair in place.others.items():
            settings = place.dial(pair)
            assert is_served(ours, settings) == is_served(theirs, settings), (case, other)
        assert is_served(ours, place.dial())
        assert not is_served(ours, place.dial(place.others["a stranger"]))
        assert not is_served(ours, DialSettings(ca_file=str(place.authority.cert)))
        rejected = "rejected connection on peer endpoint"
        until(f"the log says {rejected!r}", lambda: any(rejected in line for line in server.lines))


def test_certificates_that_members_make(tmp_path: Path) -> None:
    with ExitStack() as stack:
        url, flags = peer_flags(stack.enter_context(held_port()))
        stack.enter_context(running_kvorum(tmp_path, *flags, "--peer-auto-tls"))
        assert is_served(url, DialSettings(insecure=True))
        assert not is_served(url, DialSettings())
        made = tmp_path / "fixtures" / "peer" / "cert.pem"
        assert is_served(url, DialSettings(ca_file=str(made)))


@pytest.mark.long
def test_members_with_the_name_of_their_authority_dial_from_their_own_address(
    tmp_path: Path,
) -> None:
    """One dials from an address that its certificate is not for, so two are left to serve.

    The certificates are as people make them with Go: each has the name of the authority, whose
    country has three letters.
    """
    authority = make("etcd", ca=True, signs=True, country="USA", key="rsa2048")
    (tmp_path / "ca.pem").write_bytes(authority.pem)
    hosts = ["127.0.0.1", own_address(), own_address()]
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()) for _ in hosts]
        places = list(zip(hosts, ports, strict=True))
        urls = [f"https://{host}:{port}" for host, port in places]
        members = ",".join(f"m{number}={url}" for number, url in enumerate(urls))
        logs = [tmp_path / f"log{number}" for number in range(len(hosts))]
        for number, (host, url) in enumerate(zip(hosts, urls, strict=True)):
            own = make(
                *("etcd", authority),
                hosts=[host],
                signs=False,
                country="USA",
                key="rsa2048",
                has_key_identifier=True,
            )
            cert, key = tmp_path / f"{number}.pem", tmp_path / f"{number}.key"
            cert.write_bytes(own.pem)
            key.write_bytes(own.key_pem)
            flags = [
                f"--name=m{number}",
                f"--listen-peer-urls={url}",
                f"--initial-advertise-peer-urls={url}",
                f"--initial-cluster={members}",
                f"--peer-cert-file={cert}",
                f"--peer-key-file={key}",
                f"--peer-trusted-ca-file={tmp_path / 'ca.pem'}",
                "--peer-client-cert-auth",
                # With the shortest, a busy machine might elect for ever.
                *TIMING,
            ]
            if number:
                flags.append("--feature-gates=SetMemberLocalAddr=true")
            clients = f"127.0.0.1:{stack.enter_context(held_port())}"
            with logs[number].open("w") as said:
                process = subprocess.Popen(
                    command(tmp_path / f"data{number}", clients, *flags), stderr=said
                )
            stack.callback(end, process)
        reason = f"x509: certificate is valid for 127.0.0.1, not {own_address()}"
        for log, awaited in zip(logs, (READY, reason, reason), strict=True):
            wait_until_said(log, awaited)
            assert "UserWarning" not in log.read_text()


def own_address() -> str:
    """Return an address of this machine that is not a loopback one: only such are dialed from."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as unsent:
        try:
            unsent.connect(("192.0.2.200", 9))
        except OSError:
            pytest.skip("this machine has no address beside loopback ones")
        return str(unsent.getsockname()[0])


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def wait_until_said(log: Path, awaited: str) -> None:
    until(f"{log} says {awaited!r}", lambda: awaited in log.read_text())


# What the flags mean.


def secured(given: dict[str, object]) -> Security:
    return make_config(given).peer_security


def test_what_is_dialed_with(tmp_path: Path) -> None:
    urls = values.urls("https://127.0.0.1:2380")
    named: dict[str, object] = {
        "peer-cert-file": "c",
        "peer-key-file": "k",
        "peer-trusted-ca-file": "a",
        "peer-cert-allowed-cn": ("m",),
        "tls-max-version": "TLS1.2",
    }
    settings = dial_settings(secured(named), urls, tmp_path)
    assert settings == DialSettings(
        "c", "k", "a", allowed_names=("m",), version_max="TLS1.2", cipher_suites=()
    )
    other = {**named, "peer-client-cert-file": "x", "peer-client-key-file": "y"}
    settings = dial_settings(secured(other), urls, tmp_path)
    assert (settings.cert_file, settings.key_file, settings.insecure) == ("x", "y", False)
    own = secured({"peer-auto-tls": True})
    settings = dial_settings(own, urls, tmp_path)
    assert settings.insecure and settings.cert_file == str(tmp_path / "cert.pem")
    (listened,) = tls_settings(own, urls, tmp_path).values()
    assert isinstance(listened, TlsSettings) and listened.cert_file == settings.cert_file
    assert dial_settings(secured({}), urls, tmp_path) == DialSettings()


def test_flags_of_peers_that_do_not_fit() -> None:
    secure = {"listen-peer-urls": values.urls("https://127.0.0.1:1")}
    with pytest.raises(ConfigError, match="KeyFile and CertFile are not presented"):
        make_config(secure)
    make_config({**secure, "peer-auto-tls": True})
    config = make_config(
        {"peer-cert-file": "c", "peer-key-file": "k", "peer-client-cert-auth": True}
    )
    told = [message for message, _ in suggestions(config, {})]
    assert any("ignoring key and cert files" in message for message in told)
    assert any("--peer-client-cert-auth is enabled" in message for message in told)


@pytest.mark.parametrize("prefix", ["", "peer-"])
def test_certificates_that_nobody_checks_are_warned_of(prefix: str) -> None:
    side = "peer" if prefix else "client"
    flags = {f"{prefix}auto-tls": True, f"{prefix}client-cert-auth": True}
    if not prefix:
        flags["advertise-client-urls"] = values.urls("https://127.0.0.1:1")  # type: ignore
    listened = {f"listen-{side}-urls": values.urls("https://127.0.0.1:1")}
    given = {**flags, **listened}
    told = [message for message, _ in suggestions(make_config(given), given)]
    assert any(f"ignored with --{prefix}auto-tls" in message for message in told)
    del given[f"{prefix}client-cert-auth"]
    told = [message for message, _ in suggestions(make_config(given), given)]
    assert not any("ignored with" in message for message in told)


# Names that have to be looked up.


class Names(asyncio.SelectorEventLoop):
    """A loop with a name service of its own."""

    async def getnameinfo(self, sockaddr: object, flags: int = 0) -> tuple[str, str]:
        assert flags & socket.NI_NAMEREQD
        if sockaddr == ("10.0.0.1", 0):
            return "a.b.Example.", "0"
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async def getaddrinfo(self, host: object, *_: object, **__: object) -> Any:
        if host == "mapped":
            return [(0, 0, 0, "", ("::ffff:10.0.0.9", 0, 0, 0))]
        raise socket.gaierror(socket.EAI_NONAME, "unknown")


@pytest.fixture
def names() -> Iterator[Names]:
    loop = Names()
    yield loop
    loop.close()


@pytest.mark.parametrize(
    ("address", "name", "is_there"),
    [
        ("10.0.0.1", "a.b.example", True),
        ("10.0.0.1", "*.b.example", True),
        ("10.0.0.1", "*.example", True),
        ("10.0.0.1", "b.example", False),
        ("10.0.0.1", "*.xample", False),
        ("10.0.0.9", "mapped", True),
        ("10.0.0.8", "mapped", False),
    ],
)
def test_names_of_addresses(names: Names, address: str, name: str, is_there: bool) -> None:
    boundary = Boundary(Logger([]), names.time)
    peer_address_check = PeerAddressCheck(names, None, (), Logger([]), lambda: None, boundary)  # type: ignore[arg-type]
    found = names.run_until_complete(peer_address_check._is_named(address, ("else", name), []))
    assert found == is_there
