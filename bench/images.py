"""Make large snapshots, and measure `kvorumutl` on them.

A snapshot has as many keys as revisions, or fewer keys that are rewritten repeatedly. Every
twentieth row is a tombstone, and half of the revisions are compacted. Each command runs as one
process, as for users. Its processor time is the system's account, and its memory is the highest of
its anonymous memory samples, taken every 50 ms; pages of mapped files do not count, because the
system can reclaim them at any time. Run it as `python -m bench.images`, or with
`--megabytes 10000` for an image of ten gigabytes.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.bbolt import write_image
from kvorum.storage.backend.buckets import BUCKETS, FINISHED_COMPACT_REVISION, KEY, META
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles

MEGABYTE = 1_000_000
PIECE_BYTES = 1 << 20
TOMBSTONES = 20
SAMPLE_SECONDS = 0.05
ROW_BYTES = 80
"""The size of a row without its value: element, row key, key, numbers."""


def rows(count: int, keys: int, value_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Yield the rows of a history."""
    value = b"v" * value_bytes
    kv = KeyValue(value=value)
    for main in range(2, count + 2):
        key = b"/registry/objects/%012d" % (main * 7919 % keys)
        if main % TOMBSTONES == 0:
            yield (
                row_key(revision_of(main, tombstone=True)),
                KeyValue(key=key).SerializeToString(),
            )
            continue
        kv.key, kv.create_revision, kv.mod_revision, kv.version = key, main, main, 1
        yield row_key(revision_of(main)), kv.SerializeToString()


def make_snapshot(path: Path, size: int, value_bytes: int, rows_per_key: int) -> int:
    """Write a snapshot of about this size and its checksum; return the length before that."""
    files = RealFiles()
    count = size // (value_bytes + ROW_BYTES)
    meta = [
        (b"consistent_index", (count + 10).to_bytes(8, "big")),
        (FINISHED_COMPACT_REVISION, row_key(revision_of(count // 2))),
        (b"term", (2).to_bytes(8, "big")),
    ]
    content = {KEY: rows(count, max(1, count // rows_per_key), value_bytes), META: iter(meta)}
    descriptor = files.open(str(path), Opening.CREATE)
    try:
        length = write_image(
            files, descriptor, ((bucket, content.get(bucket, iter(()))) for bucket in BUCKETS)
        )
        digest = sha256()
        for offset in range(0, length, PIECE_BYTES):
            digest.update(files.pread(descriptor, offset, PIECE_BYTES))
        files.pwrite(descriptor, length, digest.digest())
    finally:
        files.close(descriptor)
    return length


def measure(what: str, size: int, *arguments: str) -> None:
    """Run a kvorumutl command, and print its processor time and memory."""
    command = [sys.executable, "-m", "kvorum.tools.utl.main", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    ended = threading.Event()
    memory = {"RssAnon": 0, "VmHWM": 0}
    watching = threading.Thread(target=_watch, args=(process.pid, memory, ended))
    watching.start()
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    ended.set()
    watching.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {output.decode()}")
    seconds = used.ru_utime + used.ru_stime
    print(
        f"{what}: {size / MEGABYTE / seconds:.0f} MB/s of processor time ({used.ru_utime:.1f} s of "
        f"its own, {used.ru_stime:.1f} s of the system's), {memory['RssAnon'] / 1024:.0f} MiB "
        f"anonymous memory at most, {memory['VmHWM'] / 1024:.0f} MiB with mapped files"
    )


def _watch(process: int, memory: dict[str, int], ended: threading.Event) -> None:
    while not ended.wait(SAMPLE_SECONDS):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            return
        for name, kibibytes in re.findall(
            r"^(RssAnon|VmHWM):\s+([0-9]+) kB$", status, re.MULTILINE
        ):
            memory[name] = max(memory[name], int(kibibytes))


def measure_commands(directory: Path, size: int, value_bytes: int, rows_per_key: int) -> None:
    """Make a snapshot and measure every command that reads it."""
    snapshot, data = directory / "snapshot", directory / "data"
    length = make_snapshot(snapshot, size, value_bytes, rows_per_key)
    print(f"a snapshot of {length / MEGABYTE:.0f} MB, values of {value_bytes} bytes")
    path = str(snapshot)
    measure("  snapshot status", length, "snapshot", "status", path)
    measure("  hashkv", length, "hashkv", path)
    measure("  snapshot restore", length, "snapshot", "restore", path, "--data-dir", str(data))
    measure("  hashkv of the directory", length, "hashkv", str(data))


def main() -> None:
    """Measure snapshots with values of each size."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--value-bytes", type=int, nargs="+", default=[1024, 100])
    parser.add_argument("--rows-per-key", type=int, default=1)
    parser.add_argument("--directory", help="where the files go; they are removed")
    given = parser.parse_args()
    for value_bytes in given.value_bytes:
        with tempfile.TemporaryDirectory(dir=given.directory) as directory:
            measure_commands(
                Path(directory), given.megabytes * MEGABYTE, value_bytes, given.rows_per_key
            )


if __name__ == "__main__":
    main()
