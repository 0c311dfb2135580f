"""A proxy between real clients and a real member, ours and etcd's."""

import http.client
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api.errors import Code
from kvorum.client import Client
from kvorum.client.errors import (
    DeadlineError,
    FutureRevisionError,
    PermissionDeniedError,
    UserEmptyError,
)
from kvorum.client.sync.leases import Lease
from tests.etcd import is_target, running_etcd
from tests.kvorum import running_kvorum
from tests.ports import held_port
from tests.proxy.running import Running, running_proxy
from tests.waiting import WAIT_SECONDS_MAX, until

LEASE_SECONDS = 9
"""A lease is renewed after a third of its time; the rest is for a machine that stands still."""


@pytest.fixture(scope="module", params=["kvorum", "etcd"])
def member(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a member."""
    running = running_kvorum if request.param == "kvorum" else running_etcd
    with running(Path(tmp_path_factory.mktemp("member")) / "data") as server:
        yield server.address


@pytest.fixture
def proxy(member: str) -> Iterator[Running]:
    with running_proxy(member) as running:
        yield running


@pytest.fixture
def client(proxy: Running) -> Iterator[Client]:
    with Client(proxy.address, timeout=WAIT_SECONDS_MAX) as client:
        client.delete(prefix="")
        yield client


def test_keys(client: Client, member: str, request: pytest.FixtureRequest) -> None:
    if request.node.callspec.params["member"] == "etcd" and not is_target():
        pytest.skip("etcd 3.5.1 streams no ranges")
    for number in range(50):
        client.put(f"k{number:02}", str(number))
    assert client.count(prefix="k") == 50
    assert [kv.key for kv in client.read(prefix="k", limit=2).kvs] == [b"k00", b"k01"]
    assert [kv.value for kv in client.stream(prefix="k")] == [b"%d" % each for each in range(50)]
    client.delete("k00")
    with Client(member, timeout=WAIT_SECONDS_MAX) as direct:
        assert direct.get("k00") is None
        assert direct.count(prefix="k") == 49


def test_errors_keep_their_codes(client: Client, member: str) -> None:
    with Client(member, timeout=WAIT_SECONDS_MAX) as direct:
        for each in (client, direct):
            with pytest.raises(FutureRevisionError) as refused:
                each.get("a", revision=1 << 40)
            assert refused.value.code is Code.OUT_OF_RANGE


def test_serializable_reads_see_own_writes_and_those_of_others(
    client: Client, member: str, proxy: Running
) -> None:
    cache = proxy.proxy.cache
    assert cache is not None
    for number in range(20):
        client.put("a", str(number))
        for _ in range(5):
            kv = client.get("a", serializable=True)
            assert kv is not None
            assert kv.value == str(number).encode()
    until("the cache answers", lambda: client.get("a", serializable=True) and cache.hits)
    with Client(member, timeout=WAIT_SECONDS_MAX) as direct:
        direct.put("a", "by another")

    def is_seen() -> bool:
        kv = client.get("a", serializable=True)
        assert kv is not None
        return kv.value == b"by another"

    # It comes by itself, as fast as the member tells it.
    until("the write of another is seen", is_seen)


def _await_renewal(lease: Lease) -> None:
    """Wait until the member has renewed a lease that is kept alive, which is asked at once."""
    kept = lease._kept
    assert kept is not None
    until("the lease is renewed", lambda: kept.answer)


def _outlives_itself(lease: Lease) -> None:
    """Wait until a lease is known to live for twice its time."""
    end = lease.lives_until + lease.ttl

    def is_renewed() -> bool:
        assert lease.lost is None
        return lease.lives_until >= end

    until("the lease lives for twice its time", is_renewed)


@pytest.mark.long
def test_leases_live_while_their_clients_do(client: Client, member: str) -> None:
    with Client(member, timeout=WAIT_SECONDS_MAX) as direct:
        with client.lease(LEASE_SECONDS) as lease:
            client.put("leased", "1", lease=lease.id)
            _outlives_itself(lease)
            assert direct.get("leased") is not None
        assert direct.get("leased") is None


@pytest.mark.long
def test_a_client_that_goes_does_not_keep_its_lease(proxy: Running, member: str) -> None:
    with Client(member, timeout=WAIT_SECONDS_MAX) as direct, direct.watch("left") as watch:
        with Client(proxy.address, timeout=WAIT_SECONDS_MAX) as client:
            lease = client.lease(LEASE_SECONDS)
            client.put("left", "1", lease=lease.id)
            lease.keep_alive()
            _await_renewal(lease)
        assert [next(watch).kind.value for _ in range(2)] == ["put", "delete"]


def test_watches_and_locks(client: Client) -> None:
    with client.watch(prefix="w") as watch, client.lock("name", ttl=60):
        client.put("w1", "1")
        event = next(watch)
        assert (event.kv.key, event.kv.value) == (b"w1", b"1")


def test_without_members_calls_end(member: str) -> None:
    host = member.partition(":")[0]
    with (
        held_port() as port,
        running_proxy(f"{host}:{port}", advertise_client_url="127.0.0.1:1") as proxy,
        Client(proxy.address, timeout=WAIT_SECONDS_MAX) as client,
    ):
        # The proxy answers this by itself: the client is connected before its time runs.
        assert len(client.members.list()) == 1
        with pytest.raises(DeadlineError):
            client.get("a", timeout=1.0)


def test_plain_http(proxy: Running) -> None:
    connection = http.client.HTTPConnection(proxy.address, timeout=WAIT_SECONDS_MAX)

    def is_healthy() -> bool:
        connection.request("GET", "/health")
        response = connection.getresponse()
        return (response.status, response.read()) == (200, b'{"health":"true","reason":""}')

    try:
        # A member may once take longer than the second that it is given to answer.
        until("the proxy is healthy", is_healthy)
    finally:
        connection.close()


def login(address: str, name: str) -> Client:
    return Client(address, user=name, password="p", timeout=WAIT_SECONDS_MAX)


@pytest.mark.long
def test_users_are_who_they_are_at_the_member(tmp_path: Path) -> None:
    with (
        running_kvorum(tmp_path / "data", "--bcrypt-cost=4") as server,
        running_proxy(server.address) as proxy,
        Client(proxy.address, timeout=WAIT_SECONDS_MAX) as anonymous,
    ):
        anonymous.put("a", "1")
        anonymous.put("b", "2")
        auth = anonymous.auth
        for name in ("root", "u"):
            auth.add_user(name, "p")
            auth.add_role(name)
            auth.grant_role(name, name)
        auth.grant("u", "readwrite", "a")
        cache = proxy.proxy.cache
        assert cache is not None
        until("the cache answers", lambda: anonymous.get("b", serializable=True) and cache.hits)
        auth.enable()
        with pytest.raises(UserEmptyError):
            anonymous.get("b", serializable=True)
        with login(proxy.address, "root") as root, login(proxy.address, "u") as user:
            assert root.get("b", serializable=True) is not None
            for _ in range(3):
                with pytest.raises(PermissionDeniedError):
                    user.get("b", serializable=True)
                assert root.get("b", serializable=True) is not None
            with user.lease(60) as lease:
                _await_renewal(lease)
