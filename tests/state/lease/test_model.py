"""A lessor on a real backend does what the plain model does, whatever happens to both."""

import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvorum.api.errors import (
    LEADER_CHANGED,
    LEASE_EXIST,
    LEASE_NOT_FOUND,
    LEASE_TTL_TOO_LARGE,
)
from kvorum.api.limits import PRODUCTION
from kvorum.state.lease import Lessor, NotRenewed, TimeToLive
from tests.database import Database
from tests.state.lease.model import Model, finish, outcome

TTL_MIN, RETRY_SECONDS = 2, 7.0
# Few, so that they meet.
IDS = st.sampled_from([1, (1 << 63) - 1, -(1 << 63)])
KEYS = st.sampled_from([b"a", b"b", b"c"])
# Quarters of a second add up exactly.
SPANS = st.integers(0, 40).map(lambda quarters: quarters / 4)


class LessorMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory: tempfile.TemporaryDirectory[str] | None = None
        self.now = 1000.0
        self.model = Model(TTL_MIN, RETRY_SECONDS)

    @initialize(in_lmdb=st.integers(0, 9).map(lambda draw: draw == 0))
    def open(self, in_lmdb: bool) -> None:
        if in_lmdb:
            self.directory = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.directory.name) if self.directory else None)
        self.lessor = Lessor(
            self.database.backend, PRODUCTION, ttl_seconds_min=TTL_MIN, retry_seconds=RETRY_SECONDS
        )
        for lease_id in (1, -(1 << 63)):
            self.grant(lease_id, 10)

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        if self.directory is not None:
            self.directory.cleanup()

    @rule(lease_id=IDS, ttl=st.integers(-5, 30) | st.sampled_from([9 * 10**9, 9 * 10**9 + 1]))
    def grant(self, lease_id: int, ttl: int) -> None:
        answer = outcome(lambda: self.lessor.grant(lease_id, ttl, self.now))
        if ttl > 9 * 10**9:
            assert answer == LEASE_TTL_TOO_LARGE
        elif self.model.find(lease_id) is not None:
            assert answer == LEASE_EXIST
        else:
            assert answer == self.model.grant(lease_id, ttl, self.now)

    @rule(lease_id=IDS, detaches=st.booleans())
    def revoke(self, lease_id: int, detaches: bool) -> None:
        grant = self.model.find(lease_id)
        if grant is None:
            assert outcome(lambda: self.lessor.sorted_keys(lease_id)) == LEASE_NOT_FOUND
            assert outcome(lambda: self.lessor.forget(lease_id)) == LEASE_NOT_FOUND
            return
        keys = self.lessor.sorted_keys(lease_id)
        assert finish(self.lessor.sorted_keys_in_slices(lease_id))[0] == keys
        assert keys == sorted(grant.keys)
        for key in keys if detaches else []:
            self.lessor.detach(lease_id, key)
        self.lessor.forget(lease_id)
        self.model.revoke(lease_id)

    @rule(lease_id=IDS, key=KEYS)
    def attach(self, lease_id: int, key: bytes) -> None:
        if self.model.find(lease_id) is not None:
            self.lessor.attach(lease_id, key)
            self.model.attach(lease_id, key)
        else:
            assert not self.lessor.reattach(lease_id, key)

    @rule(lease_id=IDS, key=KEYS)
    def detach(self, lease_id: int, key: bytes) -> None:
        self.lessor.detach(lease_id, key)
        self.model.detach(lease_id, key)

    @rule(span=SPANS)
    def wait(self, span: float) -> None:
        self.now += span

    @rule(extend=SPANS, suspended=st.booleans())
    def promote(self, extend: float, suspended: bool) -> None:
        if suspended:
            # Demoted before it was done: nothing came of it.
            slices = self.lessor.promote_in_slices(self.now, extend)
            if next(slices, StopIteration) is not StopIteration:
                self.lessor.demote()
                assert next(slices, StopIteration) is StopIteration
                self.model.is_primary = False
                return
        self.lessor.promote(self.now, extend)
        self.model.promote(self.now, extend)

    @rule()
    def demote(self) -> None:
        self.lessor.demote()
        self.model.is_primary = False

    @rule(lease_id=IDS)
    def renew(self, lease_id: int) -> None:
        answer = self.lessor.renew(lease_id, self.now)
        grant = self.model.find(lease_id)
        if not self.model.is_primary:
            assert answer is NotRenewed.NOT_PRIMARY
        elif grant is None:
            assert answer is NotRenewed.NOT_FOUND
        elif grant.expiry <= self.now:
            assert answer is NotRenewed.EXPIRED
        elif grant.remaining:
            assert answer is NotRenewed.CHECKPOINTED
        else:
            assert answer == grant.ttl
            grant.expiry = self.now + grant.ttl

    @rule(lease_id=IDS, remaining=st.integers(0, 30))
    def checkpoint(self, lease_id: int, remaining: int) -> None:
        self.lessor.checkpoint(lease_id, remaining, self.now)
        if (grant := self.model.find(lease_id)) is not None:
            grant.remaining = remaining

    @rule(limit=st.integers(0, 5))
    def expire(self, limit: int) -> None:
        expected = self.model.expired(self.now)
        if expected and limit:
            assert self.lessor.next_deadline <= self.now
        found = self.lessor.take_expired(self.now, limit)
        assert len(found) == len(set(found)) == min(limit, len(expected))
        assert set(found) <= expected
        for lease_id in found:
            grant = self.model.find(lease_id)
            assert grant is not None
            grant.asked = self.now

    @precondition(lambda self: self.model.is_primary)
    @rule()
    def sleep_until_something_expires(self) -> None:
        expiries = [grant.expiry for grant in self.model.grants if grant.asked is None]
        if expiries:
            self.now = max(self.now, min(expiries))
            self.expire(5)

    @rule()
    def restart(self) -> None:
        self.database.flush()
        self.lessor = Lessor(
            self.database.reopen(), PRODUCTION, ttl_seconds_min=TTL_MIN, retry_seconds=RETRY_SECONDS
        )
        self.lessor.restore()
        self.model.is_primary = False
        # The store finds the keys, in its own order.
        for key in [b"c", b"a", b"b"]:
            if lease_id := self.model.lease_of(key):
                assert self.lessor.reattach(lease_id, key)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "lessor"):
            return
        assert self.lessor.is_primary == self.model.is_primary
        assert len(self.lessor) == len(self.model.grants)
        for key in (b"a", b"b", b"c"):
            assert self.lessor.lease_of(key) == self.model.lease_of(key)
        for grant in self.model.grants:
            assert grant.id in self.lessor
            assert set(self.lessor.keys_of(grant.id)) == grant.keys
            assert self.lessor.key_count(grant.id) == len(grant.keys)
        listed = self.lessor.leases()
        assert sorted(listed) == sorted(grant.id for grant in self.model.grants)
        if not self.model.is_primary:
            answer = outcome(lambda: self.lessor.time_to_live(1, self.now))
            assert answer == LEADER_CHANGED
            return
        by_id = {grant.id: grant for grant in self.model.grants}
        expiries = [by_id[lease_id].expiry for lease_id in listed]
        assert expiries == sorted(expiries)
        for grant in self.model.grants:
            left = TimeToLive(int(grant.expiry - self.now), grant.ttl)
            assert self.lessor.time_to_live(grant.id, self.now) == left
        assert self.lessor.time_to_live(99, self.now) is None


def test_lessor_and_model_agree() -> None:
    run_state_machine_as_test(
        LessorMachine, settings=settings(max_examples=80, stateful_step_count=50, deadline=None)
    )
