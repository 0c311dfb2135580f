"""The isolation levels of software transactions."""

from enum import Enum


class Isolation(Enum):
    """How far a transaction is isolated from concurrent ones."""

    SERIALIZABLE_SNAPSHOT = "reads of one revision; nothing read or written has changed since"
    SERIALIZABLE = "reads of one revision; nothing read has changed since"
    REPEATABLE_READS = "every key is read once; nothing read has changed since"
    READ_COMMITTED = "whatever was committed is read; nothing is checked"

    @property
    def is_snapshot(self) -> bool:
        """Whether all reads are of one revision."""
        return self in (Isolation.SERIALIZABLE_SNAPSHOT, Isolation.SERIALIZABLE)
