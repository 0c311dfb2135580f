"""Measure the storage: index, buffer, watch hub and LMDB, without network, Raft and log.

Rates count processor time, so that other load on the machine does not matter, and are given as best
and median of several rounds. Memory is anonymous memory, in a process of its own, beside an etcd
that received the same keys by single puts. Run it as `make bench-storage`; `--keys` sets the number
of keys in the large store, `--no-etcd` leaves etcd out (it takes minutes).
"""

import argparse
import gc
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count as count_up
from pathlib import Path

import grpc

from bench.servers import opponent, running
from kvorum.api.codec import HeaderEncoder
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.network.edge import native_rows
from kvorum.state.lease import Lessor
from kvorum.state.mvcc.ranges import RangeOptions, reply_body
from kvorum.state.mvcc.restore import restore_store
from kvorum.state.mvcc.slices import Slices
from kvorum.state.mvcc.store import Store
from kvorum.state.mvcc.watch import WatchHub
from kvorum.storage.backend import BufferLimits, open_backend
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles

VALUE = b"v" * 256
ROUNDS = 25
PUTS = 6_000
WATCHERS = 100_000
RANGE_KEYS = 1_000
FLUSH_ROWS = 10_000
PUTS_IN_FLIGHT = 500


class Storage:
    """A store over LMDB with everything that the apply path uses, and its flushes."""

    def __init__(self, directory: str, buffers: BufferLimits | None = None) -> None:
        self._files = RealFiles()
        self._environments = LmdbEnvironments(native_rows())
        self.backend = open_backend(
            self._files, self._environments, directory, quota_bytes=8 << 30, buffers=buffers
        )
        self.lessor = Lessor(self.backend, PRODUCTION)
        self.lessor.restore()
        self.hub = WatchHub(HeaderEncoder(1, 2, 3), random.Random(1), PRODUCTION)
        self.store: Store = restore_store(self.backend, self.lessor, self.hub, PRODUCTION)
        self.hub.history = self.store

    def flush(self) -> None:
        """Make everything durable."""
        stage = self.backend.seal()
        if stage is not None:
            commit = self.backend.take_staged(stage.run(self._files, self._environments))
            self.backend.take_committed(commit.run(self._files, self._environments))

    def put_all(self, keys: list[bytes]) -> None:
        """Put each key in a transaction of its own, as a busy member does, with regular flushes."""
        for start in range(0, len(keys), FLUSH_ROWS):
            put = self.store.put
            for key in keys[start : start + FLUSH_ROWS]:
                put(key, VALUE, 0)
            self.flush()

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()


