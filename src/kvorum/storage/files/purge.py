"""Removes the oldest files of a kind, by count.

Names sort by age. A purge removes a file only if its lock is free: a process that still needs the
file holds the lock. The first locked file ends the purge, so that no gap is left.
"""

from dataclasses import dataclass

from kvorum.storage.files.interface import Files, Opening


@dataclass(slots=True, frozen=True)
class Purge:
    """A job that keeps the newest files with an ending in a directory and removes the others."""

    directory: str
    ending: str
    keep: int

    def run(self, files: Files) -> list[str]:
        """Return the removed names; with `keep` 0, remove nothing."""
        names = [name for name in files.list(self.directory) if name.endswith(self.ending)]
        removed: list[str] = []
        for name in names[: max(0, len(names) - self.keep)] if self.keep else []:
            path = f"{self.directory}/{name}"
            descriptor = files.open(path, Opening.WRITE)
            try:
                if not files.lock(descriptor):
                    break
                files.unlink(path)
            finally:
                files.close(descriptor)
            # Sync each removal, oldest first, so that a power cut leaves no gap.
            files.sync_directory(self.directory)
            removed.append(name)
        return removed
