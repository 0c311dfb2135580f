"""Scheduled backups of a member, made by a child process over a private socket.

Every part of a backup is heavy or slow: hashing, verification, a remote store and its library. The
child process keeps that work off the loop, and the member survives any failure of the child. The
child uses the code of `kvorumctl backup`, so that there is one implementation. The socket is in a
directory that only this user may enter. The child's token is valid as long as this process runs,
and identifies the member itself.
"""

import asyncio
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kvorum.process.settings.config import Config, ConfigError
from kvorum.server.telemetry.counters import BackupCounters
from kvorum.server.telemetry.logs import Logger
from kvorum.tools.backup.errors import ArchiveError
from kvorum.tools.backup.stores import check_location

RESTART_SECONDS = 5.0
END_SECONDS_MAX = 5.0
"""How long a child may take to write its last changes to the archive before it is killed."""
NICENESS = 5
PACKAGES = Path(__file__).parents[2]
START = (
    "import sys; sys.path.append(sys.argv[1]); from kvorum.tools.backup.child import main; main()"
)
LINE_BYTES_MAX = 1 << 16


def check_backups(config: Config) -> None:
    """Raise ConfigError if the backup flags are unusable."""
    if not config.backup_to:
        return
    try:
        check_location(config.backup_to)
    except ArchiveError as error:
        raise ConfigError(f"--backup-to: {error}") from None
    for name, value in (
        ("every", config.backup_every_seconds),
        ("keep", config.backup_keep),
        ("log-interval", config.backup_log_seconds),
    ):
        if value <= 0:
            raise ConfigError(f"--backup-{name} is {value:g}; it has to be above 0")


class Backups:
    """The backup process of one member, restarted if it ends."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        config: Config,
        token: str,
        logger: Logger,
        counters: BackupCounters,
    ) -> None:
        self._loop = loop
        self._config = config
        self._token = token
        self._logger = logger
        self._counters = counters
        self._directory = TemporaryDirectory(prefix="kvorum-backup-")
        self._socket = f"{self._directory.name}/member"
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._is_ending = False

    @property
    def address(self) -> str:
        """The address at which the member must listen for the child."""
        return f"unix:{self._socket}"

    def start(self) -> None:
        """Start the child."""
        config = self._config
        isolation = "-I" if sys.flags.isolated else "-P"
        command = [sys.executable, isolation, "-c", START, str(PACKAGES)]
        try:
            process = subprocess.Popen(  # noqa: S603
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
            )
        except OSError as error:
            self._report_failure("start", str(error))
            self._timer = self._loop.call_later(RESTART_SECONDS, self.start)
            return
        assert process.stdin is not None and process.stdout is not None
        with suppress(OSError):
            niceness = os.getpriority(os.PRIO_PROCESS, 0) + NICENESS
            os.setpriority(os.PRIO_PROCESS, process.pid, min(niceness, 19))
        asked = {
            "socket": self._socket,
            "parent": os.getpid(),
            "token": self._token,
            "to": config.backup_to,
            "every": config.backup_every_seconds,
            "keep": config.backup_keep,
            "log_interval": config.backup_log_seconds,
        }
        with suppress(OSError):
            # The pipe's buffer holds all of this. If the child is gone already, `_read` sees the
            # end of its output.
            process.stdin.write(json.dumps(asked).encode() + b"\n")
        os.set_blocking(process.stdout.fileno(), False)
        self._process = process
        self._buffer.clear()
        self._loop.add_reader(process.stdout.fileno(), self._read)
        self._logger.info("making backups", to=config.backup_to, pid=process.pid)

    def end(self) -> None:
        """Let the child write its last changes to the archive while the member still answers."""
        self._is_ending = True
        if self._timer is not None:
            self._timer.cancel()
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()

    def stop(self) -> None:
        """Wait for the child to end, and kill it after `END_SECONDS_MAX`."""
        self.end()
        process = self._process
        if process is not None:
            self._forget(process)
            try:
                process.wait(END_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._directory.cleanup()

    def _forget(self, process: "subprocess.Popen[bytes]") -> None:
        """Close the pipes of a child, which then ends."""
        assert process.stdin is not None and process.stdout is not None
        self._process = None
        self._loop.remove_reader(process.stdout.fileno())
        process.stdin.close()
        process.stdout.close()

    def _read(self) -> None:
        process = self._process
        assert process is not None and process.stdout is not None
        try:
            data = os.read(process.stdout.fileno(), LINE_BYTES_MAX)
        except BlockingIOError:
            return
        self._buffer += data
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer[:] = rest
        problem = "" if data else "it ended"
        try:
            for line in lines:
                self._take_report(json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            problem = f"it sent {line[:100]!r}: {error!r}"
        if problem or len(rest) > LINE_BYTES_MAX:
            self._forget(process)
            process.kill()
            code = process.wait()
            if not self._is_ending:
                self._report_failure(
                    "backup", f"the process that makes backups: {problem} ({code})"
                )
                self._timer = self._loop.call_later(RESTART_SECONDS, self.start)

    def _take_report(self, report: dict[str, Any]) -> None:
        """Log and count a report of the child."""
        counters, kind = self._counters, report.pop("kind")
        if kind == "failed":
            self._report_failure(report["what"], report["error"])
        elif kind == "warned":
            self._logger.warning("a backup goes on, but an operator should check it", **report)
        elif kind == "began":
            self._logger.info("a history of backups begins", **report)
        elif kind == "took":
            counters.snapshots += 1
            counters.snapshot_seconds = report["time"]
            self._logger.info("a backup's snapshot was verified", **report)
        else:
            self._logger.debug("changes were recorded in the backup", **report)
        counters.revision = max(counters.revision, report.get("revision", 0))
        counters.written_bytes += report.get("size", 0)

    def _report_failure(self, what: str, error: str) -> None:
        self._counters.failures += 1
        self._logger.warning("a backup failed, and will be tried again", what=what, error=error)
