"""Find the initial members of a cluster by the SRV records of a domain.

`_etcd-server-ssl._tcp` names members with https, `_etcd-server._tcp` members with http. Records
contain no member names: a record with one of our advertised addresses is this member, and the
others get numbers as names. All members compute the same ids, which depend on URLs alone.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from kvorum.network.urls import Url, split_host_port
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import (
    ClusterSettingsError,
    InitialCluster,
    parse_initial_cluster,
)


class SrvRecord(NamedTuple):
    """An SRV record; records sort into their order of preference."""

    priority: int
    negative_weight: int
    target: str
    """A host name with its final dot."""
    port: int


class LookupFailedError(Exception):
    """A name that could not be resolved."""


class Names(Protocol):
    """A resolver. Its methods raise LookupFailedError."""

    def services(self, name: str) -> Sequence[SrvRecord]:
        """Return the SRV records of a name, at least one."""

    def address(self, host: str) -> str:
        """Return the first address of a host."""


class Search(NamedTuple):
    """The domain and services to look up, and the member that looks them up."""

    domain: str
    service: str
    """The suffix of the services' names; empty: none."""
    name: str
    """This member's name."""
    advertised: Sequence[Url]
    """This member's advertised peer URLs."""


def find_cluster(search: Search, names: Names, logger: Logger) -> InitialCluster:
    """Return the members that the records name; raise BootstrapError if this one is missing."""
    found: list[str] = []
    problems: list[str] = []
    left_out: list[str] = []
    suffix = f"-{search.service}" if search.service else ""
    for scheme, service in (("https", "etcd-server-ssl"), ("http", "etcd-server")):
        problem = ""
        try:
            own = {_address(names, each.host): each for each in search.advertised}
            found += _members(search, scheme, service + suffix, own, names, left_out)
        except LookupFailedError as error:
            problem = str(error)
            problems.append(problem)
        logger.info(
            f"get cluster for {service} SRV",
            service_scheme=scheme,
            service_name=service + suffix,
            server_name=search.name,
            discovery_srv=search.domain,
            advertise_peer_urls=list(map(str, search.advertised)),
            found_cluster=list(found),
            **({"error": problem} if problem else {}),
        )
    if left_out:
        logger.warning("SRV records that cannot be used are left out", errors=left_out)
    if not found:
        raise ClusterSettingsError("error setting up initial cluster: " + "\n".join(problems))
    for each in found:
        logger.info("got bootstrap from DNS for etcd-server", node=each)
    cluster = parse_initial_cluster(",".join(found))
    if search.name not in cluster:
        advertised = ",".join(map(str, search.advertised))
        problem = f'cannot find local etcd member "{search.name}" in SRV records: none of '
        problem += f"{', '.join(found)} is at --initial-advertise-peer-urls={advertised}"
        if left_out:
            problem += f" ({'; '.join(left_out)})"
        raise ClusterSettingsError(f"error setting up initial cluster: {problem}")
    return cluster


def _members(
    search: Search,
    scheme: str,
    service: str,
    own: dict[str, Url],
    names: Names,
    left_out: list[str],
) -> list[str]:
    """Return `name=url` for each usable record of one service.

    Adds the reason for each unusable record to `left_out`. Raises LookupFailedError if no record
    is usable.
    """
    try:
        records = sorted(names.services(f"_{service}._tcp.{search.domain}"))
    except LookupFailedError as error:
        raise LookupFailedError(f"error querying DNS SRV records for _{service} {error}") from None
    number, members, problem = 0, [], ""
    for record in records:
        host = f"{record.target.removesuffix('.')}:{record.port}"
        try:
            local = own.get(_address(names, f"{record.target}:{record.port}"))
        except LookupFailedError as error:
            problem = str(error)
            left_out.append(problem)
            continue
        name = search.name
        if local is None:
            name = str(number)
            number += 1
        if local is not None and local.scheme != scheme:
            problem = (
                f"bootstrap at {scheme}://{host} from DNS for {service} has scheme mismatch "
                f"with expected peer {local}"
            )
            left_out.append(problem)
        else:
            members.append(f"{name}={scheme}://{host}")
    if not members:
        raise LookupFailedError(f"error querying DNS SRV records for _{service} {problem}")
    return members


def _address(names: Names, host_port: str) -> str:
    """Resolve `host:port`; return the host's address and the port."""
    try:
        host, port = split_host_port(host_port)
    except ValueError as error:
        raise LookupFailedError(str(error)) from None
    return f"{names.address(host)} {port}"
