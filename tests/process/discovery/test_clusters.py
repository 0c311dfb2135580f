"""Real processes that find each other: three of ours, or two of ours and a real etcd."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import dns.resolver
import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.process.bootstrap import bootstrap
from kvorum.process.discovery.client import Client as ServiceClient
from kvorum.process.discovery.srv import Names
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.config import ConfigError
from kvorum.process.settings.flags import parse_arguments
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import ClusterSettingsError
from kvorum.state.membership.identity import member_id
from kvorum.storage.files.real import RealFiles
from tests.certificates import Authority
from tests.cluster.client import Client
from tests.cluster.processes import ASKS_LONGER, Process, start, start_changed
from tests.etcd import binary, is_target
from tests.ports import held_ports
from tests.process.discovery.domain import DOMAIN, Domain, Zone, machine_of
from tests.process.discovery.services import RUNNING, SETTINGS
from tests.waiting import WAIT_SECONDS_MAX, until

NAMES = ("a", "b", "c")
OURS = str(Path(sys.executable).parent / "kvorum")


def mixed() -> Sequence[str]:
    """Two of ours and a real etcd, if there is one that can do this."""
    return ("kvorum", "kvorum", "etcd" if is_target() else "kvorum")


class Place(NamedTuple):
    """Where a member is."""

    name: str
    client_port: int
    peer_port: int


class Running:
    """A process and the lines that it logs."""

    def __init__(self, process: Process, log: Path) -> None:
        self.process, self._log = process, log

    def text(self) -> str:
        # It may not have begun to log.
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(each) for each in self.text().splitlines() if each.startswith("{")]

    def reason(self) -> str:
        """Return why it ended: the error of the last line that has one."""
        assert self.process.wait(WAIT_SECONDS_MAX) == 1, self.text()
        reasons = [str(each["error"]) for each in self.lines() if "error" in each]
        assert reasons, self.text()
        return reasons[-1]

    def stop(self) -> None:
        if self.process.poll() is None:
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.wait(WAIT_SECONDS_MAX)


class Machine(NamedTuple):
    """How processes are started: as they are, or with names of their own."""

    prefix: Sequence[str] = ()
    environment: Mapping[str, str] = {}

    def start(self, make: str, flags: Sequence[str], log: Path) -> Running:
        log.parent.mkdir(parents=True, exist_ok=True)
        if not self.prefix:
            log.unlink(missing_ok=True)
            return Running(start(make, [*flags], log), log)
        program = OURS if make == "kvorum" else str(binary("etcd"))
        with log.open("wb") as output:
            process = subprocess.Popen(
                [*self.prefix, program, *flags],
                stdout=output,
                stderr=output,
                env=os.environ | self.environment,
            )
        return Running(process, log)


HERE = Machine()


@contextmanager
def places() -> Iterator[list[Place]]:
    with held_ports(6) as ports:
        yield [Place(name, *ports[at : at + 2]) for name, at in zip(NAMES, (0, 2, 4), strict=True)]


def flags_of(place: Place, directory: Path, scheme: str, host: str) -> list[str]:
    """Return the flags of a member, without how it finds others."""
    client = f"http://127.0.0.1:{place.client_port}"
    return [
        f"--name={place.name}",
        f"--data-dir={directory / place.name}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={scheme}://127.0.0.1:{place.peer_port}",
        f"--initial-advertise-peer-urls={scheme}://{host}:{place.peer_port}",
        "--heartbeat-interval=50",
        "--election-timeout=500",
    ]


class Cluster(NamedTuple):
    """Three members that are to find each other, and the ids that they are to have."""

    makes: Sequence[str]
    places: Sequence[Place]
    flags: Sequence[Sequence[str]]
    ids: set[int]
    directory: Path
    machine: Machine = HERE

    def check(self) -> list[Running]:
        """Run the members until all of them know each other; return them, ended."""
        with ExitStack() as stack:
            running = []
            for make, place, flags in zip(self.makes, self.places, self.flags, strict=True):
                one = self.machine.start(make, flags, self.directory / f"{place.name}.log")
                stack.callback(one.stop)
                running.append(one)

            def listed(place: Place) -> Any:
                for one in running:
                    assert one.process.poll() is None, one.text()
                client = Client(f"127.0.0.1:{place.client_port}")
                try:
                    request = pb.MemberListRequest(linearizable=True)
                    answer = client.ask("Cluster/MemberList", request, timeout=2.0)
                finally:
                    client.close()
                if isinstance(answer, Status) or not all(one.clientURLs for one in answer.members):
                    return None
                return answer.members

            for place in self.places:
                found = until(f"{place} knows all", lambda at=place: listed(at))  # type: ignore[misc]
                assert {one.name for one in found} == set(NAMES)
                assert {one.ID for one in found} == self.ids
        return running


def peer_flags(directory: Path, hosts: Sequence[str], *, has_ca: bool = True) -> list[str]:
    authority = Authority(directory / "peers")
    pair = authority.issue("member", hosts)
    flags = [f"--peer-cert-file={pair.cert}", f"--peer-key-file={pair.key}"]
    return [*flags, f"--peer-trusted-ca-file={authority.cert}"] if has_ca else flags


def register(address: str, security: DialSettings | None, **pairs: str) -> None:
    """Put keys under `/_etcd/registry`; two underscores stand for a slash."""

    async def put() -> None:
        client = ServiceClient(replace(SETTINGS, endpoints=(address,), security=security))
        for name, value in pairs.items():
            key = f"/_etcd/registry/{name.replace('__', '/')}".encode()
            await client.put(pb.PutRequest(key=key, value=value.encode()))
        client.close()

    asyncio.run(put())


@pytest.mark.parametrize("is_secure", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("server", RUNNING)
def test_three_members_by_a_service(server: str, is_secure: bool, tmp_path: Path) -> None:
    scheme = "https" if is_secure else "http"
    flags: list[str] = []
    service_flags: list[str] = []
    security = None
    if is_secure:
        authority = Authority(tmp_path / "authority")
        pair = authority.issue("service")
        service_flags = [f"--cert-file={pair.cert}", f"--key-file={pair.key}"]
        service_flags += [f"--trusted-ca-file={authority.cert}", "--client-cert-auth"]
        security = DialSettings(str(pair.cert), str(pair.key), str(authority.cert))
        flags += [f"--discovery-cert={pair.cert}", f"--discovery-key={pair.key}"]
        flags += [f"--discovery-cacert={authority.cert}", *peer_flags(tmp_path, ["127.0.0.1"])]
    with ExitStack() as stack:
        running = RUNNING[server](tmp_path / "service", *service_flags, scheme=scheme)
        with running as service:
            found = stack.enter_context(places())
            register(service.address, security, token___config__size="3")
            flags += ["--discovery-token=token", f"--discovery-endpoints={service.address}"]
            urls = [f"{scheme}://127.0.0.1:{place.peer_port}" for place in found]
            cluster = Cluster(
                mixed() if server == "etcd" else ("kvorum",) * 3,
                found,
                [[*flags_of(each, tmp_path, scheme, "127.0.0.1"), *flags] for each in found],
                {member_id([url], "token") for url in urls},
                tmp_path,
            )
            for one in cluster.check():
                assert token_shown(one) == "token"
            if server == "etcd" and not is_secure:
                check_full(tmp_path, flags)
        if server == "etcd" and not is_secure:
            check_restart(cluster)


def token_shown(one: Running) -> object:
    """Return the cluster's token, as a member logs it when it starts."""
    (line,) = [each for each in one.lines() if each["msg"] == "starting an etcd server"]
    return line["initial-cluster-token"]


