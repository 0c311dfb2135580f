"""Temporary resources for a member: free ports, and a data directory removed at the end.

Until `leave`, sockets stay bound to the ports without listening, so that only the member can use
them. If a process is killed, the next process that needs a directory at the same place removes the
abandoned one.
"""

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from kvorum.network.urls import Url, split_host_port, url
from kvorum.process.settings.config import ConfigError
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles
from kvorum.storage.platform.sockets import hold_port

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 (directories in it are made by mkdtemp)
ROOM_BYTES_MIN = 256 << 20
"""With less free space in shared memory, the directory is on the disk."""
ABANDONED_SECONDS = 60.0
"""The minimum age of an abandoned directory: the process of a younger one may not have locked it
yet."""
_FOUNDING = ("initial-cluster", "discovery-endpoints", "discovery-srv")
_LISTENED = (
    ("listen-client-urls", "advertise-client-urls"),
    ("listen-peer-urls", "initial-advertise-peer-urls"),
)


class EphemeralResources:
    """The ports and the directory of one member."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._holders: list[socket.socket] = []
        self._directory: Path | None = None

    def furnish(self, given: Mapping[str, object]) -> dict[str, object]:
        """Return the flags, completed with addresses and a data directory.

        A given URL with port 0 gets a free port as well.
        """
        flags = dict(given)
        is_ephemeral = bool(flags.get("ephemeral"))
        if is_ephemeral:
            for name in ("data-dir", "wal-dir"):
                if name in flags:
                    raise ConfigError(
                        f"--ephemeral keeps nothing, but --{name} names a place to keep it: leave "
                        "out one of them"
                    )
            flags["unsafe-no-fsync"] = True
        for listens, advertises in _LISTENED:
            is_peer = listens == "listen-peer-urls"
            listened = self._listened(flags, listens, "peer-" if is_peer else "")
            flags[listens] = listened
            if advertises not in flags and listened:
                flags[advertises] = listened
        flags.setdefault("advertise-client-urls", ())
        if not any(name in flags for name in _FOUNDING):
            peers = flags.setdefault("initial-advertise-peer-urls", (url("http://localhost:2380"),))
            assert isinstance(peers, tuple)
            own = flags.get("name", "default")
            flags["initial-cluster"] = ",".join(f"{own}={each}" for each in peers)
        if "data-dir" not in flags:
            flags["data-dir"] = str(self._make_directory(in_memory=is_ephemeral))
        return flags

    def _listened(self, flags: Mapping[str, object], name: str, prefix: str) -> tuple[Url, ...]:
        is_secure = flags.get(f"{prefix}auto-tls") or flags.get(f"{prefix}cert-file")
        default = (url(f"{'https' if is_secure else 'http'}://127.0.0.1:0"),)
        urls = flags.get(name, default)
        assert isinstance(urls, tuple)
        return tuple(self._settled(each) for each in urls)

    def _settled(self, wanted: Url) -> Url:
        """Return the URL, with a free port in place of port 0 or none."""
        if wanted.scheme.startswith("unix"):
            return wanted
        host, port = split_host_port(wanted.address)
        if port not in ("", "0"):
            return wanted
        try:
            return url(f"{wanted.scheme}://{_bracketed(host)}:{self._hold_port(host)}")
        except OSError as error:
            raise ConfigError(f"no free port at {wanted}: {error.strerror or error}") from None

    def _hold_port(self, host: str) -> int:
        number, holder = hold_port(host)
        self._holders.append(holder)
        return number

    def _make_directory(self, *, in_memory: bool) -> Path:
        parent = Path(tempfile.gettempdir())
        if in_memory and _has_room(SHARED_MEMORY):
            parent = SHARED_MEMORY
        prefix = f"kvorum-{os.getuid()}-"
        _remove_abandoned(parent, prefix)
        self._directory = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        return self._directory

    def leave(self) -> None:
        """Release the ports, and remove the directory if this object made it."""
        self.abandon()
        if self._directory is not None and os.getpid() == self._process:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def abandon(self) -> None:
        """Close the sockets, also in a forked child, which keeps the directory."""
        for holder in self._holders:
            holder.close()
        self._holders.clear()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _has_room(directory: Path) -> bool:
    try:
        system = os.statvfs(directory)
    except OSError:
        return False
    is_usable = os.access(directory, os.R_OK | os.W_OK | os.X_OK)
    return is_usable and system.f_bavail * system.f_frsize >= ROOM_BYTES_MIN


_checked_at: dict[Path, float] = {}
"""When this process last searched each parent for abandoned directories."""


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the directories of killed processes, which no process has locked.

    A process searches a parent at most every `ABANDONED_SECONDS`, because each search examines the
    directories of all its members.
    """
    now = time.monotonic()
    if now - _checked_at.get(parent, -ABANDONED_SECONDS) < ABANDONED_SECONDS:
        return
    _checked_at[parent] = now
    for path in parent.glob(f"{prefix}*"):
        with suppress(OSError):
            status = path.lstat()
            if status.st_uid != os.getuid() or time.time() - status.st_mtime < ABANDONED_SECONDS:
                continue
            files = RealFiles()
            try:
                lock = path / "member" / "LOCK"
                if not lock.exists() or files.lock(files.open(str(lock), Opening.WRITE)):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                files.close_all()
