"""Removing the oldest files of a kind, by count.

Names sort by age. A file is removed only if its lock is free: a process that still needs it holds
the lock. The first locked file ends the purge, so that no gap is left.
"""

from dataclasses import dataclass

from kvorum.files.interface import Files, Opening


@dataclass(slots=True, frozen=True)
class Purge:
    """A job: keep the newest files of a directory whose names have an ending."""

    directory: str
    ending: str
    keep: int

    def run(self, files: Files) -> list[str]:
        """Return the names that were removed; nothing is removed for `keep` 0."""
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
            # One name at a time becomes durable, oldest first: a power cut leaves no gap.
            files.sync_directory(self.directory)
            removed.append(name)
        return removed
