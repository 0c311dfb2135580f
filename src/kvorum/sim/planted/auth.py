"""Planted bugs of authentication: wrong permission checks, or checks against the wrong state."""

from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvorum.api.errors import Status, StatusError
from kvorum.api.requests import Operation, Put, Txn
from kvorum.member import apply
from kvorum.member import replica as replica_module
from kvorum.member.replica import Replica
from kvorum.raft.entries import EntryType
from kvorum.state.apply import administration, permissions, requests
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.apply.state import State
from kvorum.state.auth.store import AuthStore
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.state.mvcc.slices import Meter


@contextmanager
def apply_what_was_asked_as_of_an_old_revision() -> Iterator[None]:
    """Check only the user's permissions, and ignore changes since the entry was proposed."""
    keys_refusal, is_all_permitted = AuthStore.keys_refusal, AuthStore.is_all_permitted

    def checked(
        store: AuthStore, user: str, revision: int, key: bytes, range_end: bytes, is_write: bool
    ) -> Status | None:
        newest = max(revision, store.revision) if revision else 0
        return keys_refusal(store, user, newest, key, range_end, is_write)

    def permitted(store: AuthStore, user: str, revision: int) -> bool:
        return is_all_permitted(store, user, max(revision, store.revision))

    with (
        patch.object(AuthStore, "keys_refusal", checked),
        patch.object(AuthStore, "is_all_permitted", permitted),
    ):
        yield


@contextmanager
def leave_nested_transactions_unchecked() -> Iterator[None]:
    """Check the operations of a transaction, but not those of nested transactions."""
    original = permissions._branch_refusal

    def branch_refusal(
        state: State, caller: Caller, operations: Sequence[Operation], meter: Meter
    ) -> Generator[None, None, Status | None]:
        plain = [each for each in operations if not isinstance(each, Txn)]
        return (yield from original(state, caller, plain, meter))

    with patch.object(permissions, "_branch_refusal", branch_refusal):
        yield


@contextmanager
def permit_by_the_newest_grants() -> Iterator[None]:
    """Check entries against the permissions that hold after all entries known to be committed."""
    original = permissions.keys_refusal

    def keys_refusal(
        state: State, caller: Caller, key: bytes, range_end: bytes, *, is_write: bool
    ) -> Status | None:
        store = state.auth
        if caller.front is not Front.LOG or caller.revision < store.revision:
            return original(state, caller, key, range_end, is_write=is_write)
        assert applying is not None and applying.state is state
        newest = _newest(applying)
        return newest.keys_refusal(caller.user, newest.revision, key, range_end, is_write)

    apply_entries = apply.apply_entries
    applying: Replica | None = None

    def note_replica(replica: Replica, deadline: float) -> None:
        nonlocal applying
        applying = replica
        apply_entries(replica, deadline)

    with (
        patch.object(permissions, "keys_refusal", keys_refusal),
        patch.object(replica_module, "apply_entries", note_replica),
    ):
        yield


def _newest(replica: Replica) -> AuthStore:
    """Return the users and roles as they will be after all queued entries are applied."""
    before = replica.state.auth
    nowhere: Any = SimpleNamespace(put=lambda *_: None, delete=lambda *_: None)
    store = AuthStore(nowhere)
    store.is_enabled, store.revision = before.is_enabled, before.revision
    store._users, store._roles = dict(before._users), dict(before._roles)
    later: Any = SimpleNamespace(
        auth=store, tokens=SimpleTokens(1.0), logger=replica.logger, applied=0
    )
    queue = replica.apply_queue
    waiting = [entry for message in queue.messages for entry in message.entries]
    for entry in islice(waiting, queue.position, None):
        if entry.type == EntryType.NORMAL and entry.data:
            kind, _, body, _ = requests.decode(entry.data)
            decode, change = administration._CHANGES.get(kind, (None, None))
            if decode is not None and change is not None:
                with suppress(StatusError):
                    change(later, decode(body))
    return store


@contextmanager
def keep_the_tokens_of_users_that_are_gone() -> Iterator[None]:
    """Keep a user's tokens valid after the user is deleted or its password changes."""

    def forget(_tokens: SimpleTokens, _user: str) -> None:
        pass

    with patch.object(SimpleTokens, "forget", forget):
        yield


@contextmanager
def take_the_short_way_past_permissions() -> Iterator[None]:
    """Apply plain puts and transactions without a permission check."""

    def plain_put_refusal(_state: State, _caller: Caller, _request: Put) -> Status | None:
        return None

    with (
        patch.object(State, "accepts_plain_puts", State.accepts_puts),
        patch.object(apply, "plain_put_refusal", plain_put_refusal),
    ):
        yield
