"""The `kvorum` command."""

import argparse
import asyncio
import logging
import platform
import signal

import kvorum
from kvorum.edge import edge_name, open_edge
from kvorum.server.demo import Demo

LOG = logging.getLogger("kvorum")


def version_text() -> str:
    """Return what `kvorum --version` prints."""
    return (
        f"kvorum Version: {kvorum.__version__}\n"
        "etcd API: 3.7\n"
        f"Python Version: {platform.python_version()}\n"
        f"OS/Arch: {platform.system().lower()}/{platform.machine()}\n"
        f"edge: {edge_name()}"
    )


async def serve(address: str) -> None:
    """Serve until SIGINT or SIGTERM, then finish what is in flight."""
    demo = Demo(open_edge(Demo.METHODS))
    _, bound = demo.edge.listen(address)
    loop = asyncio.get_running_loop()
    drained = loop.create_future()

    def turn() -> None:
        if drained.done():
            return
        try:
            demo.edge.awake()
            if demo.turn():
                drained.set_result(None)
        except Exception as error:
            # Nothing goes on after an error that nobody foresaw.
            loop.remove_reader(demo.edge.fileno())
            drained.set_exception(error)

    def drain() -> None:
        demo.edge.drain()
        turn()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, drain)
    loop.add_reader(demo.edge.fileno(), turn)
    loop.call_soon(turn)
    LOG.info("serving client requests address=%s edge=%s", bound, edge_name())
    try:
        await drained
    finally:
        loop.remove_reader(demo.edge.fileno())
        demo.edge.stop()
    LOG.info("stopped")


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="kvorum", description=kvorum.__doc__)
    parser.add_argument("--version", action="store_true", help="show the version and exit")
    parser.add_argument(
        "--listen",
        metavar="ADDRESS",
        default="127.0.0.1:2379",
        help="host:port or unix:path to serve clients at (default: %(default)s)",
    )
    arguments = parser.parse_args()
    if arguments.version:
        print(version_text())  # noqa: T201
        return
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    try:
        asyncio.run(serve(arguments.listen))
    except OSError as error:
        raise SystemExit(f"kvorum: {error.strerror or error}") from None
