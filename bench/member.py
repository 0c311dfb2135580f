"""Measure what a server costs the loop: batches of puts and reads, with an instant in-memory log.

Requests go to the member, as from the services, or to the server, as from an edge. The backend is a
real LMDB in a temporary directory. Times are processor time of this thread, so that other load on
the machine does not count; every figure is the best and the median of several rounds.
"""

import argparse
import cProfile
import logging
import pstats
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from kvorum.api.codec import length_delimited
from kvorum.api.errors import Status
from kvorum.api.requests import parse_put, parse_range, parse_txn
from kvorum.member.config import Seams
from kvorum.member.jobs import Job
from kvorum.member.member import Member
from kvorum.member.recovery import open_member
from kvorum.network.edge.interface import Request
from kvorum.process.settings.checks import make_config
from kvorum.process.settings.member import member_config
from kvorum.server.jobs import Ended
from kvorum.server.rpc.table import NUMBERS
from kvorum.server.server import Server
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER
from kvorum.state.apply.ranges import range_response
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from kvorum.storage.wal import AppendLog
from tests.server.seams import SETTINGS, NoPeers, RecordingEdge, RecordingLogger, run_job

ROUNDS = 25
REQUESTS = 4000
KEYS = 4000
VALUE = b"v" * 256
PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"


class UnreadEdge(RecordingEdge):
    """An edge that drops all answers."""

    def reply(self, batch: Sequence[tuple[int, bytes | Status]]) -> None:
        """Drop answers."""


class Machine:
    """A server whose log appends complete immediately."""

    def __init__(self, directory: str) -> None:
        self.files = RealFiles()
        self.environments = LmdbEnvironments()
        config = member_config(make_config({"snapshot-count": 1_000_000}), f"{directory}/member")
        logger = logging.getLogger("bench")
        logger.setLevel(logging.ERROR)
        seams = Seams(
            files=self.files,
            environments=self.environments,
            logger=logger,
            clock=time.monotonic,
            boot_clock=time.monotonic,
            random_below=Random(1).randrange,
            unix_seconds=1.7e9,
            wall_clock=time.time,
            tokens=SimpleTokens(300.0),
            stopwatch=time.monotonic,
        )
        self.member: Member = open_member(config, seams)
        self.server = Server(
            self.member,
            UnreadEdge(),
            NoPeers(self.member),
            RecordingLogger(),
            SETTINGS,
        )
        self.log_bytes = 0
        self.flush_seconds = 0.0
        while not self.member.is_published:
            self.turn()

    def turn(self, requests: Sequence[Request] = ()) -> None:
        """Run turns until the server is idle."""
        server = self.server
        server.turn(time.monotonic(), requests, [], (), ())
        while True:
            while jobs := server.take_jobs():
                server.resume_turn(time.monotonic(), [self.run(job) for job in jobs])
            if not server.is_busy:
                return
            server.turn(time.monotonic(), (), [], (), ())

    def run(self, job: Job) -> Ended:
        """Run a job; an append only adds its size, at no cost."""
        if isinstance(job.work, AppendLog):
            self.log_bytes += len(job.work.data)
            return job, None, None
        began = time.process_time()
        ended = run_job(job, self.files, self.environments)
        self.flush_seconds += time.process_time() - began
        return ended


def calls(machine: Machine, path: str, bodies: list[bytes], batch: int) -> None:
    """Pass calls to the server in batches, as the edge does."""
    number = NUMBERS[path]
    for start in range(0, len(bodies), batch):
        machine.turn(
            [
                (call, number, body, None)
                for call, body in enumerate(bodies[start : start + batch], start)
            ]
        )


def puts(machine: Machine, bodies: list[bytes], batch: int) -> None:
    """Put in batches, as a front does: parse, propose, one turn for all."""
    replica = machine.member.replica
    for start in range(0, len(bodies), batch):
        for call, body in enumerate(bodies[start : start + batch], start):
            replica.propose(call, MEMBER, requests.PUT, body, parse_put(body))
        machine.turn()


