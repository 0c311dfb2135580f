"""How a member enters its cluster: it founds one, joins one, or goes on where its log ends.

If the directory has a log, that decides everything; the flags about the initial cluster are for the
first start only. Before that start, other members are asked: which ids a joining member and its
cluster have, and whether a founding member is known from an earlier run.
"""

import asyncio
import socket
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from typing import TypeVar

from kvorum.files.real import RealFiles
from kvorum.member.config import MemberConfig
from kvorum.membership.documents import Member as Peer
from kvorum.net.credentials import Credentials
from kvorum.net.dialer import HttpDialer
from kvorum.net.urls import split_host_port
from kvorum.peer.cluster.exchanges import Answer
from kvorum.peer.cluster.joining import Asking, Inquiry, find_start
from kvorum.settings.config import Config
from kvorum.settings.member import member_config
from kvorum.telemetry.logs import Logger
from kvorum.wal import exists as log_exists

Value = TypeVar("Value")

clock = time.monotonic


def resolve(url: str) -> str:
    """Return a URL with its host as an address, for comparison; unchanged if that fails."""
    scheme, _, host_port = url.partition("://")
    host, port = split_host_port(host_port)
    if host == "localhost":
        return url
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return url
    return f"{scheme}://{found[0][4][0]}:{port}"


async def enter(
    config: Config, directory: str, files: RealFiles, credentials: Credentials, logger: Logger
) -> tuple[MemberConfig, Sequence[Peer]]:
    """Return the member's options, and the members it knows before its log names them.

    Raises BootstrapError if flags and cluster do not fit together, ConfigError if flags do not.
    """
    wal_directory = config.wal_directory or f"{directory}/wal"
    settings = member_config(config, directory)
    known: Sequence[Peer] = ()
    if log_exists(files, wal_directory):
        logger.info("the data directory has a log; flags about the initial cluster are not used")
    else:
        steps = find_start(
            settings.initial_cluster,
            config.name,
            [str(url) for url in config.advertise_peer_urls],
            config.initial_cluster_token,
            settings.server_version,
            resolve,
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


async def ask_others(
    steps: Generator[Asking, Answer | None, Value], config: Config, credentials: Credentials
) -> Value:
    """Send the requests that steps yield, one after the other; return the steps' result."""
    arrived = asyncio.Event()
    dialer = HttpDialer(
        asyncio.get_running_loop(),
        credentials,
        connect_seconds_max=1.0 + config.heartbeat_seconds * config.election_ticks,
        local_address=config.peer_local_address,
        wake=arrived.set,
    )
    try:
        inquiry = Inquiry(steps, dialer, clock())
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
