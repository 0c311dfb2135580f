"""The replicated state of a member: everything that entries change and that reads see.

A member has one `State` at a time. Installing a snapshot builds another one and replaces one
reference to it, so no procedure may keep a state, or a part of one, while it waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvorum.state.apply.requests import PUT
from kvorum.storage.backend.quota import effective_quota

if TYPE_CHECKING:
    from kvorum.api.codec import HeaderEncoder
    from kvorum.raft.logger import Logger
    from kvorum.state.apply.alarms import Alarms
    from kvorum.state.auth.store import AuthStore
    from kvorum.state.auth.tokens import Tokens
    from kvorum.state.lease.lessor import Lessor
    from kvorum.state.membership.cluster import Membership
    from kvorum.state.mvcc.store import Store
    from kvorum.state.mvcc.watch.hub import WatchHub

_PLAIN_PUT_ROOM: Final = 64 << 20
"""With more room than this under the quota, plain puts run without being measured."""


class State:
    """Keys, leases, users, alarms and members as of the last applied entry.

    The last three attributes pass the time in and requests out: an applier cannot read a clock,
    propose an entry or take a snapshot, so the member does that before and after each entry.
    """

    __slots__ = (
        "_quota_bytes",
        "_room",
        "alarms",
        "applied",
        "applied_term",
        "auth",
        "backend",
        "cluster",
        "exceeds_quota",
        "header",
        "hub",
        "lessor",
        "limits",
        "logger",
        "now",
        "store",
        "tokens",
        "wants_snapshot",
    )

    def __init__(
        self,
        header: HeaderEncoder,
        hub: WatchHub,
        store: Store,
        lessor: Lessor,
        cluster: Membership,
        alarms: Alarms,
        auth: AuthStore,
        tokens: Tokens,
        logger: Logger,
        quota_bytes: int,
    ) -> None:
        self.header = header
        self.hub = hub
        self.backend = store.backend
        self.store = store
        self.limits = store.limits
        self.lessor = lessor
        self.cluster = cluster
        self.alarms = alarms
        self.auth = auth
        self.tokens = tokens
        self.logger = logger
        self._quota_bytes = quota_bytes
        self._room = 0
        self.measure_room()
        self.applied = self.backend.applied_index
        """The index of the last applied entry; its effects are in the backend."""
        self.applied_term = self.backend.applied_term
        header.set_raft_term(self.applied_term)
        self.now = 0.0
        """The time at which the current entry is applied; the member sets it before the entry."""
        self.exceeds_quota = False
        """An entry exceeded the quota: the member raises the alarm and clears this."""
        self.wants_snapshot = False
        """An entry asks for a Raft snapshot: the member takes one and clears this."""

    def note_applied(self, index: int, term: int) -> None:
        """Note the last applied entry, whose effects are in the backend."""
        if index > self.applied:
            self.applied, self.applied_term = index, term
            self.backend.set_applied(index, term)

    # Quota.

    def measure_room(self) -> None:
        """Recompute how many bytes are left under the quota."""
        quota = effective_quota(self._quota_bytes)
        used = self.backend.size_bytes + self.backend.pending_bytes
        self._room = 1 << 62 if quota is None else quota - used

    def fits_quota(self, cost: int) -> bool:
        """Return whether a write of this cost fits the quota."""
        return cost < self._room

    def accepts_puts(self) -> bool:
        """Return whether only missing permissions can refuse a put without options."""
        return self._room > _PLAIN_PUT_ROOM and self.alarms.refusal(PUT) is None

    def accepts_plain_puts(self) -> bool:
        """Return whether nothing can refuse an anonymous put without options."""
        return not self.auth.is_enabled and self.accepts_puts()
