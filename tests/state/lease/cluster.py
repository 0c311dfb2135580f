"""Three lessors, one log, one clock: elections, restarts and lost proposals, without a network.

What the leader proposes is applied by everyone at once, or lost if it stops leading first; its
checkpoints may wait in the log for a while.
"""

from kvorum.api.limits import WorkLimits
from kvorum.state.lease import Lessor, NotRenewed
from tests.database import Database

EXTEND_SECONDS = 1.0
INTERVAL_SECONDS = 5.0
RETRY_SECONDS = 7.0
TURN_SECONDS = 0.25


class LeaseCluster:
    def __init__(self, *, checkpoints: bool) -> None:
        self.now = 0.0
        self.checkpoint_seconds = INTERVAL_SECONDS if checkpoints else None
        self.databases = [Database() for _ in range(3)]
        self.lessors = [self._lessor(each) for each in self.databases]
        self.leader = 0
        self.revoked: dict[int, float] = {}
        # Checkpoints that are proposed and not applied.
        self.log: list[tuple[int, int]] = []
        self.elect(0)

    def _lessor(self, database: Database) -> Lessor:
        return Lessor(
            database.backend,
            WorkLimits(lease_checkpoint_seconds=self.checkpoint_seconds or 0.0),
            retry_seconds=RETRY_SECONDS,
            checkpoints=self.checkpoint_seconds is not None,
        )

    def close(self) -> None:
        for database in self.databases:
            database.close()

    @property
    def primary(self) -> Lessor:
        return self.lessors[self.leader]

    def elect(self, number: int, *, is_lost: bool = False) -> None:
        """Let another member lead; earlier proposals are lost, or applied before it counts the
        time."""
        self.primary.demote()
        self.leader = number
        if is_lost:
            self.log.clear()
        self.commit()
        self.primary.promote(self.now, EXTEND_SECONDS)

    def restart(self, number: int) -> None:
        """Restart a member, which does not lead afterwards."""
        if number == self.leader:
            self.elect((number + 1) % len(self.lessors))
        database = self.databases[number]
        database.flush()
        database.reopen()
        self.lessors[number] = self._lessor(database)
        self.lessors[number].restore()

    def grant(self, lease_id: int, ttl: int) -> None:
        for lessor in self.lessors:
            lessor.grant(lease_id, ttl, self.now)

    def renew(self, lease_id: int, *, is_lost: bool = False) -> bool:
        """Renew as a member does; `is_lost` loses the checkpoint that may be needed before."""
        answer = self.primary.renew(lease_id, self.now)
        if answer is NotRenewed.CHECKPOINTED and not is_lost:
            self.commit()
            self.checkpoint(lease_id, 0)
            answer = self.primary.renew(lease_id, self.now)
        return isinstance(answer, int)

    def checkpoint(self, lease_id: int, remaining: int) -> None:
        for lessor in self.lessors:
            lessor.checkpoint(lease_id, remaining, self.now)

    def commit(self) -> None:
        """Apply the checkpoints that wait in the log."""
        waiting, self.log = self.log, []
        for lease_id, remaining in waiting:
            self.checkpoint(lease_id, remaining)

    def turn(self, *, is_lost: bool = False, is_slow: bool = False) -> None:
        """Let time pass, and the leader propose what is due; on followers nothing is due."""
        self.now += TURN_SECONDS
        for number, lessor in enumerate(self.lessors):
            revokes = lessor.take_expired(self.now, 500)
            checkpoints = lessor.take_due_checkpoints(self.now)
            if number != self.leader:
                assert not revokes and not checkpoints
            elif not is_lost:
                lessor.note_proposed_checkpoints(checkpoints)
                self.log += checkpoints
                if revokes or not is_slow:
                    self.commit()
                for lease_id in revokes:
                    self.revoked[lease_id] = self.now
                    for each in self.lessors:
                        each.forget(lease_id)

    def pass_time(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.turn()
