"""Compare our client with others, in alternation: single calls, concurrent calls, events, start.

All clients use the same server, which does not wait for its disk. Each measurement is a process of
its own. Besides rates, the table has the client's processor time per call or event, which matters
more where client and server share processors. A ratio above 1 is in Kvorum's favour. Run it as
`make bench-client`.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.feeder import feeding
from bench.servers import KEEPS_NO_BYTECODE, running
from bench.table import Row, as_row, keep

GO_SOURCE = Path(__file__).parents[1] / "tools" / "oracle" / "etcd"
STARTS = 10
"""How many times each program starts in a round; the quickest start counts."""


@dataclass(frozen=True, slots=True)
class Library:
    """A client library and the command that measures it."""

    name: str
    command: tuple[str, ...]

    def measure(self, address: str, seconds: float) -> tuple[float, float]:
        """Return calls or events per second, and microseconds of processor time for each."""
        found = subprocess.run(
            [*self.command, address, str(seconds)], stdout=subprocess.PIPE, text=True, check=True
        ).stdout.split()
        return float(found[0]), float(found[1])


def python(what: str, library: str) -> Library:
    """Return the Python library with its measuring command."""
    return Library(library, (sys.executable, "-m", "bench.libraries", what, library))


@contextmanager
def go_program() -> Iterator[Path | None]:
    """Build the program for etcd's Go client; yield None without Go or its modules."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "rounds")
        if shutil.which("go") is not None:
            subprocess.run(
                ["go", "build", "-trimpath", "-o", path, "./rounds"],
                cwd=GO_SOURCE,
                env={**os.environ, "CGO_ENABLED": "0", "GOPROXY": "off", "GOTOOLCHAIN": "local"},
                check=False,
            )
        yield path if path.exists() else None


class Comparison:
    """Measures two libraries at a time, and collects the rows of the table."""

    def __init__(self, rounds: int, seconds: float) -> None:
        self._rounds = rounds
        self._seconds = seconds
        self.rows: list[Row] = []

    def compare(
        self, name: str, ours: Library, others: Sequence[Library], address: str, goal: float
    ) -> None:
        """Measure ours and each of the others in turn; the comparison with Go has no goal."""
        for other in others:
            pairs = [
                (other.measure(address, self._seconds), ours.measure(address, self._seconds))
                for _ in range(self._rounds)
            ]
            wanted = 0.0 if other.name == "Go" else goal
            for at, state, unit in ((0, "rate", "/s"), (1, "processor", "us")):
                self.rows.append(
                    as_row(
                        state,
                        name,
                        unit,
                        (other, ours),
                        [theirs[at] for theirs, _ in pairs],
                        [our[at] for _, our in pairs],
                        wanted,
                        less_is_better=at == 1,
                    )
                )

    def compare_starts(self, address: str) -> None:
        """Measure programs that start, read a key, and exit."""
        ours = Library("kvorum", ())
        for name in (name for name in STARTING if name != "kvorum"):
            pairs = [
                (start_milliseconds(name, address), start_milliseconds("kvorum", address))
                for _ in range(self._rounds)
            ]
            theirs, our = zip(*pairs, strict=True)
            self.rows.append(
                as_row(
                    "start",
                    "import, connect, read a key",
                    "ms",
                    (Library(name, ()), ours),
                    theirs,
                    our,
                    1.0,
                    less_is_better=True,
                )
            )


STARTING = {
    "kvorum": "from kvorum import Client\nwith Client('{0}:{1}') as client: client.get('a')",
    "etcd3gw": "import etcd3gw\netcd3gw.Etcd3Client('{0}', {1}).get('a')",
    "aetcd": """
import aetcd, asyncio
async def main():
    async with aetcd.Client('{0}', {1}) as client: await client.get(b'a')
asyncio.run(main())
""",
}


def start_milliseconds(name: str, address: str) -> float:
    """Return how long a program takes to run, minus the time that Python itself takes."""
    host, _, port = address.partition(":")
    return _run_milliseconds(STARTING[name].format(host, port)) - _run_milliseconds("pass")


def _run_milliseconds(program: str) -> float:
    environment = {name: text for name, text in os.environ.items() if name != KEEPS_NO_BYTECODE}
    taken = []
    for _ in range(STARTS):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], env=environment, check=True)
        taken.append(time.perf_counter() - began)
    return min(taken) * 1000


def run(server: str, rounds: int, seconds: float) -> list[Row]:
    """Compare all libraries."""
    comparison = Comparison(rounds, seconds)
    with (
        tempfile.TemporaryDirectory() as directory,
        running(server, Path(directory), "--unsafe-no-fsync") as member,
        go_program() as go,
    ):
        for what in ("put", "get"):
            others = [python(what, "etcd3gw"), python(what, "grpcio")]
            others.append(python(f"async-{what}", "aetcd"))
            if go is not None:
                others.append(Library("Go", (str(go), what)))
            name = f"{what}, one after the other"
            comparison.compare(name, python(what, "kvorum"), others, member.address, 1.5)
        for what in ("put", "get"):
            others = [python(f"{what}-100", name) for name in ("aetcd", "grpcio")]
            if go is not None:
                others.append(Library("Go", (str(go), f"{what}-100")))
            ours = python(f"{what}-100", "kvorum")
            comparison.compare(f"{what}, async, 100 at a time", ours, others, member.address, 3.0)
        comparison.compare_starts(member.address)
    with feeding() as address:
        others = [python("async-watch", "aetcd")]
        for what, name in (("watch", "events of a watch"), ("async-watch", "the same, async")):
            comparison.compare(name, python(what, "kvorum"), others, address, 1.0)
    return comparison.rows


def main() -> None:
    """Run the comparison, print it and store it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--server", default="etcd", help="etcd or kvorum")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="length of one measurement")
    arguments = parser.parse_args()
    print(
        f"{'state':<16} {'what':<32} {'against':<9} {'theirs':>11} {'ours':>11} {'unit':<6} ratio"
    )
    keep(run(arguments.server, arguments.rounds, arguments.seconds), "client")


if __name__ == "__main__":
    main()
