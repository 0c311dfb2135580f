"""Snapshot files made by hand, from rows."""

import random
from functools import cache
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.storage.backend.bbolt import write_image
from kvorum.storage.backend.buckets import BUCKETS, KEY, META
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles

ROWS = 200
Buckets = dict[bytes, dict[bytes, bytes]]


def usual() -> Buckets:
    buckets: Buckets = {bucket: {} for bucket in BUCKETS}
    for main in range(2, ROWS + 2):
        kv = KeyValue(
            key=b"k%03d" % (main % 50), create_revision=2, mod_revision=main, version=main,
            value=bytes([main % 256]) * (main % 120),
        )  # fmt: skip
        buckets[KEY][row_key(revision_of(main))] = kv.SerializeToString()
    buckets[META] = {b"consistent_index": (ROWS + 4).to_bytes(8, "big"), b"term": bytes(7) + b"\2"}
    return buckets


def snapshot(path: Path, buckets: Buckets) -> bytes:
    files = RealFiles()
    path.unlink(missing_ok=True)
    descriptor = files.open(str(path), Opening.CREATE)
    write_image(files, descriptor, ((name, sorted(buckets[name].items())) for name in buckets))
    files.close(descriptor)
    content = path.read_bytes()
    content += sha256(content).digest()
    path.write_bytes(content)
    return content


@cache
def usual_snapshot() -> bytes:
    with TemporaryDirectory() as directory:
        return snapshot(Path(directory) / "snapshot", usual())


def damage(content: bytes, chance: random.Random) -> bytes:
    """Cut a file off, flip bits of it, or write over a piece of it."""
    kind = chance.random()
    if kind < 0.3:
        return content[: chance.randrange(len(content))]
    changed = bytearray(content)
    if kind < 0.7:
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    else:
        start = chance.randrange(len(changed))
        end = min(len(changed), start + chance.choice([8, 512, 4096]))
        changed[start:end] = chance.choice([bytes(end - start), chance.randbytes(end - start)])
    return bytes(changed)
