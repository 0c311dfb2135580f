"""What can be wrong with a log. Every error names the place and says what the operator can do."""

_REPLACE = (
    "Do not edit the file. If the cluster has a quorum without this member, remove the member, "
    "empty its data directory and add it anew; otherwise restore the cluster from a snapshot."
)


class WalError(Exception):
    """The log cannot be used as it is."""


class CorruptLogError(WalError):
    """Data that was durable is damaged: the member must not start."""

    def __init__(self, path: str, offset: int, record: int, problem: str) -> None:
        super().__init__(f"{path}: record {record} at offset {offset}: {problem}. {_REPLACE}")
        self.path = path
        self.offset = offset
        self.record = record
        self.problem = problem


class SegmentsMissingError(WalError):
    """Files that the log needs are not there."""

    def __init__(self, directory: str, problem: str) -> None:
        super().__init__(
            f"{directory}: {problem}. Put the missing files back from where they were moved to. "
            + _REPLACE
        )


class LogLockedError(WalError):
    """Another process writes to this log."""

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path}: locked by another process; stop the member that runs on this data "
            f"directory, or give this one a directory of its own"
        )


class LogExistsError(WalError):
    """A new log was to be made where there is one."""

    def __init__(self, directory: str) -> None:
        super().__init__(
            f"{directory}: holds a log already; start the member from it, or move it away first"
        )


class SnapshotNotInLogError(WalError):
    """The log has no record of the snapshot it is to be read from."""

    def __init__(self, directory: str, index: int, term: int, problem: str) -> None:
        super().__init__(
            f"{directory}: no record of the snapshot at index {index}, term {term}: {problem}. "
            f"The snap and wal directories must be of one member and one time. {_REPLACE}"
        )
