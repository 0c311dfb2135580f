"""The jobs that bring a sealed batch to the disk. Both run in one thread, the flusher's.

A write transaction belongs to the thread that began it, so one thread must stage and commit.
Staging holds the interpreter's lock all the time and takes four times as long beside a busy loop,
so the loop waits for it; a commit is one long call without the lock, and the loop goes on.
"""

from dataclasses import dataclass

from kvorum.backend.batch import Batch
from kvorum.backend.defragment import Switch
from kvorum.backend.directory import Current, database_path, write_current
from kvorum.backend.environment import Environment, Environments, WriteTransaction
from kvorum.backend.view import View
from kvorum.files import Files


@dataclass(slots=True, frozen=True)
class Staged:
    """A transaction that is ready to be committed, and the database it will be committed to."""

    environment: Environment
    transaction: WriteTransaction
    switch: Switch | None


@dataclass(slots=True, frozen=True)
class StageFlush:
    """A job of the flusher, for which the loop waits: put a batch into a transaction."""

    environment: Environment
    batch: Batch
    switch: Switch | None

    def run(self, files: Files, environments: Environments) -> Staged:  # noqa: ARG002
        """Return the transaction, ready to be committed."""
        environment, switch = self.environment, self.switch
        if switch is not None:
            path = database_path(switch.directory, switch.number)
            environment = environments.open(path, switch.map_bytes)
        transaction = environment.begin_write()
        try:
            if switch is not None:
                view = View(self.environment)
                try:
                    switch.changes.bring_over(view, transaction)
                finally:
                    view.end()
            self.batch.write_to(transaction)
        except BaseException:
            transaction.abort()
            raise
        return Staged(environment, transaction, switch)


@dataclass(slots=True, frozen=True)
class CommitFlush:
    """A job of the flusher: make the staged batch durable."""

    staged: Staged

    def run(self, files: Files, environments: Environments) -> Environment:  # noqa: ARG002
        """Return the database that counts, in which the batch is durable."""
        self.staged.transaction.commit()
        switch = self.staged.switch
        if switch is not None:
            write_current(files, switch.directory, Current(switch.number))
        return self.staged.environment
