"""Members by the records of a domain, asked of a real DNS server."""

import asyncio
import json
import socket
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.network.urls import url
from kvorum.process import bootstrap as bootstrapping
from kvorum.process.bootstrap import bootstrap
from kvorum.process.discovery.names import SystemNames
from kvorum.process.discovery.srv import LookupFailedError, Names, Search, SrvRecord, find_cluster
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.flags import parse_arguments
from kvorum.server.telemetry.logs import Logger, Sink, as_json
from kvorum.state.membership.bootstrap import ClusterSettingsError, InitialCluster
from kvorum.storage.files.real import RealFiles
from tests.process.discovery.domain import DOMAIN, Domain, Zone, resolver_at, running_domain

PLAIN, SECURE = "etcd-server", "etcd-server-ssl"
ADDRESSES = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
TARGETS = [("a", 2380), ("b", 2380), ("c", 2380)]


def found(
    services: Mapping[str, Sequence[tuple[str, int]]],
    own: str = f"http://b.{DOMAIN}:2380",
    service: str = "",
    domain: str = DOMAIN,
    failing: Sequence[str] = (),
) -> InitialCluster:
    """Return the cluster that a member finds in a domain."""
    search = Search(domain, service, "own", tuple(map(url, own.split(","))))
    with running_domain(Zone(services, ADDRESSES, failing)) as port:
        return find_cluster(search, Domain(resolver_at(port)), Logger([]))


def at(scheme: str, host: str, port: int = 2380) -> tuple[str]:
    return (f"{scheme}://{host}.{DOMAIN}:{port}",)


def test_members_of_both_services() -> None:
    plain = {"0": at("http", "a"), "own": at("http", "b"), "1": at("http", "c")}
    assert found({PLAIN: TARGETS}) == plain
    assert found({PLAIN: TARGETS}, "http://10.0.0.2:2380") == plain
    secure = {"0": at("https", "a"), "own": at("https", "b"), "1": at("https", "c")}
    assert found({SECURE: TARGETS}, "https://10.0.0.2:2380") == secure
    assert found({f"{PLAIN}-x": TARGETS, PLAIN: [("a", 1)]}, service="x") == plain
    assert found({f"{SECURE}-x": TARGETS}, "https://10.0.0.2:2380", service="x") == secure


def test_members_are_numbered_by_each_service() -> None:
    together = found({SECURE: [("a", 1)], PLAIN: [("b", 2380), ("c", 2380)]})
    assert together == {"own": at("http", "b"), "0": (*at("http", "c"), *at("https", "a", 1))}


def test_several_urls_of_this_member() -> None:
    cluster = found({PLAIN: [("b", 1), ("b", 2)]}, "http://10.0.0.2:1,http://10.0.0.2:2")
    assert cluster == {"own": (*at("http", "b", 1), *at("http", "b", 2))}


def test_a_host_without_an_address_is_left_out() -> None:
    assert found({PLAIN: [("unknown", 1), ("b", 2380)]}) == {"own": at("http", "b")}


@pytest.mark.parametrize(
    ("services", "own", "problem"),
    [
        ({}, "http://10.0.0.2:2380", "no such host"),
        ({PLAIN: [("unknown", 1)]}, "http://10.0.0.2:2380", "lookup unknown.*no such host"),
        ({PLAIN: TARGETS}, "http://10.0.0.9:2380", 'find local etcd member "own" in SRV'),
        ({PLAIN: TARGETS}, "http://10.0.0.2:2381", 'find local etcd member "own" in SRV'),
        ({PLAIN: TARGETS}, "https://10.0.0.2:2380", "etcd-server has scheme mismatch with"),
        ({SECURE: TARGETS[1:2]}, "http://10.0.0.2:2380", "etcd-server-ssl has scheme mismatch"),
        ({PLAIN: TARGETS}, "http://unknown:2380", ": lookup unknown: no such host\nlookup unknown"),
    ],
)
def test_a_domain_without_this_member(
    services: Mapping[str, Sequence[tuple[str, int]]], own: str, problem: str
) -> None:
    with pytest.raises(ClusterSettingsError, match=problem):
        found(services, own)


def test_why_a_service_is_unknown() -> None:
    with pytest.raises(ClusterSettingsError) as caught:
        found({}, failing=[PLAIN])
    first, second = str(caught.value).splitlines()
    first = first.removeprefix("error setting up initial cluster: ")
    where = r"error querying DNS SRV records for _{0} lookup _{0}._tcp.cluster.test on 127.0.0.1:"
    assert first.startswith(where.format(SECURE)) and first.endswith(": no such host")
    assert second.startswith(where.format(PLAIN)) and second.endswith(": server misbehaving")


def test_a_server_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvorum.process.discovery.names.LOOKUP_SECONDS_MAX", 0.05)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        port = silent.getsockname()[1]
        with pytest.raises(LookupFailedError, match=rf"^lookup x on 127.0.0.1:{port}: i/o timeout"):
            SystemNames(resolver_at(port)).services("x")


@pytest.mark.parametrize("name", ["a..b", "a" * 64, f"{'a.' * 200}test"])
def test_a_domain_that_is_none(name: str) -> None:
    with pytest.raises(
        ClusterSettingsError, match="error querying DNS SRV records for _etcd-server"
    ):
        found({PLAIN: TARGETS}, domain=name)


def test_the_machine_knows_its_own_names() -> None:
    names = SystemNames()
    assert names.address("localhost") == "127.0.0.1"
    assert names.address("::1") == "::1"
    for unknown in ("no.such.host.invalid", "a" * 300, "a..b", "\u00e9"):
        with pytest.raises(LookupFailedError, match="no such host"):
            names.address(unknown)