def txns(machine: Machine, bodies: list[bytes], batch: int) -> None:
    """Run transactions in batches."""
    replica = machine.member.replica
    for start in range(0, len(bodies), batch):
        for call, body in enumerate(bodies[start : start + batch], start):
            replica.propose(call, MEMBER, requests.TXN, body, parse_txn(body))
        machine.turn()


def reads(machine: Machine, bodies: list[bytes], batch: int, *, linearizable: bool) -> None:
    """Read single keys in batches."""
    replica = machine.member.replica
    for start in range(0, len(bodies), batch):
        for call, body in enumerate(bodies[start : start + batch], start):
            request = parse_range(body)
            replica.read(call, MEMBER, range_response, request, linearizable=linearizable)
        machine.turn()


def measure(name: str, machine: Machine, count: int, work: Callable[[], None]) -> None:
    """Print the processor time per request in microseconds, without that of jobs."""
    counters = []
    for _ in range(ROUNDS):
        machine.flush_seconds = 0.0
        began = time.process_time()
        work()
        counters.append((time.process_time() - began - machine.flush_seconds) / count * 1e6)
    print(f"{name:<34} best {min(counters):6.2f} us   median {statistics.median(counters):6.2f} us")


def put_body(key: bytes) -> bytes:
    """Return an encoded PutRequest."""
    return length_delimited(b"\x0a", key) + length_delimited(b"\x12", VALUE)


def main() -> None:
    """Run the measurements, or profile one of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", choices=["put", "single", "read", "txn"])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "member").mkdir()
        machine = Machine(directory)
        random = Random(7)
        keys = [b"key-%08d" % random.randrange(KEYS) for _ in range(REQUESTS)]
        bodies = [put_body(key) for key in keys]
        points = [length_delimited(b"\x0a", key) for key in keys]
        transactions = [
            length_delimited(
                b"\x0a",
                b"\x08\x01\x10\x02\x1a" + length_delimited(b"", key) + b"\x30\x01",
            )
            + length_delimited(b"\x12", length_delimited(b"\x12", put_body(key)))
            for key in keys
        ]
        assert parse_txn(transactions[0]) is not None
        puts(machine, bodies, 200)
        if arguments.profile:
            profile = cProfile.Profile()
            profile.enable()
            if arguments.profile == "put":
                puts(machine, bodies, 200)
            elif arguments.profile == "single":
                puts(machine, bodies[:2000], 1)
            elif arguments.profile == "txn":
                txns(machine, transactions, 200)
            else:
                reads(machine, points, 200, linearizable=True)
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(30)
            return
        for batch in (200, 20, 1):
            some = bodies[: REQUESTS // 10] if batch == 1 else bodies
            measure(
                f"put, parsed, batches of {batch}",
                machine,
                len(some),
                lambda some=some, batch=batch: puts(machine, some, batch),  # type: ignore[misc]
            )
        measure("txn, batches of 200", machine, REQUESTS, lambda: txns(machine, transactions, 200))
        for name, linearizable in (("serializable", False), ("linearizable", True)):
            measure(
                f"{name} read, batches of 200",
                machine,
                REQUESTS,
                lambda linear=linearizable: reads(machine, points, 200, linearizable=linear),  # type: ignore[misc]
            )
        for batch in (200, 1):
            some = bodies[: REQUESTS // 10] if batch == 1 else bodies
            measure(
                f"put, as received, batches of {batch}",
                machine,
                len(some),
                lambda some=some, batch=batch: calls(machine, PUT, some, batch),  # type: ignore[misc]
            )
        measure(
            "read, as received, batches of 200",
            machine,
            REQUESTS,
            lambda: calls(machine, RANGE, points, 200),
        )


if __name__ == "__main__":
    main()
