"""Read a member's replicated state from the backend.

The member reads it at the start and again after installing a snapshot. The watch hub and the
header outlive it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING

from kvorum.api.codec import HeaderEncoder
from kvorum.raft.messages import NO_MEMBERS, ConfState
from kvorum.state.apply.alarms import Alarms
from kvorum.state.apply.state import State
from kvorum.state.auth.store import AuthStore
from kvorum.state.lease.lessor import Lessor, ttl_seconds_min
from kvorum.state.membership.cluster import Membership
from kvorum.state.membership.documents import decode_conf_state
from kvorum.state.mvcc.restore import RowIndex, restore_slices, restore_store
from kvorum.state.mvcc.store import Store
from kvorum.state.mvcc.watch.hub import WatchHub
from kvorum.storage.backend import Backend, BufferLimits, open_backend
from kvorum.storage.backend.buckets import CONF_STATE, META

if TYPE_CHECKING:
    from kvorum.member.config import MemberConfig, Seams

Progress = Callable[[str, int], None]
"""Receives the name and amount of completed work at intervals, for a log line."""


def stored_conf_state(backend: Backend) -> ConfState:
    """Return the members of raft's configuration as of the last applied entry."""
    document = backend.get(META, CONF_STATE)
    return NO_MEMBERS if document is None else decode_conf_state(document)


class RandomFractions:
    """Turns a source of random integers into one of numbers in [0, 1)."""

    __slots__ = ("_below",)

    def __init__(self, below: Callable[[int], int]) -> None:
        self._below = below

    def random(self) -> float:
        """Return a random number in [0, 1)."""
        return self._below(1 << 30) / (1 << 30)


def open_database(config: MemberConfig, seams: Seams) -> Backend:
    """Open the backend with the configured limits."""
    return open_backend(
        seams.files,
        seams.environments,
        f"{config.directory}/backend",
        quota_bytes=config.quota_bytes,
        buffers=BufferLimits(
            flush_seconds=config.flush_seconds, flush_writes=config.flush_writes_max
        ),
        limits=config.limits,
    )


def read_state(
    config: MemberConfig,
    seams: Seams,
    backend: Backend,
    header: HeaderEncoder,
    hub: WatchHub,
    cluster_id: int,
    member_id: int,
    progress: Progress | None = None,
) -> State:
    """Read the whole state from a backend."""
    lessor = _lessor(config, backend)
    lessor.restore()
    rows = None if progress is None else lambda count: progress("rows read", count)
    store = restore_store(backend, lessor, hub, config.limits, rows)
    return _state(config, seams, header, hub, store, lessor, cluster_id, member_id)


def reread_state(
    config: MemberConfig,
    seams: Seams,
    backend: Backend,
    header: HeaderEncoder,
    hub: WatchHub,
    cluster_id: int,
    member_id: int,
    noted: RowIndex | None,
) -> Generator[None, None, State]:
    """Read the whole state, in slices, from a backend that replaced another.

    With `noted`, the index already built from the rows, it does not read the rows again.
    """
    lessor = _lessor(config, backend)
    yield from lessor.restore_slices()
    store = yield from restore_slices(backend, lessor, hub, config.limits, noted)
    return _state(config, seams, header, hub, store, lessor, cluster_id, member_id)


def _lessor(config: MemberConfig, backend: Backend) -> Lessor:
    return Lessor(
        backend,
        config.limits,
        ttl_seconds_min=ttl_seconds_min(config.election_ticks, config.heartbeat_seconds),
        retry_seconds=config.request_seconds_max,
        checkpoints=config.lease_checkpoints,
    )


def _state(
    config: MemberConfig,
    seams: Seams,
    header: HeaderEncoder,
    hub: WatchHub,
    store: Store,
    lessor: Lessor,
    cluster_id: int,
    member_id: int,
) -> State:
    backend = store.backend
    hub.history = store
    cluster = Membership(backend, cluster_id, member_id, learners_max=config.learners_max)
    cluster.restore()
    alarms = Alarms(backend)
    alarms.restore()
    auth = AuthStore(backend)
    auth.restore()
    return State(
        header,
        hub,
        store,
        lessor,
        cluster,
        alarms,
        auth,
        seams.tokens,
        seams.logger,
        config.quota_bytes,
    )
