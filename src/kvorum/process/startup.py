"""Start a member from a configuration, serve, and shut it down.

The order of a start: limits, listen addresses, TLS files, tokens, the data directory, the initial
cluster, recovery, the peer port, the loop. The client ports open once the member has published its
name and URLs to the cluster. An earlier failure is raised with its reason, after everything opened
so far is closed.

`HostProcess` handles everything that concerns the whole process: the process may be the member's
own (`kvorum.process.own_process`), or that of a program that embeds the member.
"""

import asyncio
import os
import platform
import random
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Protocol

import kvorum
from kvorum.api.durations import seconds_text
from kvorum.client.clocks import choose_boot_clock
from kvorum.compiled.extension import core_name
from kvorum.member.config import MEBIBYTE, MemberConfig, Seams
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.edge import (
    Edge,
    Limits,
    ListenerKind,
    Serves,
    TlsSettings,
    edge_name,
    native_rows,
    native_skim,
    open_edge,
)
from kvorum.network.tls.credentials import TlsCredentials
from kvorum.network.tls.security import Security, dial_settings, is_secure, tls_settings
from kvorum.network.urls import Url, split_host_port
from kvorum.process.addresses import check_address
from kvorum.process.backups import Backups, check_backups
from kvorum.process.bootstrap import bootstrap
from kvorum.process.defragment import defragment
from kvorum.process.directory import prepare_directory
from kvorum.process.endpoints import PublicEndpoints
from kvorum.process.executor import ProcessExecutor
from kvorum.process.locking import FileLock
from kvorum.process.loop import ServerLoop
from kvorum.process.peer_address_check import PeerAddressCheck
from kvorum.process.settings.config import Config, ConfigError
from kvorum.process.settings.effective import effective
from kvorum.process.slow_parts import warn_of_slow_parts
from kvorum.process.start_errors import AddressRefusedError, TlsRefusedError
from kvorum.process.tokens import open_tokens
from kvorum.server.http.calls import READ_HEADERS as GATEWAY_HEADERS
from kvorum.server.http.health import HealthEndpoints
from kvorum.server.http.http import READ_HEADERS
from kvorum.server.jobs import JobOrder
from kvorum.server.peer.cluster.peering import Peering
from kvorum.server.peer.transport.headers import READ_HEADERS as PEER_HEADERS
from kvorum.server.rpc.interface import Clients
from kvorum.server.rpc.table import METADATA_KEYS, METHODS, TRACE_KEYS
from kvorum.server.server import Server
from kvorum.server.settings import edge_limits, peering_settings, server_settings
from kvorum.server.telemetry.access import AccessLog
from kvorum.server.telemetry.counters import BackupCounters, JobCounters
from kvorum.server.telemetry.counting import CallSeconds
from kvorum.server.telemetry.incidents import IncidentLog
from kvorum.server.telemetry.line_writer import LineWriter, open_access_log
from kvorum.server.telemetry.logs import Logger
from kvorum.server.telemetry.metrics import Scrapes, Sources, metrics_text
from kvorum.server.telemetry.peer_metrics import PeerMetrics
from kvorum.server.telemetry.request_stats import RequestStats
from kvorum.server.telemetry.spans import close_provider, open_provider
from kvorum.state.auth.tokens import Tokens
from kvorum.state.membership.bootstrap import check_own_directory, parse_initial_cluster
from kvorum.state.membership.documents import MemberDocument as Peer
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import exists as log_exists

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

DIAL_SECONDS = 1.0
"""Time to connect to another member, in addition to one election timeout."""
PROGRESS_SECONDS = 5.0
TRAFFIC = {Serves.BOTH: "grpc+http", Serves.HTTP: "http", Serves.GRPC: "grpc"}
"""The kinds of traffic, as logs name them."""