def check_full(directory: Path, flags: Sequence[str]) -> None:
    """Check that one more member is refused."""
    for make in {"kvorum", *mixed()}:
        with held_ports(2) as ports:
            late = flags_of(Place("late", *ports), directory / make, "http", "127.0.0.1")
            one = HERE.start(make, [*late, *flags], directory / f"{make}.log")
            reason = "failed to join discovery cluster (discovery: cluster is full)"
            assert one.reason().startswith(reason)
            told = next(each for each in one.lines() if "token was already used" in each["msg"])
            assert told["level"] == "warn" and told["discovery-token"] == "token"
            assert told["error"] == one.reason()
            assert any("do not reuse discovery token" in each["msg"] for each in one.lines())


def check_restart(cluster: Cluster) -> None:
    """Check that members that have a log need no service."""
    ignored = "discovery token is ignored since cluster already initialized; valid logs are found"
    for one in cluster.check():
        assert [each["level"] for each in one.lines() if each["msg"] == ignored] == ["warn"]
        assert token_shown(one) == ""


def test_a_member_that_lost_its_log(tmp_path: Path) -> None:
    """It has forgotten its votes: it must not come back by its token."""
    with (
        RUNNING["kvorum"](tmp_path / "service") as service,
        places() as found,
        ExitStack() as stack,
    ):
        register(service.address, None, token___config__size="2")
        flags = ["--discovery-token=token", f"--discovery-endpoints={service.address}"]
        one, other = (
            [*flags_of(each, tmp_path, "http", "127.0.0.1"), *flags] for each in found[:2]
        )
        running = HERE.start("kvorum", one, tmp_path / "one.log")
        stack.callback(running.stop)
        lost = HERE.start("kvorum", other, tmp_path / "other.log")
        stack.callback(lost.stop)
        until(
            "both serve", lambda: all("ready to serve" in each.text() for each in (running, lost))
        )
        lost.stop()
        shutil.rmtree(tmp_path / found[1].name)
        log = tmp_path / "again.log"
        again = Running(start_changed(ASKS_LONGER, other, log), log)
        stack.callback(again.stop)
        assert "has already been bootstrapped" in again.reason()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_member_that_waits_can_be_ended(number: signal.Signals, tmp_path: Path) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("whoever runs the tests ignores this signal, and so would the member")
    with held_ports(3) as ports:
        flags = flags_of(Place("a", *ports[:2]), tmp_path, "http", "127.0.0.1")
        flags += ["--discovery-token=t", f"--discovery-endpoints=127.0.0.1:{ports[2]}"]
        flags += ["--discovery-user=user:secret", "--discovery-password", "secret"]
        one = Machine(["env"]).start("kvorum", flags, tmp_path / "log")
        try:
            waiting = "retry connecting to discovery service"
            until("it waits", lambda: waiting in one.text() or one.process.poll() is not None)
            assert one.process.poll() is None, one.text()
            os.kill(one.process.pid, number)
            assert one.process.wait(WAIT_SECONDS_MAX) == -number
        finally:
            one.stop()
    assert "Traceback" not in one.text() and "secret" not in one.text()


