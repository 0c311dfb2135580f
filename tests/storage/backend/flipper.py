"""Flips bits anywhere in a database file, and reads everything in a process of its own each time.

LMDB trusts its pages: a change there would end the process if nothing checked them before. Prints a
line for each flip with the reader's outcome: `whole` if it read what was written, `damaged` if it
reported damage, `ended` if a signal ended it, and anything else if it read what was never written.
"""

import json
import os
import random
import resource
import shutil
import sys
from pathlib import Path

from kvorum.storage.backend import BackendError, open_backend
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files.real import RealFiles

WHOLE, DAMAGED, WRONG, ENDLESS = 0, 3, 4, 5
NAMES = {WHOLE: "whole", DAMAGED: "damaged", WRONG: "wrong", ENDLESS: "endless"}
READER_SECONDS_MAX = 20


def read(directory: str, expected: dict[int, str]) -> int:
    """Read every row, and return the outcome."""
    try:
        backend = open_backend(RealFiles(), LmdbEnvironments(), directory)
        found: dict[int, str] = {}
        first = 0
        while rows := backend.scan_rows(first, 1 << 96, 100):
            found |= {revision: value.hex() for revision, value in rows}
            if rows[-1][0] < first:
                return ENDLESS
            first = rows[-1][0] + 1
        values = backend.rows(sorted(expected))
    except BackendError:
        return DAMAGED
    whole = [bytes.fromhex(expected[each]) for each in sorted(expected)]
    return WHOLE if found == expected and values == whole else WRONG


def main() -> None:
    source, target, seed, flips = Path(sys.argv[1]), Path(sys.argv[2]), *map(int, sys.argv[3:5])
    expected = {int(name): value for name, value in json.load(sys.stdin).items()}
    chance = random.Random(seed)
    content = (source / "backend.1").read_bytes()
    for number in range(flips):
        directory = target / str(number)
        shutil.copytree(source, directory)
        offset, bit = chance.randrange(len(content)), chance.randrange(8)
        changed = bytearray(content)
        changed[offset] ^= 1 << bit
        (directory / "backend.1").write_bytes(changed)
        child = os.fork()
        if not child:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (READER_SECONDS_MAX, READER_SECONDS_MAX))
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os._exit(read(str(directory), expected))
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        became = "ended" if code < 0 else NAMES.get(code, f"exit-{code}")
        sys.stdout.write(f"{offset}.{bit} {became}\n")
        sys.stdout.flush()
        shutil.rmtree(directory)


if __name__ == "__main__":
    main()
