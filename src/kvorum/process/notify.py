"""Notify the service manager that the server is ready, in systemd's protocol."""

import os
import socket

from kvorum.server.telemetry.logs import Logger


def notify_ready(logger: Logger) -> None:
    """Send READY=1 to the socket named by NOTIFY_SOCKET, if it is set."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    logger.info("notifying init daemon")
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as out:
            # A leading @ stands for the zero byte of an abstract name.
            out.sendto(b"READY=1", "\0" + address[1:] if address.startswith("@") else address)
    except OSError as error:
        logger.error("failed to notify systemd for readiness", error=str(error))
        return
    logger.info("successfully notified init daemon")
