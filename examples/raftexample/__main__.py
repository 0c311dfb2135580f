"""The command line: `python -m examples.raftexample --id 1 --cluster <urls> --port 12380`."""

import argparse
import asyncio
import logging
import sys

from examples.raftexample.server import serve


def main() -> None:
    """Parse the flags and run a node."""
    parser = argparse.ArgumentParser(
        prog="raftexample", description="A replicated key-value store over HTTP."
    )
    parser.add_argument("--id", type=int, default=1, help="number of this node, from 1 on")
    parser.add_argument(
        "--cluster",
        default="http://127.0.0.1:9021",
        help="URLs of all nodes for each other, separated by commas, in the order of their numbers",
    )
    parser.add_argument("--port", type=int, default=9121, help="port for clients")
    parser.add_argument("--join", action="store_true", help="become part of a group that exists")
    flags = parser.parse_args()
    urls = flags.cluster.split(",")
    if not 1 <= flags.id <= len(urls):
        parser.error(f"--id {flags.id}: --cluster has {len(urls)} URLs; expected 1 to {len(urls)}")
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    asyncio.run(serve(flags.id, urls, flags.port, joins=flags.join))


if __name__ == "__main__":
    main()
