"""Rows as stores write them, for tests of what reads them, and the compiled functions that do."""

import random
from collections.abc import Iterator

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.network.edge import native_rows
from kvorum.storage.backend.encoding import revision_of, row_key
from kvorum.storage.backend.native import NativeRows

FOUND = native_rows()
"""The compiled functions, where the native edge is built."""


def native() -> NativeRows:
    assert FOUND is not None
    return FOUND


def history(seed: int, count: int, *, large: bool = False) -> Iterator[tuple[bytes, bytes]]:
    """Rows as a store writes them: puts and tombstones, leases, the start compacted away."""
    chance = random.Random(seed)
    keys = [
        bytes([97 + chance.randrange(26)]) * chance.choice((1, 3, 127, 128, 600)) for _ in "abcde"
    ]
    created: dict[bytes, tuple[int, int]] = {key: (2, 9) for key in keys if chance.random() < 0.3}
    main = chance.choice((2, 200, 1 << 21, 1 << 31, 1 << 45)) + 10
    sub = 0
    for _ in range(count):
        if chance.random() < 0.2:
            sub += 1
        else:
            main, sub = main + chance.choice((1, 1, 1, 100)), 0
        key = chance.choice(keys)
        if key in created and chance.random() < 0.2:
            del created[key]
            yield (
                row_key(revision_of(main, sub, tombstone=True)),
                KeyValue(key=key).SerializeToString(),
            )
            continue
        create, version = created.get(key, (main, 0))
        created[key] = create, version + 1
        kv = KeyValue(
            key=key,
            create_revision=create,
            mod_revision=main,
            version=version + 1,
            value=bytes(chance.choice((0, 1, 127, 300, 5_000 if large else 128))),
            lease=chance.choice((0, 0, 0, 7, -5)),
        )
        yield row_key(revision_of(main, sub)), kv.SerializeToString()
    if chance.random() < 0.1:
        yield row_key(revision_of(main + 1_000)), b""
