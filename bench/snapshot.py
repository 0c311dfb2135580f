"""Measure snapshots: the speed of writing and reading an image, and the effect on a client's puts.

This process writes and imports the image alone, as the helper process does. For kvorum and etcd,
the latency of a single client's puts is measured alternately without load and while snapshots are
fetched one after the other; the ratio of the two counts. Run it as `make bench-snapshot`.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.load import Load, fill
from bench.servers import Server, running
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb.etcdserverpb import PutRequest, SnapshotRequest
from kvorum.api.pb.mvccpb import KeyValue
from kvorum.member.images import BuildImage, InstallImage
from kvorum.network.edge import native_rows
from kvorum.storage.backend import install
from kvorum.storage.backend.buckets import KEY
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles

PUT, SNAPSHOT = "/etcdserverpb.KV/Put", "/etcdserverpb.Maintenance/Snapshot"
VALUE = b"x" * 256
MEGABYTE = 1_000_000


def rows(count: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a store with `count` keys."""
    for main in range(2, count + 2):
        kv = KeyValue(
            key=b"/bench/%08d" % main,
            create_revision=main,
            mod_revision=main,
            version=1,
            value=VALUE,
        )
        yield row_key(revision_of(main)), kv.SerializeToString()


def measured(what: str, size: int, rounds: int, work: Callable[[], object]) -> None:
    """Print the speed of some work in megabytes per second, by processor time and wall clock."""
    processor, clock = [], []
    for _ in range(rounds):
        started = time.process_time(), time.monotonic()
        work()
        processor.append(size / MEGABYTE / (time.process_time() - started[0]))
        clock.append(size / MEGABYTE / (time.monotonic() - started[1]))
    print(
        f"{what}: {max(processor):.0f} MB/s of processor time (median "
        f"{statistics.median(processor):.0f}), {max(clock):.0f} MB/s by the clock (median "
        f"{statistics.median(clock):.0f})"
    )


def measure_files(directory: Path, keys: int, rounds: int) -> None:
    """Write and import an image of `keys` keys."""
    files, environments = RealFiles(), LmdbEnvironments(native_rows())
    source, target, image = directory / "source", directory / "target", str(directory / "image")
    for each in (source, target):
        each.mkdir()
    install(files, environments, str(source), [(KEY, rows(keys))])
    size = BuildImage.of(str(source), image, PRODUCTION).run(files, environments).length
    print(f"an image of {keys} keys of {len(VALUE)} bytes has {size / MEGABYTE:.0f} MB")
    build = BuildImage.of(str(source), image, PRODUCTION)
    measured("writing it", size, rounds, lambda: build.run(files, environments))
    load = InstallImage(image, str(target), 0, PRODUCTION.image_commit_entries)
    measured("importing it", size, rounds, lambda: load.run(files, environments))


def put_seconds(server: Server, seconds: int) -> float:
    """Return the median latency of a single client's puts."""
    message = PutRequest(key=b"/bench/0", value=VALUE).SerializeToString()
    load = Load(
        server.address, PUT, [message], connections=1, streams=1, seconds=seconds, latencies=True
    )
    return load.finish().median_seconds


def measure_serving(directory: Path, keys: int, rounds: int, seconds: int) -> None:
    """Compare the latency while snapshots are fetched with the undisturbed latency."""
    with ExitStack() as stack:
        servers = [stack.enter_context(running(name, directory)) for name in ("kvorum", "etcd")]
        for server in servers:
            fill(server.address, ((b"/bench/%08d" % each, VALUE) for each in range(keys)))
        for server in servers:
            usual, disturbed, rate = [], [], []
            for _ in range(rounds):
                usual.append(put_seconds(server, seconds))
                message = SnapshotRequest().SerializeToString()
                fetching = Load(
                    server.address,
                    SNAPSHOT,
                    [message],
                    connections=1,
                    streams=1,
                    seconds=seconds + 1,
                )
                disturbed.append(put_seconds(server, seconds))
                rate.append(fetching.finish().data_bytes / (seconds + 1) / MEGABYTE)
            ratios = [slow / fast for slow, fast in zip(disturbed, usual, strict=True)]
            print(
                f"{server.name}: a put takes {statistics.median(usual) * 1e6:.0f} us, while "
                f"snapshots are fetched {statistics.median(disturbed) * 1e6:.0f} us: "
                f"{statistics.median(ratios):.2f} times as long (best {min(ratios):.2f}); "
                f"{statistics.median(rate):.0f} MB/s fetched"
            )


def main() -> None:
    """Run all measurements."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, default=500_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        measure_files(Path(directory), given.keys, given.rounds)
        measure_serving(Path(directory), given.keys, given.rounds, given.seconds)


if __name__ == "__main__":
    main()
