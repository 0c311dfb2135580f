"""`etcd3gw`, the client that OpenStack's libraries use: its calls, and its own functional tests."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.consumers import environment

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def etcd3gw() -> Any:
    return pytest.importorskip("etcd3gw")


@pytest.fixture
def client(etcd3gw: Any, server: str) -> Iterator[Any]:
    host, _, port = server.rpartition(":")
    client = etcd3gw.client(host=host, port=int(port), timeout=30)
    with client.session:
        yield client


def test_keys(client: Any) -> None:
    assert client.status()["version"]
    assert client.members()[0]["clientURLs"]
    assert client.put("keys/a", "1") and client.put("keys/b", b"\xff\x00")
    assert client.get("keys/a") == [b"1"]
    assert client.get("keys/missing") == []
    found = client.get_prefix("keys/", sort_order="descend", sort_target="key")
    assert [(value, kv["key"]) for value, kv in found] == [
        (b"\xff\x00", b"keys/b"),
        (b"1", b"keys/a"),
    ]
    assert [kv["version"] for _, kv in found] == ["1", "1"]
    assert client.create("keys/c", "1") and not client.create("keys/c", "2")
    assert client.replace("keys/c", "1", "3") and not client.replace("keys/c", "1", "4")
    assert client.get("keys/c") == [b"3"]
    assert client.delete("keys/c") and not client.delete("keys/c")
    assert client.delete_prefix("keys/")
    assert client.get_prefix("keys/") == []


def test_leases(client: Any) -> None:
    lease = client.lease(ttl=100)
    assert lease.keys() == []
    client.put("leases/a", "1", lease=lease)
    assert lease.keys() == [b"leases/a"]
    assert lease.refresh() == 100
    assert 0 < lease.ttl() <= 100
    assert lease.revoke()
    assert client.get("leases/a") == []
    # What it means to a client that the time to live is absent.
    assert lease.refresh() == -1 and lease.ttl() == -1


def test_locks(client: Any) -> None:
    first, second = client.lock("lock", ttl=100), client.lock("lock", ttl=100)
    assert first.acquire() and not second.acquire()
    assert first.is_acquired() and not second.is_acquired()
    assert first.refresh() == 100
    assert not second.release() and first.release()
    assert second.acquire() and second.release()


def test_watches(client: Any) -> None:
    """It parses every chunk of the answer as one JSON text, however large it is."""
    large = "x" * 300_000
    events, cancel = client.watch_prefix("watches/", prev_kv=True)
    client.put("watches/a", "1")
    client.put("watches/b", large)
    client.delete("watches/a")
    client.delete_prefix("watches/")
    seen = []
    for event in events:
        seen.append((event.get("type", "PUT"), event["kv"]["key"], event["kv"].get("value")))
        if len(seen) == 4:
            cancel()
    assert seen == [
        ("PUT", b"watches/a", b"1"),
        ("PUT", b"watches/b", large.encode()),
        ("DELETE", b"watches/a", None),
        ("DELETE", b"watches/b", None),
    ]
    start = int(client.status()["header"]["revision"]) - 3
    assert client.watch_once("watches/a", 30, start_revision=start)["kv"]["value"] == b"1"


def test_errors(etcd3gw: Any, client: Any) -> None:
    with pytest.raises(etcd3gw.exceptions.Etcd3Exception) as refused:
        client.put("errors/a", "1", lease=etcd3gw.lease.Lease(4242, client=client))
    assert "requested lease not found" in str(refused.value.detail_text)


@pytest.mark.campaign
def test_its_own_functional_tests(server: str) -> None:
    environment.require()
    _, _, port = server.rpartition(":")
    environment.run_unittest(
        "etcd3gw.tests.test_etcd3gw",
        TOOZ_TEST_HTTP_URL=f"http://{server}",
        TOOZ_TEST_ETCD_PORT=port,
    )
