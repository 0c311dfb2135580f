"""Errors of a member's database, with advice for the operator."""


class BackendError(Exception):
    """Raised for a database that cannot be opened, read or written."""


class CorruptionError(BackendError):
    """Raised for a database that has lost or changed data."""

    def __init__(self, path: str, place: str, problem: str) -> None:
        super().__init__(
            f"{path}: {place}: {problem}. The file is damaged: check the disk and the memory of "
            f"this machine, then remove the member from the cluster and add it again with an "
            f"empty directory, or restore a snapshot if it is the only one (docs/recovery.md)"
        )
        self._found = (path, place, problem)

    def __reduce__(self) -> tuple[type["CorruptionError"], tuple[str, str, str]]:
        # A helper process pickles this error to report damage.
        return CorruptionError, self._found


def describe_revision(revision: int) -> str:
    """Return a revision in words."""
    kind = "tombstone" if revision & 1 else "row"
    return f"{kind} of revision {revision >> 32}, sub {(revision & 0xFFFFFFFF) >> 1}"
