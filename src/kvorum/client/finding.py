"""Finds the endpoints of a cluster: from its member list, or from SRV records."""

from typing import Final

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client.endpoints import Address, parse_endpoint

SERVICES: Final = (("_etcd-client-ssl", "https"), ("_etcd-client", "http"))


def members_request() -> bytes:
    """Return the request for the member list, as a linearizable read."""
    return pb.MemberListRequest(linearizable=True).SerializeToString()


def member_addresses(answer: bytes) -> list[Address]:
    """Return the client addresses of the members that have started and are not learners."""
    return [
        parse_endpoint(url)
        for member in pb.MemberListResponse.FromString(answer).members
        if not member.isLearner
        for url in member.clientURLs
    ]


def srv_endpoints(domain: str, name: str = "") -> list[str]:
    """Return the endpoints that a domain's SRV records name, the preferred ones first.

    The services are `_etcd-client-ssl._tcp` and `_etcd-client._tcp`; with a name, `-name` follows
    the service. The function blocks while the system's resolver answers.
    """
    try:
        from dns.exception import DNSException
        from dns.resolver import resolve
    except ImportError as error:
        raise ImportError(
            "SRV records are looked up with the package dnspython: pip install dnspython"
        ) from error
    found: list[tuple[int, str]] = []
    problems: list[str] = []
    for service, scheme in SERVICES:
        question = f"{service}{name and '-'}{name}._tcp.{domain}"
        try:
            answer = resolve(question, "SRV")
        except DNSException as error:
            problems.append(f"{question}: {error}")
            continue
        for record in answer:
            host = record.target.to_text(omit_final_dot=True)
            found.append((record.priority, f"{scheme}://{host}:{record.port}"))
    if not found:
        raise ValueError(f"no SRV record names an endpoint; {'; '.join(problems)}")
    return [endpoint for _, endpoint in sorted(found, key=lambda each: each[0])]
