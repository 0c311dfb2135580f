"""`kvorum gateway start`: forward TCP connections of clients to members.

The order of the start, its texts and its exit codes are etcd's: first the members, from SRV records
or `--endpoints`, then a check for addresses that lead back to the gateway, then the listening
socket. The gateway refuses two mistakes that etcd accepts: a port that is no number, and SRV
records none of which can be trusted.
"""

import random
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from kvorum.network.urls import split_host_port
from kvorum.process.addresses import PORT_MAX, listen_address
from kvorum.process.gateway_loop import GatewayLoop
from kvorum.process.lookups import addresses_of, members_by_records
from kvorum.process.notify import notify_ready
from kvorum.process.start_errors import AddressRefusedError
from kvorum.proxy.remotes import ForwardTarget, Remotes
from kvorum.server.telemetry.logs import Logger, plain_logger
from kvorum.storage.platform.processes import raise_descriptor_limit
from kvorum.tools.cli.invocation import Invocation

RETRY_SECONDS = 300.0
"""The retry delay if --retry-delay is 0 or less."""


class GatewayRefusedError(Exception):
    """A refused start, reported on standard output as etcd does."""


def start(invocation: Invocation, words: Sequence[str]) -> int:
    """Serve until a signal; return its negated number, or an exit code if the start fails."""
    logger = plain_logger()
    logger.info("Running: ", args=["kvorum", *words])
    try:
        members = _members(invocation, logger)
        _check_listen_address(invocation.text("listen-addr"), members)
        if not members:
            raise GatewayRefusedError("no endpoints found")
    except GatewayRefusedError as error:
        sys.stdout.write(f"{error}\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    try:
        listener = _listen(invocation.text("listen-addr"))
    except (AddressRefusedError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    seconds = invocation.seconds("retry-delay")
    interval = seconds if seconds > 0 else RETRY_SECONDS
    remotes = Remotes(members, interval, random.SystemRandom().randrange)
    loop = GatewayLoop(listener, remotes, interval, logger)
    host, port, *_ = listener.getsockname()

    def ready() -> None:
        notify_ready(logger)
        logger.info(
            "ready to proxy client requests",
            endpoints=[each.address for each in members],
            address=ForwardTarget(host, port).address,
        )

    return -loop.run(raise_descriptor_limit(), ready)


def _members(invocation: Invocation, logger: Logger) -> list[ForwardTarget]:
    """Return the members to forward connections to."""
    if not invocation.text("discovery-srv"):
        return [_remote(text) for text in invocation.texts("endpoints")]
    found = members_by_records(invocation, (invocation.text("trusted-ca-file"),), logger)
    return [ForwardTarget(each.host, each.port, each.priority, each.weight) for each in found]


def _remote(text: str) -> ForwardTarget:
    """Return the member at an endpoint, ignoring the scheme."""
    # A text that is no URL is taken as it is.
    with suppress(ValueError):
        text = urlsplit(text).netloc.rpartition("@")[2] or text
    try:
        host, port = split_host_port(text)
        number = int(port)
    except ValueError:
        number = -1
    if not 0 < number <= PORT_MAX:
        raise GatewayRefusedError(f'error parsing endpoint "{text}"')
    return ForwardTarget(host, number)


def _check_listen_address(listen: str, members: Sequence[ForwardTarget]) -> None:
    """Refuse hosts that do not resolve, and endpoints that lead back to this gateway."""
    try:
        host, port = split_host_port(listen)
    except ValueError:
        raise GatewayRefusedError(f"failed to validate listen address: {listen}") from None
    own = addresses_of(host)
    if not own:
        raise GatewayRefusedError(f"failed to resolve listen host: {host}")
    for member in members:
        found = addresses_of(member.host)
        if not found:
            raise GatewayRefusedError(f"failed to resolve endpoint host: {member.host}")
        for address in found:
            if address in own and str(member.port) == port:
                raise GatewayRefusedError(
                    f"SRV or endpoint ({member.address}->{address}:{port}) should not resolve to "
                    f"the gateway listen addr ({listen})"
                )


def _listen(listen: str) -> socket.socket:
    url = listen_address(listen)
    host, port = split_host_port(url.address)
    (family, kind, protocol, _, address), *_ = socket.getaddrinfo(
        host, int(port), type=socket.SOCK_STREAM
    )
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setblocking(False)
    listener.bind(address)
    listener.listen(socket.SOMAXCONN)
    return listener
