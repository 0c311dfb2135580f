"""Runs commands of `kvorumutl` in children that are killed, or find the disk full, at some point.

It runs with `killer.c` preloaded. A line of the input is a list in JSON: at which operation, in
which mode, and the arguments; the answer is the exit code, negative for a signal, what the command
said, and how many operations it did.
"""

import ctypes
import io
import json
import os
import sys
from functools import partial

# Loaded once, so that no child has to.
import kvorum.tools.utl.defragment
import kvorum.tools.utl.migrate
import kvorum.tools.utl.migration
import kvorum.tools.utl.restore  # noqa: F401
from kvorum.network.edge import native_rows
from kvorum.storage.wal import create_log
from kvorum.tools.offline import histories
from kvorum.tools.utl.main import run

# Logs begin with a segment of its full length, which takes more time than everything else.
SEGMENT_BYTES = 1 << 16
SMALL_LOG = partial(create_log, segment_bytes=SEGMENT_BYTES)


def child(output: int, number: int, mode: str, arguments: list[str]) -> None:
    """Run a command; tell what came of it."""
    said = io.StringIO()
    sys.stderr = said
    killer = ctypes.CDLL(None)
    killer.kvorum_arm(ctypes.c_long(number), ord(mode))
    code = run(arguments)
    count = killer.kvorum_count()
    killer.kvorum_arm(ctypes.c_long(-1), 0)
    os.write(output, json.dumps([code, said.getvalue(), count]).encode())
    os._exit(0)


def main() -> None:
    """Serve requests until the input ends."""
    native_rows()
    setattr(histories, "create_log", SMALL_LOG)  # noqa: B010 (mypy would object)
    for line in sys.stdin:
        number, mode, arguments = json.loads(line)
        reading, writing = os.pipe()
        process = os.fork()
        if not process:
            try:
                child(writing, number, mode, arguments)
            finally:
                os._exit(70)
        os.close(writing)
        with os.fdopen(reading, "rb") as told:
            answer = told.read()
        _, status = os.waitpid(process, 0)
        if not answer:
            answer = json.dumps([os.waitstatus_to_exitcode(status), "", 0]).encode()
        sys.stdout.write(answer.decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
