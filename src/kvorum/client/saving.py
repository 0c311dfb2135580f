"""A snapshot that is being saved to a file, which gets its name once it is complete and durable."""

import os
from hashlib import sha256
from pathlib import Path
from typing import Final

from kvorum.client.errors import SnapshotError
from kvorum.client.values import Snapshot

DIGEST_BYTES: Final = 32
PAGE_BYTES: Final = 512
"""The size of a database is a multiple of this."""
WRITE_BYTES: Final = 1 << 20
"""How much to buffer before a write."""


class Saving:
    """The file `<name>.part`, until it is finished or abandoned."""

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self.size: int = 0
        """How many bytes have arrived."""
        self.version: str = ""
        self._part = self.path.with_name(f"{self.path.name}.part")
        # Windows would translate the ends of lines otherwise.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_BINARY", 0)
        self._file = os.fdopen(os.open(self._part, flags, 0o600), "wb", buffering=0)
        self._pieces: list[bytes] = []
        self._gathered = 0
        self._digest = sha256()
        self._tail = b""
        """The last bytes, which are the digest of those before them."""

    def add(self, piece: bytes) -> bool:
        """Buffer a piece; return whether it is time to write."""
        self.size += len(piece)
        self._pieces.append(piece)
        self._gathered += len(piece)
        return self._gathered >= WRITE_BYTES

    def write(self) -> None:
        """Write the buffered pieces."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        self._gathered = 0
        hashed = self._tail + data
        self._digest.update(hashed[: max(0, len(hashed) - DIGEST_BYTES)])
        self._tail = hashed[-DIGEST_BYTES:]
        while data:
            data = data[self._file.write(data) :]

    def finish(self) -> Snapshot:
        """Verify the file, make it durable, and rename it; raises SnapshotError."""
        self.write()
        if self.size % PAGE_BYTES != DIGEST_BYTES or self._tail != self._digest.digest():
            raise SnapshotError(
                f"the snapshot of {self.size} bytes does not end with its SHA-256; save it again"
            )
        os.fsync(self._file.fileno())
        self._file.close()
        self._part.replace(self.path)
        # Windows opens no directories, and makes names durable by itself.
        if hasattr(os, "O_DIRECTORY"):
            directory = os.open(self.path.parent, os.O_RDONLY)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)
        return Snapshot(self.path, self.size, self.version)

    def close(self) -> None:
        """Delete the file, unless it is finished."""
        if not self._file.closed:
            self._file.close()
            self._part.unlink(missing_ok=True)
