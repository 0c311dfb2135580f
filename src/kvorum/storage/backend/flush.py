"""The two jobs that flush a sealed batch; both run in the flusher's thread.

A write transaction belongs to the thread that began it, so one thread must stage and commit.
Staging holds the interpreter's lock throughout and takes four times as long beside a busy loop, so
the loop waits for it. A commit is one long call without the lock, and the loop continues.
"""

from dataclasses import dataclass

from kvorum.storage.backend.batch import FlushBatch
from kvorum.storage.backend.defragment import Switch
from kvorum.storage.backend.directory import Current, database_path, write_current
from kvorum.storage.backend.environment import DatabaseWrite, Environment, Environments
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files


@dataclass(slots=True, frozen=True)
class Staged:
    """A transaction that is ready to commit, and its database."""

    environment: Environment
    transaction: DatabaseWrite
    switch: Switch | None


@dataclass(slots=True, frozen=True)
class StageFlush:
    """A flusher's job that the loop waits for: write a batch into a transaction."""

    environment: Environment
    batch: FlushBatch
    switch: Switch | None
    piece_rows: int
    scan_entries: int

    def run(self, files: Files, environments: Environments) -> Staged:  # noqa: ARG002
        """Return the transaction, ready to commit."""
        environment, switch = self.environment, self.switch
        if switch is not None:
            path = database_path(switch.directory, switch.number)
            environment = environments.open(path, switch.map_bytes)
        transaction = environment.begin_write()
        try:
            if switch is not None:
                view = View(self.environment, self.scan_entries)
                try:
                    switch.changes.bring_over(view, transaction, switch.piece_rows)
                finally:
                    view.end()
            self.batch.write_to(transaction, self.piece_rows)
        except BaseException:
            transaction.abort()
            raise
        return Staged(environment, transaction, switch)


@dataclass(slots=True, frozen=True)
class CommitFlush:
    """A flusher's job: make the staged batch durable."""

    staged: Staged

    def run(self, files: Files, environments: Environments) -> Environment:  # noqa: ARG002
        """Commit, switch files if asked to, and return the current database."""
        self.staged.transaction.commit()
        switch = self.staged.switch
        if switch is not None:
            write_current(files, switch.directory, Current(switch.number))
        return self.staged.environment
