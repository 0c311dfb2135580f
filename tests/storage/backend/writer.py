"""A process that writes a database and can be killed, lose its power, or run out of space.

A seed decides what each entry does, so a test that opens the database afterwards knows what it must
hold. Run as `python -m tests.storage.backend.writer`, it prints the index of the last entry of
every durable batch.
"""

import argparse
import ctypes
import os
import random
from collections.abc import Iterator
from itertools import islice

from kvorum.storage.backend import open_backend
from kvorum.storage.backend.buckets import AUTH_USERS, LEASE
from kvorum.storage.backend.encoding import revision_of
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles
from tests.storage.backend.model import NAMES, Entry, Model


def entries(seed: int) -> Iterator[Entry]:
    """Yield entries without end; rows of all sizes up to some pages, deletions, names."""
    chance = random.Random(seed)
    live: list[int] = []
    main = 1
    while True:
        main += 1
        length = chance.choice([20, 300, 300, 300, 3000, 9000])
        puts = [
            (revision_of(main, sub), chance.randbytes(length))
            for sub in range(chance.randint(1, 3))
        ]
        deletes = chance.sample(live, min(len(live), chance.choice([0, 0, 0, 5])))
        live = [revision for revision in live if revision not in deletes]
        live += [revision for revision, _ in puts]
        changes: list[tuple[bytes, bytes, bytes | None]] = []
        if chance.random() < 0.3:
            value = chance.randbytes(8) if chance.random() < 0.7 else None
            changes.append((chance.choice([AUTH_USERS, LEASE]), chance.choice(NAMES), value))
        yield Entry(puts, deletes, changes, b"%d" % main if chance.random() < 0.1 else None)


def models(seed: int, count: int) -> list[Model]:
    """Return the result of the first 0, 1, 2 ... entries of a seed."""
    result = [Model()]
    for entry in islice(entries(seed), count):
        model = Model(dict(result[-1].rows), dict(result[-1].entries))
        entry.apply_to_model(model)
        result.append(model)
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--entries", type=int, default=1 << 60)
    parser.add_argument("--batch", type=int, default=7)
    parser.add_argument("--defragment", type=int, default=0, help="every so many batches")
    arguments = parser.parse_args()
    files, environments = RealFiles(), LmdbEnvironments()
    backend = open_backend(files, environments, arguments.directory)
    mark = ctypes.CDLL(None).kvorum_mark if "LD_PRELOAD" in os.environ else None
    batches = 0
    helper = None
    for index, entry in enumerate(entries(arguments.seed), 1):
        if index > arguments.entries:
            break
        if index <= backend.applied_index:
            continue
        entry.apply(backend)
        backend.set_applied(index, 1)
        if index % arguments.batch:
            continue
        job = backend.seal()
        assert job is not None
        flushed = backend.take_staged(job.run(files, environments)).run(files, environments)
        removal = backend.take_committed(flushed)
        print(index, flush=True)  # noqa: T201
        if mark is not None:
            mark(index)
        if removal is not None:
            removal.run(files, environments)
        batches += 1
        if arguments.defragment and not backend.is_defragmenting:
            if batches % arguments.defragment == 0:
                helper = backend.defragment()
                helper.run(files, environments)
        elif helper is not None and batches % 2:
            helper = backend.take_copied()  # type: ignore[assignment]


if __name__ == "__main__":
    main()
