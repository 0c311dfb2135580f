"""Bootstrap: a member founds a cluster, joins one, or resumes from its log.

If the data directory has a log, the member resumes; the flags about the initial cluster matter for
the first start only. At the first start, a discovery service or SRV records may name the founding
members. The member then asks the others: a joining member for its own id and the cluster's, and a
founding member whether they know it from an earlier run.
"""

import asyncio
import socket
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from kvorum.member.config import MemberConfig
from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.tls.credentials import TlsCredentials
from kvorum.network.urls import split_host_port
from kvorum.process.discovery.srv import Names, Search, find_cluster
from kvorum.process.settings.config import Config
from kvorum.process.settings.member import member_config
from kvorum.server.peer.cluster.exchanges import Answer
from kvorum.server.peer.cluster.joining import GetRequest, RequestRunner, find_start
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import ClusterSettingsError, InitialCluster, cluster_text
from kvorum.state.membership.documents import MemberDocument as Peer
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import exists as log_exists

Value = TypeVar("Value")

RESOLVE_SECONDS_MAX = 30.0
"""The time limit for names that do not resolve yet, such as those of starting containers."""
RETRY_SECONDS = 1.0

clock = time.monotonic


class Resolving:
    """Replaces host names in URLs by addresses, so that the URLs can be compared.

    A name that does not resolve is looked up again every second, for `RESOLVE_SECONDS_MAX` for all
    names together; then its URL stays unchanged.
    """

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._end: float | None = None

    def __call__(self, url: str) -> str:
        """Return the URL with its host as an address."""
        scheme, _, host_port = url.partition("://")
        if scheme.startswith("unix"):
            return url
        host, port = split_host_port(host_port)
        if host == "localhost":
            return url
        if self._end is None:
            self._end = clock() + RESOLVE_SECONDS_MAX
        while True:
            try:
                found = socket.getaddrinfo(host.encode(), None, type=socket.SOCK_STREAM)
                return f"{scheme}://{found[0][4][0]}:{port}"
            except OSError as error:
                text = error.strerror
            self._logger.warning("failed to resolve URL Host", url=url, host=host, error=text)
            if clock() + RETRY_SECONDS > self._end:
                return url
            # Blocking is fine: nothing else runs yet.
            time.sleep(RETRY_SECONDS)


async def bootstrap(
    config: Config,
    directory: str,
    files: RealFiles,
    credentials: TlsCredentials,
    logger: Logger,
    names: Names | None = None,
) -> tuple[MemberConfig, Sequence[Peer]]:
    """Return the member's options, and the members it knows before its log names them.

    `names` replaces the machine's resolver.
    Raises BootstrapError if the flags do not fit the cluster, ConfigError if they conflict.
    """
    wal_directory = config.wal_directory or f"{directory}/wal"
    settings = member_config(config, directory)
    known: Sequence[Peer] = ()
    if log_exists(files, wal_directory):
        logger.info("the data directory has a log; flags about the initial cluster are not used")
        if config.uses_discovery:
            logger.warning(
                "discovery token is ignored since cluster already initialized; "
                "valid logs are found",
                wal_dir=wal_directory,
            )
        if any(each.scheme == "https" for each in config.advertise_peer_urls):
            expect_domain(config, credentials)
    else:
        cluster = settings.initial_cluster
        if config.uses_discovery:
            cluster = await discover(config, logger)
            settings = replace(settings, initial_cluster_token=config.discovery_token)
        elif config.discovery_domain:
            cluster = await look_up(config, names, logger)
            if any(url.startswith("https:") for urls in cluster.values() for url in urls):
                expect_domain(config, credentials)
        settings = replace(settings, initial_cluster=cluster)
        steps = find_start(
            settings.initial_cluster,
            config.name,
            [str(url) for url in config.advertise_peer_urls],
            settings.initial_cluster_token,
            settings.server_version,
            Resolving(logger),
            is_existing=config.initial_cluster_state == "existing",
        )
        joined, known = await ask_others(steps, config, credentials)
        if joined is not None:
            settings = replace(settings, joins=(joined.member_id, joined.cluster_id))
            logger.info(
                "joining an existing cluster",
                local_member_id=f"{joined.member_id:x}",
                cluster_id=f"{joined.cluster_id:x}",
                members=[f"{each.id:x}={','.join(each.peer_urls)}" for each in known],
            )
    return settings, known


async def discover(config: Config, logger: Logger) -> InitialCluster:
    """Return the members that a discovery service names."""
    # Imported late, like all of discovery: the import is slow, and few members need it.
    from kvorum.process.discovery.client import Client
    from kvorum.process.discovery.registry import Registry
    from kvorum.process.discovery.service import run, service_settings

    if config.initial_cluster_state == "existing":
        raise ClusterSettingsError(
            "discovery URL should not be set when joining existing initial cluster: name the "
            "cluster's members in --initial-cluster instead of --discovery-endpoints"
        )
    try:
        client = Client(service_settings(config))
    except ValueError as error:
        raise ClusterSettingsError(f"--discovery-endpoints: {error}") from None
    logger.info("Bootstrapping cluster using v3 discovery.")
    urls = [str(url) for url in config.advertise_peer_urls]
    registry = Registry(config.discovery_token, config.name, urls, logger.named("discovery"))
    cluster = await run(registry.join(), client)
    logger.info("discovery joined cluster successfully", cluster=cluster_text(cluster))
    return cluster


async def look_up(config: Config, names: Names | None, logger: Logger) -> InitialCluster:
    """Return the members in a domain's SRV records, without blocking the loop."""
    from kvorum.process.discovery.names import SystemNames

    search = Search(
        config.discovery_domain, config.discovery_service, config.name, config.advertise_peer_urls
    )
    return await asyncio.to_thread(find_cluster, search, names or SystemNames(), logger)


def expect_domain(config: Config, credentials: TlsCredentials) -> None:
    """Require that other members' certificates match the SRV records' domain, as etcd does."""
    if config.discovery_domain and not config.peer_trusted_ca_file:
        credentials.settings = replace(credentials.settings, server_name=config.discovery_domain)


async def ask_others(
    steps: Generator[GetRequest, Answer | None, Value], config: Config, credentials: TlsCredentials
) -> Value:
    """Send the requests that `steps` yields, one after the other; return its result."""
    arrived = asyncio.Event()
    dialer = HttpDialer(
        asyncio.get_running_loop(),
        credentials,
        connect_seconds_max=1.0 + config.heartbeat_seconds * config.election_ticks,
        local_address=config.peer_local_address,
        wake=arrived.set,
    )
    try:
        inquiry = RequestRunner(steps, dialer, clock())
        while not inquiry.is_done:
            left = inquiry.pass_time(clock()) - clock()
            if inquiry.is_done:
                break
            try:
                async with asyncio.timeout(max(0.0, left)):
                    await arrived.wait()
            except TimeoutError:
                continue
            arrived.clear()
            inquiry.handle_answers(dialer.poll(), clock())
        return inquiry.value
    finally:
        dialer.stop()
