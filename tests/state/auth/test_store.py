"""The store of users and roles does what the plain model does, and finds it all on the disk."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.authpb import Permission, Role, User
from kvorum.state.auth.rows import AuthRowError
from kvorum.state.auth.store import AuthStore
from kvorum.storage.backend.buckets import AUTH, AUTH_ENABLED, AUTH_REVISION, AUTH_ROLES, AUTH_USERS
from tests.database import Database
from tests.state.auth.model import KEYS, OPEN_END, READWRITE, ROOT, Model, Permitted
from tests.state.lease.model import outcome

# Few, so that they meet. Their order by bytes is not that of code points in UTF-16.
USERS = [ROOT, "a", "\uffff", "\U00010000"]
ROLES = [ROOT, "r", "\uffff", "\U00010000"]
users = st.sampled_from([*USERS, ""])
roles = st.sampled_from([*ROLES, ""])
hashes = st.sampled_from([b"hash", b"\xff\0", b"", None])
keys = st.sampled_from(KEYS[:5])
ends = st.one_of(keys, st.just(b""), st.just(OPEN_END))
types = st.sampled_from([*range(3), 7])
LOOKS = [
    (KEYS[1], b"", False),
    (KEYS[1], b"", True),
    (KEYS[0], KEYS[2], False),
    (KEYS[2], OPEN_END, True),
]
granted = st.none() | st.builds(Permitted, types, st.just(b"") | keys, ends)


class StoreMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory: tempfile.TemporaryDirectory[str] | None = None
        self.model = Model()
        self.seen: list[tuple[User | Role, bytes]] = []

    @initialize(in_lmdb=st.integers(0, 9).map(lambda draw: draw == 0), is_guarded=st.booleans())
    def open(self, in_lmdb: bool, is_guarded: bool) -> None:
        if in_lmdb:
            self.directory = tempfile.TemporaryDirectory()
        self.database = Database(Path(self.directory.name) if self.directory else None)
        self.store = AuthStore(self.database.backend)
        self.add_role("r")
        self.grant_permission("r", Permitted(READWRITE, KEYS[1], KEYS[2]))
        for name in (ROOT, "a"):
            self.add_user(name, b"hash", False)
        self.grant_role(ROOT, ROOT)
        self.grant_role("a", "r")
        if is_guarded:
            self.enable()

    def teardown(self) -> None:
        if hasattr(self, "database"):
            self.database.close()
        if self.directory is not None:
            self.directory.cleanup()

    # Changes: each is refused as by the model, or returns whether there was something to do.

    def is_alike(self, expected: Status | None, found: object, before: int) -> None:
        if expected is None:
            assert not isinstance(found, Status)
        else:
            assert found == expected
            assert self.model.revision == before
        if isinstance(found, bool):
            assert found == (self.model.revision > before)

    @rule()
    def enable(self) -> None:
        was_enabled = self.model.is_enabled
        expected, found = self.model.enable(), outcome(self.store.enable)
        assert found == (expected or not was_enabled)

    @rule()
    def disable(self) -> None:
        before = self.model.revision
        self.model.disable()
        self.is_alike(None, self.store.disable(), before)

    @rule(name=users, password=hashes, no_password=st.booleans())
    def add_user(self, name: str, password: bytes | None, no_password: bool) -> None:
        before = self.model.revision
        expected = self.model.add_user(name, password, no_password=no_password)
        found = outcome(lambda: self.store.add_user(name, password, no_password=no_password))
        self.is_alike(expected, found, before)

    @rule(name=users)
    def delete_user(self, name: str) -> None:
        before = self.model.revision
        expected = self.model.delete_user(name)
        self.is_alike(expected, outcome(lambda: self.store.delete_user(name)), before)

    @rule(name=users, password=hashes)
    def change_password(self, name: str, password: bytes | None) -> None:
        before = self.model.revision
        expected = self.model.change_password(name, password)
        found = outcome(lambda: self.store.change_password(name, password))
        self.is_alike(expected, found, before)

    @rule(name=users, role=roles)
    def grant_role(self, name: str, role: str) -> None:
        before = self.model.revision
        expected = self.model.grant_role(name, role)
        self.is_alike(expected, outcome(lambda: self.store.grant_role(name, role)), before)

    @rule(name=users, role=roles)
    def revoke_role(self, name: str, role: str) -> None:
        before = self.model.revision
        expected = self.model.revoke_role(name, role)
        self.is_alike(expected, outcome(lambda: self.store.revoke_role(name, role)), before)

    @rule(name=roles)
    def add_role(self, name: str) -> None:
        before = self.model.revision
        expected = self.model.add_role(name)
        self.is_alike(expected, outcome(lambda: self.store.add_role(name)), before)

    @rule(name=roles)
    def delete_role(self, name: str) -> None:
        before = self.model.revision
        expected = self.model.delete_role(name)
        self.is_alike(expected, outcome(lambda: self.store.delete_role(name)), before)

    @rule(name=roles, given=granted)
    def grant_permission(self, name: str, given: Permitted | None) -> None:
        before = self.model.revision
        message = None
        if given is not None:
            message = Permission(permType=given.type, key=given.key, range_end=given.end)  # type: ignore[arg-type]
        expected = self.model.grant_permission(name, given)
        found = outcome(lambda: self.store.grant_permission(name, message))
        self.is_alike(expected, found, before)

    @rule(name=roles, key=keys, end=ends)
    def revoke_permission(self, name: str, key: bytes, end: bytes) -> None:
        before = self.model.revision
        expected = self.model.revoke_permission(name, key, end)
        found = outcome(lambda: self.store.revoke_permission(name, key, end))
        self.is_alike(expected, found, before)

    # Questions.

    @rule(name=users, late=st.integers(-2, 2), key=keys, end=ends, is_write=st.booleans())
    def may(self, name: str, late: int, key: bytes, end: bytes, is_write: bool) -> None:
        for revision in (0, max(0, self.model.revision + late)):
            expected = self.model.keys_refusal(name, revision, key, end, is_write)
            assert self.store.keys_refusal(name, revision, key, end, is_write) == expected
            is_root = name in self.model.users and ROOT in self.model.users[name].roles
            is_new = revision >= self.model.revision
            assert self.store.is_all_permitted(name, revision) == (is_root and is_new)

    @rule(is_flushed=st.booleans())
    def restart(self, is_flushed: bool) -> None:
        if is_flushed:
            self.database.flush()
            self.store = AuthStore(self.database.reopen())
        else:
            self.store = AuthStore(self.database.backend)
        self.store.restore()

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "store"):
            return
        again = AuthStore(self.database.backend)
        again.restore()
        for store in (self.store, again):
            self.is_like_the_model(store)
        backend, (user_rows, role_rows) = self.database.backend, self.model.rows()
        assert dict(backend.items(AUTH_USERS)) == user_rows
        assert dict(backend.items(AUTH_ROLES)) == role_rows
        rows = dict(backend.items(AUTH))
        assert rows[AUTH_REVISION] == self.model.revision.to_bytes(8, "big")
        assert rows.get(AUTH_ENABLED, b"\0") == (b"\1" if self.model.is_enabled else b"\0")

    def is_like_the_model(self, store: AuthStore) -> None:
        model = self.model
        assert (store.is_enabled, store.revision) == (model.is_enabled, model.revision)
        assert store.users == sorted(model.users, key=str.encode)
        assert store.roles == sorted(model.roles, key=str.encode)
        for name in (*USERS, ""):
            assert store.admin_refusal(name) == model.admin_refusal(name)
            user, person = store.user(name), model.users.get(name)
            assert (user is None) == (person is None)
            if user is not None and person is not None:
                assert list(user.roles) == person.roles
                assert (user.password, user.options.no_password) == (
                    person.password,
                    person.no_password,
                )
            for key, end, is_write in LOOKS:
                expected = model.keys_refusal(name, model.revision, key, end, is_write)
                assert store.keys_refusal(name, store.revision, key, end, is_write) == expected
        for name, permitted in model.roles.items():
            told = [(each.permType, each.key, each.range_end) for each in store.permissions(name)]
            stored = [(each.type, each.key, each.end) for each in permitted]
            assert told == ([(READWRITE, b"", OPEN_END)] if name == ROOT else stored)

    @invariant()
    def what_was_seen_stays_as_it_was(self) -> None:
        """Whoever looks at a user or a role keeps what it has seen, whatever changes then."""
        for row, before in self.seen:
            assert row.SerializeToString() == before
        if hasattr(self, "store"):
            rows = [*map(self.store.user, USERS), *map(self.store.role, ROLES)]
            self.seen = [(row, row.SerializeToString()) for row in rows if row is not None]


@pytest.mark.long
def test_store_and_model_agree() -> None:
    run_state_machine_as_test(
        StoreMachine, settings=settings(max_examples=80, stateful_step_count=40, deadline=None)
    )


@pytest.fixture
def store() -> AuthStore:
    return AuthStore(Database().backend)


def test_rows_as_etcd_writes_them() -> None:
    database = Database()
    store = AuthStore(database.backend)
    store.add_role("r")
    store.grant_permission("r", Permission(key=b"k"))
    store.grant_permission(
        "r", Permission(permType=Permission.READWRITE, key=b"a", range_end=b"\0")
    )
    store.add_user("u", b"$2a$", no_password=False)
    store.add_user("n", b"dropped", no_password=True)
    store.grant_role("u", "r")
    backend = database.backend
    assert dict(backend.items(AUTH_USERS)) == {
        b"u": b"\x0a\x01u\x12\x04$2a$\x1a\x01r\x22\x00",
        b"n": b"\x0a\x01n\x22\x02\x08\x01",
    }
    assert dict(backend.items(AUTH_ROLES)) == {
        b"r": b"\x0a\x01r\x12\x08\x08\x02\x12\x01a\x1a\x01\x00\x12\x03\x12\x01k"
    }
    assert dict(backend.items(AUTH)) == {b"authRevision": bytes(7) + b"\x07"}
    database.close()


def test_the_same_key_is_granted_a_third_time_as_with_etcd(store: AuthStore) -> None:
    """Only the first permission with a key is looked at; what holds is the union."""
    store.add_role("r")
    for end, kind in ((b"b", 0), (b"c", 1), (b"c", 0)):
        store.grant_permission("r", Permission(permType=kind, key=b"a", range_end=end))  # type: ignore[arg-type]
    found = [(each.range_end, each.permType) for each in store.permissions("r")]
    assert found == [(b"b", 0), (b"c", 1), (b"c", 0)]
    store.add_user("u", b"", no_password=True)
    store.grant_role("u", "r")
    for is_write in (False, True):
        assert store.keys_refusal("u", store.revision, b"b", b"", is_write) is None
    # Revoking takes all of them, whatever their type.
    store.revoke_permission("r", b"a", b"c")
    assert [each.range_end for each in store.permissions("r")] == [b"b"]


def test_what_a_newer_version_stored_in_a_row_is_kept() -> None:
    database = Database()
    newer = b"\xfa\x01\x03new"
    user = User(name=b"u", password=b"hash").SerializeToString() + newer
    role = Role(name=b"r").SerializeToString() + newer
    database.backend.put(AUTH_USERS, b"u", user)
    database.backend.put(AUTH_ROLES, b"r", role)
    store = AuthStore(database.backend)
    store.restore()
    assert store.revision == 1
    store.grant_role("u", "r")
    store.grant_permission("r", Permission(key=b"k"))
    store.revoke_permission("r", b"k", b"")
    store.change_password("u", b"other")
    for bucket, name in ((AUTH_USERS, b"u"), (AUTH_ROLES, b"r")):
        assert newer in (database.backend.get(bucket, name) or b"")
    database.close()


@pytest.mark.parametrize("bucket", [AUTH_USERS, AUTH_ROLES])
def test_a_row_that_cannot_be_read_is_named(bucket: bytes) -> None:
    database = Database()
    database.backend.put(bucket, b"name", b"\xff")
    with pytest.raises(AuthRowError, match=rf"bucket {bucket.decode()}, row 6e616d65: .*damaged"):
        AuthStore(database.backend).restore()
    database.close()


def test_root_permits_everything_even_if_the_role_does_not_exist(store: AuthStore) -> None:
    store.add_user(ROOT, b"", no_password=True)
    store.grant_role(ROOT, ROOT)
    assert store.role(ROOT) is None
    with pytest.raises(StatusError, match="role name not found"):
        store.permissions(ROOT)
    assert store.keys_refusal(ROOT, store.revision, b"\0", OPEN_END, True) is None
    store.enable()
    assert store.admin_refusal(ROOT) is None
    # Who may do everything is asked for the revision all the same.
    refusal = store.keys_refusal(ROOT, store.revision - 1, b"k", b"", False)
    assert refusal is not None and refusal.text.endswith("revision of auth store is old")
