"""The system's resolver: SRV records by `/etc/resolv.conf`, addresses by `getaddrinfo`.

It blocks; asynchronous callers must use it in a thread.
"""

import ipaddress
import socket
from collections.abc import Sequence

import dns.exception
import dns.resolver

from kvorum.process.discovery.srv import LookupFailedError, SrvRecord

LOOKUP_SECONDS_MAX = 10.0
"""Time to resolve one name, over all name servers and search suffixes."""


class SystemNames:
    """Resolves names, by the system's settings unless a resolver is given."""

    def __init__(self, resolver: dns.resolver.Resolver | None = None) -> None:
        self._resolver = resolver

    def services(self, name: str) -> Sequence[SrvRecord]:
        """Return the SRV records of a name, at least one; raise LookupFailedError."""
        server = ""
        try:
            resolver = self._resolver or dns.resolver.Resolver()
            server = f" on {resolver.nameservers[0]}:{resolver.port}"
            answer = resolver.resolve(name, "SRV", search=True, lifetime=LOOKUP_SECONDS_MAX)
        except (dns.resolver.NXDOMAIN, dns.resolver.NoAnswer):
            problem = "no such host"
        except dns.exception.Timeout:
            problem = "i/o timeout"
        except dns.resolver.NoNameservers:
            problem = "server misbehaving"
        except dns.exception.DNSException as error:
            problem = str(error)
        else:
            return [
                SrvRecord(each.priority, -each.weight, each.target.to_text(), each.port)
                for each in answer
            ]
        raise LookupFailedError(f"lookup {name}{server}: {problem}")

    def address(self, host: str) -> str:
        """Return a host's first address, IPv4 if it has one; raise LookupFailedError."""
        try:
            # Pass bytes: Python's IDNA codec refuses some names that are common in DNS.
            found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
        except OSError:
            raise LookupFailedError(f"lookup {host}: no such host") from None
        first = min(found, key=lambda each: each[0] is not socket.AF_INET)
        return str(ipaddress.ip_address(first[4][0]))