@pytest.mark.long
@pytest.mark.parametrize("security", ["plain", "tls", "tls by the domain"])
def test_three_members_by_records(security: str, tmp_path: Path) -> None:
    scheme = "http" if security == "plain" else "https"
    service = "etcd-server" if security == "plain" else "etcd-server-ssl"
    flags = [f"--discovery-srv={DOMAIN}", "--initial-cluster-token=token"]
    hosts = [f"{name}.{DOMAIN}" for name in NAMES]
    environment = {}
    if security == "tls":
        flags += peer_flags(tmp_path, [*hosts, "127.0.0.1"])
    elif security == "tls by the domain":
        # Without an authority of its own, a member trusts the machine's.
        flags += peer_flags(tmp_path, [DOMAIN], has_ca=False)
        environment = {"SSL_CERT_FILE": str(tmp_path / "peers" / "authority.pem")}
    else:
        flags.append("--discovery-srv-name=x")
        service += "-x"
    with places() as found:
        targets = [(place.name, place.peer_port) for place in found]
        zone = Zone({service: targets}, dict.fromkeys(NAMES, "127.0.0.1"))
        # Not all need to advertise the name that the records have for them.
        advertised = ("127.0.0.1", hosts[1], hosts[2])
        urls = [f"{scheme}://{place.name}.{DOMAIN}:{place.peer_port}" for place in found]
        with machine_of(zone, tmp_path) as prefix:
            cluster = Cluster(
                mixed(),
                found,
                [
                    [*flags_of(place, tmp_path, scheme, host), *flags]
                    for place, host in zip(found, advertised, strict=True)
                ],
                {member_id([url], "token") for url in urls},
                tmp_path,
                Machine(prefix, environment),
            )
            cluster.check()


# Mistakes: ours says what etcd says, and then what to do.


def own_reason(directory: Path, flags: Sequence[str], names: Names | None = None) -> str:
    """Return why a member of ours does not enter a cluster."""
    config = make_config(parse_arguments([*flags])[0])
    credentials = TlsCredentials(DialSettings(), print)
    entering = bootstrap(config, str(directory), RealFiles(), credentials, Logger([]), names)
    with pytest.raises(ClusterSettingsError) as caught:
        asyncio.run(entering)
    return str(caught.value)


def etcd_reason(directory: Path, flags: Sequence[str], machine: Machine = HERE) -> str:
    """Return why a real etcd ends."""
    one = machine.start("etcd", [f"--data-dir={directory / 'etcd'}", *flags], directory / "log")
    try:
        return one.reason()
    finally:
        one.stop()


LISTENING = (
    "--name=a",
    "--listen-client-urls=http://127.0.0.1:0",
    "--advertise-client-urls=http://127.0.0.1:1",
    "--listen-peer-urls=http://127.0.0.1:0",
    "--initial-advertise-peer-urls=http://127.0.0.1:1",
)


