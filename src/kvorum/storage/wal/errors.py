"""Errors of a log. Every error names the place and tells the operator what to do."""

_REPLACE = (
    "Do not edit the file. If the cluster has a quorum without this member, remove the member, "
    "empty its data directory and add it again; otherwise restore the cluster from a snapshot."
)


class WalError(Exception):
    """Raised for a log that cannot be used as it is."""


class CorruptLogError(WalError):
    """Raised for damaged durable data, with which a member must not start."""

    def __init__(self, path: str, offset: int, record: int, problem: str) -> None:
        super().__init__(f"{path}: record {record} at offset {offset}: {problem}. {_REPLACE}")
        self.path = path
        self.offset = offset
        self.record = record
        self.problem = problem


class SegmentsMissingError(WalError):
    """Raised for missing files of a log."""

    def __init__(self, directory: str, problem: str) -> None:
        super().__init__(
            f"{directory}: {problem}. Put the missing files back from where they were moved to. "
            + _REPLACE
        )


class LogLockedError(WalError):
    """Raised when another process has locked the log."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: locked by another process; stop the member that runs on this data "
            f"directory, or give this one a directory of its own"
        )


class LogExistsError(WalError):
    """Raised when a new log would replace an existing one."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"{directory}: holds a log already; start the member from it, or move it away first"
        )


class SnapshotNotInLogError(WalError):
    """Raised when the log has no record of the snapshot from which it should be read."""

    def __init__(self, directory: str, index: int, term: int, problem: str) -> None:
        super().__init__(
            f"{directory}: no record of the snapshot at index {index}, term {term}: {problem}. "
            f"The snap and wal directories must be of one member and one time. {_REPLACE}"
        )