@contextmanager
def storage(buffers: BufferLimits | None = None) -> Iterator[Storage]:
    """Make a store in a directory of its own."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        made = Storage(directory, buffers)
        try:
            yield made
        finally:
            made.close()


def key_of(number: int) -> bytes:
    """Return a key of typical length."""
    return b"/registry/pods/default/%010d" % number


def shuffled(count: int) -> list[bytes]:
    """Return `count` keys in a random order."""
    keys = [key_of(number) for number in range(count)]
    random.Random(7).shuffle(keys)
    return keys


def say(what: str, figure: str, goal: str = "") -> None:
    """Print a line of the table."""
    print(f"{what:58} {figure:>28}   {goal}", flush=True)


def rates(count: int, work: Callable[[int], None], rounds: int = ROUNDS) -> list[float]:
    """Return operations per second, one figure a round, best first."""
    found = []
    for number in range(rounds):
        start = time.process_time()
        work(number)
        found.append(count / (time.process_time() - start))
    return sorted(found, reverse=True)


def shown(found: list[float]) -> str:
    """Format best and median."""
    return f"{found[0]:,.0f}/s, median {statistics.median(found):,.0f}/s"


def apply_path() -> None:
    """Measure puts: index, buffer and hub."""
    goal = "goal 150,000/s"
    keys = shuffled(PUTS * ROUNDS)
    with storage() as made, storage() as watched:

        def put_new(number: int) -> None:
            put = made.store.put
            for key in keys[number * PUTS : (number + 1) * PUTS]:
                put(key, VALUE, 0)

        say("put of a new key, no watcher", shown(rates(PUTS, put_new)), goal)
        watched.put_all(keys)
        made.flush()
        stream = watched.hub.open_stream(1)
        for number in range(WATCHERS):
            stream.create(b"/watched/%010d" % number)
        watched.hub.take_outgoing()
        assert watched.hub.is_watched

        def put_again(which: Storage) -> float:
            put = which.store.put
            start = time.process_time()
            for key in keys[:PUTS]:
                put(key, VALUE, 0)
            rate = PUTS / (time.process_time() - start)
            which.flush()
            return rate

        pairs = [(put_again(made), put_again(watched)) for _ in range(ROUNDS)]
        alone = sorted((rate for rate, _ in pairs), reverse=True)
        beside = sorted((rate for _, rate in pairs), reverse=True)
        say("put of a key that exists, no watcher", shown(alone), goal)
        say(f"  with {WATCHERS:,} watchers of other keys", shown(beside), goal)
        ratio = statistics.median(other / one for one, other in pairs)
        say("  ratio, median of the rounds", f"{ratio:.2f}", "goal 0.90")


def ranges() -> None:
    """Measure ranges of a thousand keys, including the encoding of the reply."""
    for name, cache_bytes, goal in (("LMDB", 0, 400), ("the cache", 64 << 20, 1_500)):
        with storage(BufferLimits(cache_bytes_max=cache_bytes)) as made:
            made.put_all(shuffled(20 * RANGE_KEYS))
            first, end = key_of(5 * RANGE_KEYS), key_of(6 * RANGE_KEYS)
            options = RangeOptions(first, end)

            def read(_: int, made: Storage = made, options: RangeOptions = options) -> None:
                for _ in range(5):
                    reply_body(made.store.range(options))
                    made.backend.end_turn()

            read(0)
            what = f"range of {RANGE_KEYS:,} keys from {name}, reply bytes"
            say(what, shown(rates(5, read, 40)), f"goal {goal:,}/s")


def anonymous_bytes() -> int:
    """Return the anonymous memory of this process."""
    found = re.search(
        r"^Anonymous:\s+(\d+) kB", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE
    )
    assert found is not None
    return int(found[1]) * 1024


def load(directory: str, count: int) -> None:
    """Fill a store by single puts; print the resulting memory."""
    gc.disable()  # as in the server
    made = Storage(directory)
    made.put_all(shuffled(count))
    print(anonymous_bytes())
    made.close()


def restore(directory: str, count: int) -> None:
    """Open a filled store; print its opening time, memory, and the longest slices of long work."""
    gc.disable()
    start, start_cpu = time.perf_counter(), time.process_time()
    made = Storage(directory)
    seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - start_cpu
    say(
        f"restore of {count:,} keys",
        f"{seconds:.2f} s, processor {cpu_seconds:.2f} s",
        "goal 4 s for 1,000,000",
    )
    say("  memory after it, not backed by a file", f"{anonymous_bytes() >> 20:,} MiB")
    store = made.store
    half = RangeOptions(key_of(count // 4), key_of(3 * count // 4), count_only=True)

    def count_often(_: int) -> None:
        for _ in range(100):
            store.range(half)

    def put_and_count(_: int) -> None:
        for _ in range(100):
            store.put(key_of(1), VALUE, 0)
            store.range(half)

    counts, touched = rates(100, count_often), rates(100, put_and_count)
    say(f"count of {count // 2:,} keys", f"{1e3 / counts[0]:.4f} ms", "goal 0.1 ms")
    say("  with a put before it", f"{1e3 / touched[0]:.4f} ms", "goal 0.1 ms")
    goal = "goal 5 ms"
    whole = RangeOptions(key_of(count // 4), key_of(3 * count // 4))
    say(f"range of {count // 2:,} keys, longest slice", longest(store.range_slices(whole)), goal)
    by_value = whole._replace(sort_target=4, keys_only=True)
    say("  in the order of values", longest(store.range_slices(by_value)), goal)
    transaction = store.begin()
    slices = transaction.delete_range_slices(whole.key, whole.range_end)
    say(f"delete of {count // 2:,} keys, longest slice", longest(slices), goal)
    start = time.perf_counter()
    transaction.commit()
    say("  its commit", f"{(time.perf_counter() - start) * 1e3:.2f} ms", goal)
    say("  and its end", longest(transaction.end_slices()), goal)
    made.flush()
    store.compact(store.revision)
    what = f"compaction of {count:,} revisions, longest step"
    say(what, longest(compaction(store), made), goal)
    made.close()


def compaction(store: Store) -> Slices[None]:
    """Run the steps of a compaction as slices."""
    while store.compaction.is_pending:
        job = store.compaction.step()
        if job is not None:
            store.compaction.take_hash(job, None)
        yield


def longest(slices: Slices[object], flushed: Storage | None = None) -> str:
    """Run slices to their end; return the processor time of the longest, and of all.

    Between slices, `flushed` is flushed as often as a member does; that time does not count.
    """
    worst = total = 0.0
    for number in count_up(1):
        start = time.thread_time()
        try:
            next(slices)
            is_done = False
        except StopIteration as end:
            result, is_done = end.value, True  # the caller frees the result in slices, see `freed`
        taken = time.thread_time() - start
        worst, total = max(worst, taken), total + taken
        if is_done:
            del result
            break
        if flushed is not None and number % 20 == 0:
            flushed.flush()
    return f"{worst * 1e3:.2f} ms of {total:.2f} s"


def etcd_bytes(count: int) -> int:
    """Return the memory of an etcd that received the keys by single puts."""
    flags = ("--unsafe-no-fsync", "--log-level=error")
    with (
        tempfile.TemporaryDirectory(dir=".") as directory,
        running("etcd", Path(directory), *flags) as etcd,
        grpc.insecure_channel(etcd.address) as channel,
    ):
        put = channel.unary_unary("/etcdserverpb.KV/Put")
        flying: deque[grpc.Future] = deque()
        for key in shuffled(count):
            if len(flying) >= PUTS_IN_FLIGHT:
                flying.popleft().result()
            flying.append(put.future(PutRequest(key=key, value=VALUE).SerializeToString()))
        for each in flying:
            each.result()
        return etcd.anonymous_bytes()


def child(part: str, directory: str, count: int) -> str:
    """Run a part in a process of its own; return its output."""
    command = [sys.executable, "-m", "bench.storage", "--part", part, directory]
    command += ["--keys", str(count)]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def large(count: int, *, with_etcd: bool) -> None:
    """Measure memory, opening and long work of a large store."""
    with tempfile.TemporaryDirectory(dir=".") as directory:
        ours = int(child("load", directory, count))
        print(child("restore", directory, count), end="", flush=True)
    say(f"memory after {count:,} single puts, kvorum", f"{ours >> 20:,} MiB")
    if with_etcd:
        theirs = etcd_bytes(count)
        say(f"  etcd {opponent()}", f"{theirs >> 20:,} MiB")
        say("  ratio", f"{ours / theirs:.2f}", "goal 1.00")


def main() -> None:
    """Print the table, or run one part of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=1_000_000, help="keys of the large store")
    parser.add_argument("--no-etcd", action="store_true", help="do not measure etcd's memory")
    parser.add_argument("--only", choices=("apply", "ranges", "large"))
    parser.add_argument("--part", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.part is not None:
        part, directory = arguments.part
        {"load": load, "restore": restore}[part](directory, arguments.keys)
        return
    gc.disable()
    if arguments.only in (None, "apply"):
        apply_path()
    if arguments.only in (None, "ranges"):
        ranges()
    if arguments.only in (None, "large"):
        large(arguments.keys, with_etcd=not arguments.no_etcd)


if __name__ == "__main__":
    main()