SERVICE_MISTAKES = {
    "none": {},
    "bad": {"bad___config__size": "three"},
    "zero": {"zero___config__size": "0"},
    "full": {"full___config__size": "1", "full__members__1": "x=http://127.0.0.1:1"},
    "url": {"url___config__size": "2", "url__members__1": "x=nonsense"},
    "twice": {"twice___config__size": "2", "twice__members__1": "x=http://127.0.0.1:1"},
}


def test_mistakes_at_a_service(tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("this etcd has no v3 discovery")
    with RUNNING["etcd"](tmp_path / "service") as service:
        for token, pairs in SERVICE_MISTAKES.items():
            register(service.address, None, **pairs)
            flags = [*LISTENING, f"--discovery-token={token}"]
            flags.append(f"--discovery-endpoints={service.address}")
            expected = etcd_reason(tmp_path / token, flags)
            assert own_reason(tmp_path, flags).startswith(expected)


RECORD_MISTAKES = {
    "nobody": {},
    "not this member": {"etcd-server": [("a", 2)]},
    "another scheme": {"etcd-server-ssl": [("a", 1)]},
    "one of another scheme": {"etcd-server-ssl": [("a", 1), ("b", 2)]},
    "both": {"etcd-server-ssl": [("b", 2)], "etcd-server": [("c", 2)]},
}


@pytest.mark.parametrize("mistake", RECORD_MISTAKES)
def test_mistakes_in_records(mistake: str, tmp_path: Path) -> None:
    zone = Zone(RECORD_MISTAKES[mistake], dict.fromkeys(NAMES, "127.0.0.1"))
    flags = (*LISTENING, f"--discovery-srv={DOMAIN}")
    with machine_of(zone, tmp_path) as prefix:
        resolver = dns.resolver.Resolver(str(tmp_path / "resolv.conf"))
        # 3.5 puts both services' errors on one line.
        expected = etcd_reason(tmp_path, flags, Machine(prefix)).replace("; error", "\nerror")
        assert own_reason(tmp_path, flags, Domain(resolver)).startswith(expected)


STATIC_MISTAKES = {
    "another name": ["--initial-cluster=b=http://127.0.0.1:1"],
    "no name": ["--discovery-srv-name=x"],
    "another url": ["--initial-cluster=a=http://127.0.0.1:2"],
    "one more url": ["--initial-cluster=a=http://127.0.0.1:1,a=http://127.0.0.1:2"],
    "one url less": [
        "--initial-cluster=a=http://127.0.0.1:1",
        "--initial-advertise-peer-urls=http://127.0.0.1:1,http://127.0.0.1:2",
    ],
    "a url twice": ["--initial-cluster=a=http://127.0.0.1:1,b=http://127.0.0.1:1"],
    "existing by a service": [
        "--discovery-token=t",
        "--discovery-endpoints=127.0.0.1:1",
        "--initial-cluster-state=existing",
    ],
}


@pytest.mark.parametrize("mistake", STATIC_MISTAKES)
def test_mistakes_in_a_list(mistake: str, tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("this etcd has other words")
    flags = [*LISTENING, *STATIC_MISTAKES[mistake]]
    # After that etcd shows what it compared, one of the lists twice.
    expected = etcd_reason(tmp_path, flags).partition(" but missing ")[0]
    assert own_reason(tmp_path, flags).startswith(expected)


FLAG_MISTAKES = (
    ["--initial-cluster=a=http://127.0.0.1:1", f"--discovery-srv={DOMAIN}"],
    [f"--discovery-srv={DOMAIN}", "--discovery-endpoints=127.0.0.1:1", "--discovery-token=t"],
    ["--initial-cluster=a=http://127.0.0.1:1", "--discovery-endpoints=127.0.0.1:1"],
    ["--discovery-endpoints=127.0.0.1:1"],
    ["--discovery-token=t"],
    ["--discovery-endpoints=", "--discovery-token=t"],
    ["--discovery-endpoints=127.0.0.1:1, ", "--discovery-token=t"],
    ["--discovery-endpoints="],
    ["--discovery-fallback=proxy"],
)


@pytest.mark.parametrize("flags", FLAG_MISTAKES, ids=" ".join)
def test_flags_that_do_not_fit(flags: list[str], tmp_path: Path) -> None:
    if not is_target():
        pytest.skip("this etcd has other flags")
    expected = etcd_reason(tmp_path, flags)
    with pytest.raises(ConfigError) as caught:
        make_config(parse_arguments(flags)[0])
    assert str(caught.value) == expected
