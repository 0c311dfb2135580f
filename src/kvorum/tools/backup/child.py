"""The process in which a member makes backups: it speaks to the member over a private socket.

The first line of its input holds its options, in JSON; when its input ends, the process ends, too.
It writes lines of JSON that report its work. It makes a backup only while its member leads.
"""

import json
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from kvorum.client.sync.client import Client
from kvorum.tools.backup.names import SegmentName
from kvorum.tools.backup.running import Backup
from kvorum.tools.backup.session import BackupOptions
from kvorum.tools.backup.stores import open_store
from kvorum.tools.backup.taking import Taken

ANSWER_SECONDS_MAX = 2.0
"""The member is on the same machine; one that exceeds this is ending, or has other problems."""


class _ReportLines:
    """Report to the member, in lines of JSON."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def _write(self, kind: str, **fields: Any) -> None:
        with self._lock:
            sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
            sys.stdout.flush()

    def note_history_started(self, history: str, reason: str) -> None:
        """Report the start of a new history, with the reason."""
        self._write("began", history=history, reason=reason)

    def note_progress(self, received: int, remaining: int) -> None:
        """Do nothing, because the member logs the progress itself."""

    def note_snapshot(self, taken: Taken) -> None:
        """Report a snapshot."""
        facts = taken.manifest.facts
        self._write(
            "took",
            name=str(taken.name),
            revision=facts.revision,
            size=facts.size,
            time=taken.manifest.taken,
            removed=len(taken.removed),
        )

    def note_segment(self, name: SegmentName, size: int) -> None:
        """Report that changes are in the archive."""
        self._write("recorded", name=str(name), revision=name.last, size=size)

    def note_failure(self, what: str, error: Exception) -> None:
        """Report a failure."""
        self._write("failed", what=what, error=str(error))

    def note_warning(self, text: str) -> None:
        """Report a warning for the operator."""
        self._write("warned", text=text)


def main() -> None:
    """Make backups until the input ends."""
    # Ctrl-C reaches the whole process group, but the member decides when its child ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    given = json.loads(sys.stdin.readline())
    options = BackupOptions(
        every_seconds=given["every"], keep=given["keep"], log_seconds=given["log_interval"]
    )
    with Client(
        f"unix://{given['socket']}", token=given["token"], timeout=ANSWER_SECONDS_MAX
    ) as client:
        made = Backup(
            client,
            open_store(given["to"]),
            options,
            _ReportLines(),
            lambda: client.maintenance.status().is_leader,
        )

        def wait_for_end() -> None:
            sys.stdin.read()
            made.stop()

        threading.Thread(target=wait_for_end, daemon=True).start()
        made.run()
    if os.getppid() != given["parent"]:
        # The member was killed, and cannot remove the socket's directory.
        shutil.rmtree(Path(given["socket"]).parent, ignore_errors=True)


if __name__ == "__main__":
    main()
