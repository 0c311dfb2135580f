"""A real DNS server for a test's domain, and processes that ask it as their machine's."""

import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import dns.resolver
import pytest
from dnslib import QTYPE, RCODE, RR, SRV, A
from dnslib.server import BaseResolver, DNSHandler, DNSServer

from kvorum.process.discovery.names import SystemNames
from tests.cluster.members import reserved_prefix
from tests.waiting import WAIT_SECONDS_MAX

DOMAIN = "cluster.test"


class Zone(BaseResolver):  # type: ignore[misc]
    """The domain: services with the hosts and ports that serve them, and addresses of hosts."""

    def __init__(
        self,
        services: Mapping[str, Sequence[tuple[str, int]]],
        addresses: Mapping[str, str],
        failing: Sequence[str] = (),
    ) -> None:
        self._records: dict[tuple[str, str], list[RR]] = {}
        self._failing = failing
        for service, targets in services.items():
            name = f"_{service}._tcp.{DOMAIN}."
            for place, (host, port) in enumerate(targets):
                # Priorities decide on the order, so that members are numbered as expected.
                data = SRV(place, 0, port, f"{host}.{DOMAIN}.")
                self._add(name, "SRV", RR(name, QTYPE.SRV, rdata=data, ttl=0))
        for host, address in addresses.items():
            name = f"{host}.{DOMAIN}."
            self._add(name, "A", RR(name, QTYPE.A, rdata=A(address), ttl=0))

    def _add(self, name: str, kind: str, record: RR) -> None:
        self._records.setdefault((name, kind), []).append(record)

    def resolve(self, request: object, _handler: DNSHandler) -> object:
        """Answer a question."""
        reply = request.reply()  # type: ignore[attr-defined]
        name = str(reply.q.qname)
        reply.add_answer(*self._records.get((name, QTYPE[reply.q.qtype]), ()))
        if any(name.startswith(f"_{each}.") for each in self._failing):
            reply.header.rcode = RCODE.SERVFAIL
        elif not any(known == name for known, _ in self._records):
            reply.header.rcode = RCODE.NXDOMAIN
        return reply


class Silent:
    """Logs nothing."""

    def __getattr__(self, _name: str) -> object:
        return lambda *_: None


@contextmanager
def running_domain(zone: Zone, address: str = "127.0.0.1", port: int = 0) -> Iterator[int]:
    """Serve a zone for as long as the block takes; return the port."""
    server = DNSServer(zone, port=port, address=address, logger=Silent()).server
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class Domain(SystemNames):
    """A resolver that asks the same server for addresses, too."""

    def __init__(self, resolver: dns.resolver.Resolver) -> None:
        super().__init__(resolver)
        self._server = resolver

    def address(self, host: str) -> str:
        try:
            return str(self._server.resolve(host, "A")[0])
        except dns.resolver.NXDOMAIN:
            return super().address(host)


def resolver_at(port: int) -> dns.resolver.Resolver:
    """Return a resolver that asks a server of this machine."""
    resolver = dns.resolver.Resolver(configure=False)
    resolver.nameservers, resolver.port = ["127.0.0.1"], port
    resolver.timeout = resolver.lifetime = WAIT_SECONDS_MAX
    return resolver


@cache
def _may_mount() -> bool:
    try:
        tried = subprocess.run(
            ["unshare", "-m", "mount", "--bind", "/dev/null", "/etc/resolv.conf"],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return tried.returncode == 0


@contextmanager
def machine_of(zone: Zone, directory: Path) -> Iterator[list[str]]:
    """Return what begins the command of a process that is to ask a zone's server for names.

    It gets a file of its own in place of `/etc/resolv.conf`. Skips the test where that is refused.
    """
    if not _may_mount():
        pytest.skip("a process of its own view of /etc/resolv.conf is not allowed here")
    # Another process of the tests may serve a zone, too.
    prefix, reserved = reserved_prefix()
    address = f"{prefix}.53"
    settings = directory / "resolv.conf"
    # The longest time that there is: a busy server answers at last.
    settings.write_text(f"nameserver {address}\noptions timeout:30 attempts:5\n")
    script = f'mount --bind {settings} /etc/resolv.conf && exec "$@"'
    try:
        with reserved, running_domain(zone, address, 53):
            yield ["unshare", "-m", "sh", "-c", script, "sh"]
    except PermissionError:
        pytest.skip("port 53 is not allowed here")