class UnsyncedFiles(RealFiles):
    """Files that are never synced, for `--unsafe-no-fsync`."""

    def start_sync(self, descriptor: int) -> None:
        """Do nothing: the system writes the content when it likes."""

    def fdatasync(self, descriptor: int) -> None:
        """Do nothing: the system makes the content durable when it likes."""

    def sync_directory(self, path: str) -> None:
        """Do nothing: the system makes the names durable when it likes."""


def trace_calls(server: Server, provider: "TracerProvider", config: Config) -> None:
    """Enable tracing of a server's calls."""
    # Imports OpenTelemetry, which is an optional dependency.
    from kvorum.server.telemetry.tracing import CallTracing

    # All spans have one address: the first advertised client URL.
    address: dict[str, str | int] = {}
    for url in config.advertise_client_urls[:1]:
        address["server.address"] = url.address
        if not url.scheme.startswith("unix"):
            host, port = split_host_port(url.address)
            address = {"server.address": host, "server.port": int(port or 0)}
    server.milestones.merged_seconds = 0.0
    server.calls.tracing = CallTracing(
        provider,
        server.milestones,
        server.member.clock,
        server.member.boundary,
        config.tracing_rate,
        address,
        random.SystemRandom(),
    )


class EphemeralFiles(UnsyncedFiles):
    """Files in memory, which take only as much of it as was written."""

    def allocate(self, descriptor: int, length: int) -> None:
        """Extend a file to a length without reserving memory."""
        if self.size(descriptor) < length:
            self.truncate(descriptor, length)


class StartProgress:
    """Logs the progress of a long start, every `PROGRESS_SECONDS`."""

    def __init__(self, logger: Logger) -> None:
        self._logger = logger
        self._logged_at = time.monotonic()

    def __call__(self, what: str, count: int) -> None:
        """Report how many items of a kind the recovery has processed."""
        now = time.monotonic()
        if now - self._logged_at >= PROGRESS_SECONDS:
            self._logged_at = now
            self._logger.info("recovering", done=what, count=count)


def _files(config: Config) -> RealFiles:
    if config.ephemeral:
        return EphemeralFiles()
    return UnsyncedFiles() if config.unsafe_no_fsync else RealFiles()


@dataclass(frozen=True, slots=True)
class MemberStorage:
    """The files and databases of a member, and whether writes to them are synced."""

    files: RealFiles
    environments: LmdbEnvironments
    syncs: bool


class HostProcess(Protocol):
    """The process that a member runs in; another program may own it."""

    def descriptors_max(self) -> int:
        """Return how many file descriptors the process may open."""

    def front(self, edge: Edge, limits: Limits) -> Edge:
        """Return the edge for the member, which may wrap the network's edge."""

    def enter(self, loop: asyncio.AbstractEventLoop, running: "Running") -> None:
        """Prepare the process, before the member's first turn; `running.end` shuts it down."""

    def tick(self, is_idle: bool) -> None:
        """Do housekeeping on the loop, once a tick."""

    def ready(self, server: Server) -> None:
        """Note that the client ports are open."""


