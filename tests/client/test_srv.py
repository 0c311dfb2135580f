"""A client finds its endpoints by SRV records, of a real DNS server."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import dns.resolver
import pytest

from kvorum.client import AsyncClient, srv_endpoints
from tests.process.discovery.domain import DOMAIN, Zone, resolver_at, running_domain

Run = Callable[..., None]


@contextmanager
def asked(zone: Zone, patch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let the machine's resolver be one that knows a zone."""
    with running_domain(zone) as port:
        patch.setattr(dns.resolver, "default_resolver", resolver_at(port))
        yield


def test_records_become_endpoints_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    services = {
        "etcd-client-ssl": [("safe", 1)],
        "etcd-client": [("first", 2), ("second", 3)],
        "etcd-client-blue": [("blue", 4)],
    }
    with asked(Zone(services, {}), monkeypatch):
        assert srv_endpoints(DOMAIN) == [
            f"https://safe.{DOMAIN}:1",
            f"http://first.{DOMAIN}:2",
            f"http://second.{DOMAIN}:3",
        ]
        assert srv_endpoints(DOMAIN, "blue") == [f"http://blue.{DOMAIN}:4"]
        with pytest.raises(ValueError, match=rf"_etcd-client-red\._tcp\.{DOMAIN}"):
            srv_endpoints(DOMAIN, "red")


def test_a_client_is_made_from_a_domain(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(client: AsyncClient) -> None:
        assert client.endpoints == [f"http://one.{DOMAIN}:2379"]

    with asked(Zone({"etcd-client": [("one", 2379)]}, {}), monkeypatch):
        run(main, srv=DOMAIN)
