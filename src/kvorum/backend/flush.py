"""The jobs that bring a sealed batch to the disk. Both run in one thread, the flusher's.

A write transaction belongs to the thread that began it, so staging and committing cannot be
shared out. LMDB's Python binding takes the interpreter's lock for every row, so the loop waits
while a batch is staged; a commit is one long call without the lock, and the loop goes on.
"""

from dataclasses import dataclass

from kvorum.backend.batch import Batch
from kvorum.backend.environment import Environment, Environments, Sizes, WriteTransaction
from kvorum.files import Files


@dataclass(slots=True, frozen=True)
class StageFlush:
    """A job of the flusher, for which the loop waits: put a batch into a transaction."""

    environment: Environment
    batch: Batch

    def run(self, files: Files, environments: Environments) -> WriteTransaction:  # noqa: ARG002
        """Return the transaction, ready to be committed."""
        transaction = self.environment.begin_write()
        self.batch.write_to(transaction)
        return transaction


@dataclass(slots=True, frozen=True)
class CommitFlush:
    """A job of the flusher: make the staged batch durable."""

    transaction: WriteTransaction

    def run(self, files: Files, environments: Environments) -> Sizes:  # noqa: ARG002
        """Return how large the database is now."""
        return self.transaction.commit()