class Running:
    """A running member: acquires its resources in order and releases them in reverse."""

    def __init__(self, config: Config, logger: Logger, host_process: HostProcess) -> None:
        self._config = config
        self._logger = logger
        self._host_process = host_process
        self._drain: Callable[[], None] | None = None
        self._files: RealFiles | None = None
        self.ring: Callable[[bool], None]
        """Takes a turn on the member's loop; set once the member runs. See `ServerLoop.ring`."""
        self.is_serving = False
        """Whether the client ports are open."""
        self._member_token = token_hex(32)
        self._backups: Backups | None = None
        self._backup_counters = BackupCounters() if config.backup_to else None

    def end(self, reason: str, **fields: object) -> None:
        """Shut down gracefully; call this on the loop's thread. `run` returns afterwards."""
        assert self._drain is not None, "the member has not begun"
        self._logger.info(f"{reason}; shutting down", **fields)
        self._logger.info(
            "closing etcd server",
            name=self._config.name,
            data_dir=self._config.data_directory,
        )
        if self._backups is not None:
            self._backups.end()
        self._drain()

    def abandon(self) -> None:
        """Close the files in a forked child, so that it does not keep the parent's file locks."""
        if self._files is not None:
            self._files.close_all()

    async def run(self, arguments: Sequence[str]) -> None:
        """Serve until `end`; raise the error that refused the start or stopped the member."""
        config, logger = self._config, self._logger
        descriptors = self._host_process.descriptors_max()
        check_backups(config)
        self._check_addresses()
        self._check_tls_files()
        # Open the trace provider first: if its library is missing, nothing has been touched yet.
        with ExitStack() as held:
            spans = open_provider(config, logger) if config.tracing else None
            if spans is not None:
                held.callback(close_provider, spans, logger)
            lines = open_access_log(config)
            if lines is not None:
                held.callback(lines.stop)
            tokens = open_tokens(config, logger)
            files = self._files = _files(config)
            held.callback(files.close_all)
            lock_file = FileLock if config.memory_lock else None
            syncs = not config.unsafe_no_fsync
            environments = LmdbEnvironments(native_rows(), lock_file, syncs=syncs)
            held.callback(environments.close_all)
            storage = MemberStorage(files, environments, syncs=syncs)
            await self._run(arguments, descriptors, storage, tokens, lines, spans)
        logger.info("closed etcd server", name=config.name, data_dir=config.data_directory)

    async def _run(
        self,
        arguments: Sequence[str],
        descriptors: int,
        storage: MemberStorage,
        tokens: Tokens,
        lines: LineWriter | None,
        spans: "TracerProvider | None",
    ) -> None:
        config, logger = self._config, self._logger
        files, environments = storage.files, storage.environments
        directory = prepare_directory(config, files, logger)
        credentials = self._credentials()
        edge = self._open_edge()
        try:
            self._check_tls(edge, credentials)
            settings, known = await bootstrap(config, directory, files, credentials, logger)
            self._log_start(settings, descriptors)
            if config.defragment_mebibytes:
                threshold_bytes = config.defragment_mebibytes * MEBIBYTE
                defragment(settings, threshold_bytes, files, environments, logger)
            member = self._recover(settings, files, environments, tokens)
            self._check(member)
        except BaseException:
            edge.stop()
            raise
        loop = asyncio.get_running_loop()
        runner = ServerLoop(loop, edge)
        executor = ProcessExecutor(
            loop,
            edge,
            files,
            environments,
            logger,
            runner.wake,
            sync=storage.syncs,
            in_memory=config.ephemeral,
        )
        runner.jobs = JobOrder(executor)
        dialer = runner.dialer = HttpDialer(
            loop,
            credentials,
            connect_seconds_max=DIAL_SECONDS + settings.election_seconds,
            local_address=config.peer_local_address,
            wake=runner.wake,
            boundary=member.boundary,
        )
        try:
            self._make_server(runner, edge, member, known, executor.counters, arguments, lines)
            if spans is not None:
                trace_calls(runner.server, spans, config)
            self._listen_to_members(runner, edge)
            loop.set_exception_handler(runner.on_loop_error)
            IncidentLog(edge, logger, runner.server.peer_listeners).start(loop)
            self._drain, self.ring = runner.drain, runner.ring
            self._host_process.enter(loop, self)
            runner.start()
            await self._serve(runner, edge, member)
        finally:
            if runner.peer_address_check is not None:
                runner.peer_address_check.stop()
            dialer.stop()
            edge.stop()
            executor.stop()
            if self._backups is not None:
                self._backups.stop()

    def _recover(
        self,
        settings: MemberConfig,
        files: RealFiles,
        environments: LmdbEnvironments,
        tokens: Tokens,
    ) -> Member:
        began = time.monotonic()
        seams = Seams(
            files=files,
            environments=environments,
            logger=self._logger,
            clock=time.monotonic,
            boot_clock=choose_boot_clock(),
            random_below=random.SystemRandom().randrange,
            unix_seconds=time.time(),
            wall_clock=time.time,
            tokens=tokens,
            member_token=self._member_token,
            stopwatch=time.monotonic,
            skim=native_skim(),
        )
        member = open_member(settings, seams, StartProgress(self._logger))
        self._logger.info(
            "recovered",
            local_member_id=f"{member.id:x}",
            cluster_id=f"{member.state.cluster.cluster_id:x}",
            current_rev=member.state.store.revision,
            applied_index=member.state.applied,
            took=seconds_text(time.monotonic() - began),
        )
        return member

    def _check(self, member: Member) -> None:
        """Refuse to start if the flags do not fit the data."""
        config = self._config
        if not config.force_new_cluster:
            # A forced cluster has no other members, so a copy may start under another name.
            check_own_directory(
                member.state.cluster.members,
                member.id,
                config.name,
                [str(url) for url in config.advertise_peer_urls],
                parse_initial_cluster(config.initial_cluster),
            )
        learners, limit = len(member.state.cluster.learners), config.learners_max
        if learners > limit:
            raise ConfigError(
                f"--max-learners is {limit}, but the cluster has {learners} learners; promote or "
                "remove some, or give a higher number"
            )

    def _open_edge(self) -> Edge:
        headers = (*READ_HEADERS, *GATEWAY_HEADERS, *PEER_HEADERS)
        keys = (*METADATA_KEYS, *TRACE_KEYS) if self._config.tracing else METADATA_KEYS
        limits = edge_limits(self._config)
        return self._host_process.front(open_edge(METHODS, keys, limits, headers), limits)

    def _make_server(
        self,
        runner: ServerLoop,
        edge: Edge,
        member: Member,
        known: Sequence[Peer],
        job_counters: JobCounters,
        arguments: Sequence[str],
        lines: LineWriter | None,
    ) -> None:
        """Make the server, with its access log, metrics, health and debug endpoints."""
        config, logger = self._config, self._logger
        settings = peering_settings(config, known)
        peering = Peering(member, edge, runner.dialer, settings, logger.named("peer"))
        peer_metrics = PeerMetrics(member, peering)

        def on_tick(is_idle: bool) -> None:
            peer_metrics.observe()
            if lines is not None:
                lines.warn_of_drops(logger, time.monotonic())
            self._host_process.tick(is_idle)

        server = runner.server = Server(
            member,
            edge,
            peering,
            logger,
            server_settings(config),
            on_tick,
        )
        if lines is not None:
            access = AccessLog(
                Clients(edge),
                lines,
                (member.state.cluster.cluster_id, member.id),
                time.monotonic,
                time.time,
                one_in=config.access_log_one_in,
                prefix=config.access_log_prefix.encode(errors="surrogateescape"),
            )
            server.log_access(access)
        if config.log_level == "debug":
            server.calls.stats = RequestStats(Clients(edge), logger, time.monotonic)
        counts = server.calls.counts
        if config.extensive_metrics:
            counts.seconds = CallSeconds(len(METHODS), time.monotonic)
        health = HealthEndpoints(server.front, member)
        sources = Sources(
            member,
            edge,
            counts,
            server.calls.methods,
            lambda: server.waiting,
            lambda: server.jobs_under_way,
            job_counters,
            health,
            config,
            server.counters,
            peer_metrics,
            Scrapes(),
            self._backup_counters,
        )
        PublicEndpoints(
            asyncio.get_running_loop(),
            server.front,
            member,
            lambda: metrics_text(sources),
            sources.scrapes,
            arguments,
            profiling=config.profiling,
        )

    def _listen_to_members(self, runner: ServerLoop, edge: Edge) -> None:
        """Open the peer port."""
        config, logger, server = self._config, self._logger, runner.server
        security, listeners = config.peer_security, server.peer_listeners
        if security.asks_for_certificates and not security.skip_address_check:
            runner.peer_address_check = PeerAddressCheck(
                asyncio.get_running_loop(),
                edge,
                listeners,
                logger.named("peer"),
                runner.wake,
                server.member.boundary,
            )
        for listened, tls in self._tls(security, config.listen_peer_urls, "peer"):
            number, address = self._listen(
                edge, listened, tls, http1_only=True, kind=ListenerKind.PEER
            )
            listeners.add(number)
            logger.info("serving peer traffic", address=address, secure=tls is not None)

    async def _serve(self, runner: ServerLoop, edge: Edge, member: Member) -> None:
        config, logger = self._config, self._logger
        await asyncio.wait({runner.ended, runner.published}, return_when=asyncio.FIRST_COMPLETED)
        if runner.ended.done():
            return await runner.ended
        logger.info(
            "now serving peer/client/metrics",
            local_member_id=f"{member.id:x}",
            advertise_client_urls=list(map(str, config.advertise_client_urls)),
            listen_client_urls=list(map(str, config.listen_client_urls)),
            listen_client_http_urls=list(map(str, config.listen_client_http_urls)),
            listen_peer_urls=list(map(str, config.listen_peer_urls)),
            listen_metrics_urls=list(map(str, config.listen_metrics_urls)),
        )
        security = config.client_security
        for listened, tls in self._tls(security, config.listen_metrics_urls, "client"):
            # HTTP/1 only, and so without gRPC: a reader of metrics must not be able to write keys.
            number, address = self._listen(
                edge, listened, tls, http1_only=True, kind=ListenerKind.METRICS
            )
            runner.server.front.add_metrics_listener(number)
            logger.info("serving metrics", address=address)
        self._listen_to_clients(edge)
        self._begin_backups(edge)
        self.is_serving = True
        self._host_process.ready(runner.server)
        return await runner.ended

    def _begin_backups(self, edge: Edge) -> None:
        """Start backups, if `--backup-to` asks for them."""
        if self._backup_counters is not None:
            loop, logger = asyncio.get_running_loop(), self._logger.named("backup")
            self._backups = Backups(
                loop, self._config, self._member_token, logger, self._backup_counters
            )
            self._listen(edge, self._backups.address, None, serves=Serves.GRPC)
            self._backups.start()

    def _listen_to_clients(self, edge: Edge) -> None:
        """Open the client ports; if there are URLs for HTTP alone, the others serve gRPC alone."""
        config, logger = self._config, self._logger
        urls = {Serves.BOTH: config.listen_client_urls}
        if config.listen_client_http_urls:
            urls = {
                Serves.HTTP: config.listen_client_http_urls,
                Serves.GRPC: config.listen_client_urls,
            }
        addresses: list[str] = []
        for serves, some in urls.items():
            traffic = TRAFFIC[serves]
            for listened, tls in self._tls(config.client_security, some, "client"):
                _, address = self._listen(edge, listened, tls, serves=serves)
                addresses.append(address)
                if tls is not None:
                    logger.info("serving client traffic securely", traffic=traffic, address=address)
                if tls is None or tls.plain_too:
                    logger.info(
                        "serving client traffic insecurely; this is strongly discouraged!",
                        traffic=traffic,
                        address=address,
                    )
        # Log these lines last: a program that waits for one may use any of the addresses.
        for address in addresses:
            logger.info(
                "ready to serve client requests",
                address=address,
                edge=edge_name(),
                core=core_name(),
            )

    def _listen(
        self,
        edge: Edge,
        address: str,
        tls: TlsSettings | None,
        *,
        http1_only: bool = False,
        kind: ListenerKind = ListenerKind.CLIENT,
        serves: Serves = Serves.BOTH,
    ) -> tuple[int, str]:
        """Listen with the flags' socket options; return the listener's number and address."""
        try:
            return edge.listen(
                address,
                tls,
                http1_only=http1_only,
                kind=kind,
                serves=serves,
                reuse_port=self._config.reuse_port,
            )
        except OSError as error:
            # `_check_addresses` could bind the address, so this error came up since.
            raise AddressRefusedError(error.strerror) from None

    def _check_addresses(self) -> None:
        """Refuse addresses that this process cannot bind, in etcd's order."""
        config = self._config
        if config.reuse_port or config.reuse_address:
            self._logger.info(
                "configuring socket options",
                reuse_address=config.reuse_address,
                reuse_port=config.reuse_port,
            )
        checked = set()
        for flag, urls in (
            ("--listen-peer-urls", config.listen_peer_urls),
            ("--listen-client-urls", config.listen_client_urls),
            ("--listen-client-http-urls", config.listen_client_http_urls),
            ("--listen-metrics-urls", config.listen_metrics_urls),
        ):
            for url in urls:
                if url.address not in checked:
                    check_address(url, flag, reuse_port=config.reuse_port)
                    checked.add(url.address)

    def _check_tls_files(self) -> None:
        """Refuse unusable TLS files; check the client side only if a client URL uses TLS."""
        config = self._config
        sides = [(config.peer_security, "peer-")]
        if any(map(is_secure, self._client_urls())):
            sides.append((config.client_security, ""))
        if not any(security.names_files for security, _ in sides):
            return
        # Imported late: the import is slow, and only TLS needs it.
        from kvorum.network.tls.files import TlsFileError, check_files

        try:
            for security, prefix in sides:
                for doubt in check_files(security, prefix, datetime.now(UTC)):
                    self._logger.warning("a TLS file is doubtful", reason=doubt)
        except TlsFileError as error:
            raise TlsRefusedError(str(error)) from None

    def _check_tls(self, edge: Edge, credentials: TlsCredentials) -> None:
        """Refuse TLS settings that are well-formed but unusable for the edge or the dialer."""
        config = self._config
        try:
            for security, urls, side in (
                (config.peer_security, config.listen_peer_urls, "peer"),
                (config.client_security, self._client_urls(), "client"),
            ):
                for _, tls in self._tls(security, urls, side):
                    if tls is not None:
                        edge.check_tls(tls)
            if credentials.settings.cert_file or credentials.settings.ca_file:
                credentials.context()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise TlsRefusedError(f"TLS cannot be set up: {reason}") from None

    def _client_urls(self) -> tuple[Url, ...]:
        """Return the URLs that present the server certificate for clients."""
        config = self._config
        return (
            *config.listen_client_urls,
            *config.listen_client_http_urls,
            *config.listen_metrics_urls,
        )

    def _credentials(self) -> TlsCredentials:
        """Return the TLS credentials for requests to other members."""

        def warn(text: str) -> None:
            self._logger.warning("changed TLS files for members cannot be used", error=text)

        config = self._config
        fixtures = Path(config.data_directory, "fixtures", "peer")
        try:
            settings = dial_settings(config.peer_security, config.listen_peer_urls, fixtures)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return TlsCredentials(settings, warn)

    def _tls(
        self, security: Security, urls: Sequence[Url], side: str
    ) -> Iterable[tuple[str, TlsSettings | None]]:
        """Return each address to listen at once, with its TLS settings."""
        fixtures = Path(self._config.data_directory, "fixtures", side)
        try:
            return tls_settings(security, urls, fixtures).items()
        except ValueError as error:
            raise ConfigError(str(error)) from None

    def _log_start(self, settings: MemberConfig, descriptors: int) -> None:
        has_log = log_exists(RealFiles(), settings.wal_directory or f"{settings.directory}/wal")
        initial_cluster = {} if has_log else settings.initial_cluster
        warn_of_slow_parts(self._logger, edge_name(), core_name())
        self._logger.info(
            "starting an etcd server",
            kvorum_version=kvorum.__version__,
            etcd_version=settings.server_version,
            python_version=platform.python_version(),
            os=platform.system().lower(),
            arch=platform.machine(),
            edge=edge_name(),
            core=core_name(),
            pid=os.getpid(),
            max_cpu_available=os.cpu_count(),
            file_descriptor_limit=descriptors,
            member_initialized=has_log,
            **effective(
                replace(self._config, initial_cluster_token=settings.initial_cluster_token),
                settings.directory,
                initial_cluster,
            ),
        )
