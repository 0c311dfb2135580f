"""Find the client endpoints of a cluster's members by the SRV records of a domain.

`_etcd-client-ssl._tcp` names members with TLS, `_etcd-client._tcp` members without. Unless the
operator disables the check, `find_members` accepts only members with a valid certificate: for their
host or the domain, and from a trusted authority. All functions block; only the start of a program
uses them.
"""

import socket
import ssl
from collections.abc import Sequence
from typing import NamedTuple

from kvorum.client.grpc.trust import server_context
from kvorum.process.discovery.srv import LookupFailedError, Names, SrvRecord
from kvorum.server.telemetry.logs import Logger

HANDSHAKE_SECONDS_MAX = 5.0
"""Time to connect and for the TLS handshake with a member, as in etcd."""


class FoundMember(NamedTuple):
    """A member that an SRV record names."""

    scheme: str
    host: str
    port: int
    priority: int
    weight: int

    @property
    def endpoint(self) -> str:
        """The member's URL."""
        return f"{self.scheme}://{self.host}:{self.port}"


class Trust(NamedTuple):
    """Files for checking members' certificates, and the certificate to present to members."""

    ca_file: str = ""
    cert_file: str = ""
    key_file: str = ""


def find_members(
    domain: str, service: str, names: Names, trust: Trust | None, logger: Logger
) -> list[FoundMember]:
    """Return the members that a domain's records name, the preferred ones first.

    With None as `trust`, returns them unchecked. Raises LookupFailedError if there is no record,
    OSError or ValueError if a file is unusable.
    """
    found = _look_up(domain, service, names)
    logger.info(
        "discovered cluster from SRV",
        srv_server=domain,
        endpoints=[each.endpoint for each in found],
    )
    if trust is None:
        return found
    logger.info("validating discovered endpoints", endpoints=[each.endpoint for each in found])
    good = _checked(found, domain, trust, logger)
    logger.info("using validated discovered endpoints", endpoints=[each.endpoint for each in good])
    return good


def _look_up(domain: str, service: str, names: Names) -> list[FoundMember]:
    found: list[tuple[SrvRecord, str]] = []
    problems: list[str] = []
    suffix = f"-{service}" if service else ""
    for scheme, name in (("https", "etcd-client-ssl"), ("http", "etcd-client")):
        try:
            records = names.services(f"_{name}{suffix}._tcp.{domain}")
        except LookupFailedError as error:
            problems.append(str(error))
            continue
        found += [(record, scheme) for record in records]
    if not found:
        raise LookupFailedError(f"dns lookup errors: {' and '.join(problems)}")
    # The sort by priority is stable: among equals, members with TLS come first.
    return [
        FoundMember(
            scheme,
            record.target.removesuffix("."),
            record.port,
            record.priority,
            -record.negative_weight,
        )
        for record, scheme in sorted(found, key=lambda each: each[0].priority)
    ]


def _checked(
    found: Sequence[FoundMember], domain: str, trust: Trust, logger: Logger
) -> list[FoundMember]:
    context = server_context(trust.ca_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if trust.cert_file:
        context.load_cert_chain(trust.cert_file, trust.key_file or None)
    good = []
    for each in found:
        problem = _problem(each, domain, context)
        if problem:
            logger.warning("left a discovered endpoint out", endpoint=each.endpoint, error=problem)
        else:
            good.append(each)
    return good


def _problem(found: FoundMember, domain: str, context: ssl.SSLContext) -> str:
    """Return why a member is not trusted; empty if it is."""
    if found.scheme != "https":
        return f'"{found.endpoint}" is insecure'
    problem = ""
    for name in (found.host, domain):
        try:
            with (
                socket.create_connection(
                    (found.host, found.port), HANDSHAKE_SECONDS_MAX
                ) as connection,
                context.wrap_socket(connection, server_hostname=name),
            ):
                return ""
        except ssl.SSLCertVerificationError as error:
            problem = problem or error.verify_message
        except OSError as error:
            return str(error)
    return problem