class Book:
    """A resolver that knows what a test has written into it."""

    def __init__(
        self, records: Mapping[str, Sequence[SrvRecord]], addresses: Sequence[str]
    ) -> None:
        self._records, self._addresses = records, addresses

    def services(self, name: str) -> Sequence[SrvRecord]:
        if not (found := self._records[name]):
            raise LookupFailedError("none")
        return found

    def address(self, host: str) -> str:
        return self._addresses[int(host.rstrip("."))]


RECORDS = st.lists(
    st.builds(
        SrvRecord,
        st.integers(0, 3),
        st.integers(-3, 0),
        st.integers(0, 5).map(lambda each: f"{each}."),
        st.just(2380),
    ),
    max_size=6,
    unique_by=lambda each: each.target,
)


@given(plain=RECORDS, data=st.data())
def test_all_members_find_the_same_urls(plain: list[SrvRecord], data: st.DataObject) -> None:
    addresses = data.draw(st.permutations([f"10.0.0.{each}" for each in range(6)]))
    clusters = []
    for member in range(6):
        # Servers give records in any order.
        shuffled = data.draw(st.permutations(plain))
        book: Names = Book({f"_{SECURE}._tcp.d": [], f"_{PLAIN}._tcp.d": shuffled}, addresses)
        search = Search("d", "", "own", (url(f"http://{member}:2380"),))
        try:
            cluster = find_cluster(search, book, Logger([]))
        except ClusterSettingsError:
            assert all(each.target != f"{member}." for each in plain)
        else:
            assert cluster["own"] == (f"http://{member}:2380",)
            others = [each for each in sorted(plain) if each.target != f"{member}."]
            numbered = [cluster[str(number)] for number in range(len(others))]
            assert numbered == [(f"http://{each.target[:-1]}:2380",) for each in others]
            assert len(cluster) == len(plain)
            clusters.append(sorted(cluster.values()))
    assert len(clusters) == len(plain)
    assert all(each == clusters[0] for each in clusters)


def entered(
    directory: Path, names: Names, *flags: str, scheme: str = "https"
) -> tuple[InitialCluster, DialSettings, list[dict[str, object]]]:
    """Return the cluster that a member enters, how it will dial the others, and what it logs."""
    given, _ = parse_arguments(
        [
            "--name=own",
            f"--listen-peer-urls={scheme}://127.0.0.1:0",
            f"--initial-advertise-peer-urls={scheme}://1:2380",
            "--peer-auto-tls",
            *flags,
        ]
    )
    credentials = TlsCredentials(DialSettings(), print)
    with tempfile.TemporaryFile() as log:
        logger = Logger([Sink(log.fileno(), as_json)])
        told = bootstrap(
            make_config(given), str(directory), RealFiles(), credentials, logger, names
        )
        settings, _ = asyncio.run(told)
        log.seek(0)
        lines = [json.loads(each) for each in log]
    assert settings.initial_cluster_token == "etcd-cluster"
    return settings.initial_cluster, credentials.settings, lines


def test_certificates_are_for_the_domain(tmp_path: Path) -> None:
    record = [SrvRecord(0, 0, "1.", 2380)]
    secure = Book({f"_{SECURE}._tcp.d": record, f"_{PLAIN}._tcp.d": []}, ADDRESSES_BY_NUMBER)
    plain = Book({f"_{SECURE}._tcp.d": [], f"_{PLAIN}._tcp.d": record}, ADDRESSES_BY_NUMBER)
    cluster, settings, _ = entered(tmp_path, secure, "--discovery-srv=d")
    assert cluster == {"own": ("https://1:2380",)}
    assert settings == DialSettings(server_name="d")
    ca = ("--peer-trusted-ca-file=x", "--discovery-srv=d")
    assert entered(tmp_path, secure, *ca)[1] == DialSettings()
    assert entered(tmp_path, plain, "--discovery-srv=d", scheme="http")[1] == DialSettings()
    (tmp_path / "wal").mkdir()
    (tmp_path / "wal" / "0000000000000000-0000000000000000.wal").touch()
    # Nobody is asked again, and the others' certificates are the same as before.
    nothing = Book({}, [])
    cluster, settings, lines = entered(tmp_path, nothing, "--discovery-srv=d")
    assert cluster == {} and settings == DialSettings(server_name="d")
    assert not any("discovery token" in str(each["msg"]) for each in lines)
    flags = ("--discovery-endpoints=127.0.0.1:1", "--discovery-token=t")
    _, settings, lines = entered(tmp_path, nothing, *flags)
    assert settings == DialSettings()
    assert [each["wal-dir"] for each in lines if "token is ignored" in str(each["msg"])] == [
        f"{tmp_path}/wal"
    ]


ADDRESSES_BY_NUMBER = ["10.0.0.0", "10.0.0.1"]


def test_a_name_that_is_known_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names of containers are known only some time after they began to run."""
    tries: list[bytes] = []

    def answer(host: bytes, *_details: object, **_more: object) -> list[object]:
        tries.append(host)
        if len(tries) < 3:
            raise socket.gaierror(socket.EAI_AGAIN, "not yet")
        return [(None, None, None, "", ("10.0.0.1", 0))]

    now = [0.0]
    monkeypatch.setattr(bootstrapping, "clock", lambda: now[0])
    monkeypatch.setattr(socket, "getaddrinfo", answer)
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    resolving = bootstrapping.Resolving(Logger([]))
    assert resolving("http://name:1") == "http://10.0.0.1:1"
    assert (tries, now) == ([b"name"] * 3, [2.0])
    assert resolving("http://localhost:1") == "http://localhost:1"
    assert resolving("unix://a:1") == "unix://a:1"
    tries.clear()
    now[0] = 31.0
    assert resolving("http://name:1") == "http://name:1"
    assert len(tries) == 1
