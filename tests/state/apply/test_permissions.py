"""Who may do what: each request is checked in etcd's order, at once or in slices, with one result.

The walk is compared with a plain one over the same request, look-up by look-up.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.errors import PERMISSION_DENIED as DENIED
from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.pb.authpb import Permission
from kvorum.api.requests import Compare, DeleteRange, Operation, Put, Range, Txn
from kvorum.member.member import Member
from kvorum.state.apply import permissions
from kvorum.state.apply.callers import NOBODY, Caller, Front
from kvorum.state.apply.results import Result
from kvorum.state.apply.state import State
from kvorum.state.auth.store import AuthStore
from kvorum.state.mvcc.slices import Meter, Slices, run_to_end
from tests.member.harness import Cluster
from tests.state.auth.model import KEYS, OPEN_END, READ, READWRITE, ROOT, WRITE, Model, Permitted
from tests.state.lease.model import finish

LEASES = {7: KEYS[:3], 8: KEYS[3:4], 9: []}
UNKNOWN_LEASE = 99

keys = st.sampled_from(KEYS[:6])
ends = st.one_of(keys, st.just(b""), st.just(OPEN_END))
flags = st.booleans()
leases = st.sampled_from([0, 0, *LEASES, UNKNOWN_LEASE])
compares = st.builds(lambda key, end: Compare(0, 0, key, end, 0), keys, ends)
operations = st.one_of(
    st.builds(Range, keys, ends),
    st.builds(
        Put, keys, lease=leases, prev_kv=flags, ignore_value=flags, ignore_lease=st.just(False)
    ),
    st.builds(DeleteRange, keys, ends, flags),
    st.none(),
)


def txns(inner: st.SearchStrategy[Operation]) -> st.SearchStrategy[Operation]:
    parts = st.lists(inner, max_size=3)
    return st.builds(Txn, st.lists(compares, max_size=2), parts, parts)


nested = st.recursive(operations, txns, max_leaves=8)
parts = st.lists(nested, max_size=4) | st.lists(operations, max_size=3)
transactions = st.builds(Txn, st.lists(compares, max_size=3), parts, parts)
some = st.lists(
    st.builds(Permitted, st.sampled_from([READ, WRITE, READWRITE, READWRITE]), keys, ends).filter(
        lambda each: each.end in (b"", OPEN_END) or each.end > each.key
    ),
    max_size=4,
)
# All keys but one: most of a walk passes.
gaps = keys.map(
    lambda key: [Permitted(READWRITE, b"\0", key), Permitted(READWRITE, key + b"\0", OPEN_END)][
        key == b"\0" :
    ]
)
grants = st.one_of(some, gaps)
users = st.sampled_from(["u", "u", "u", ROOT, "stranger", ""])
late = st.sampled_from([0, 0, 0, 1, -1, None])


class Look(NamedTuple):
    """A look-up: whether the user may read or write a range."""

    key: bytes
    range_end: bytes
    is_write: bool


class World:
    """A member with users and leases, and a model of the users."""

    def __init__(self) -> None:
        self.member: Member = Cluster(1).leader().running
        for lease, attached in LEASES.items():
            self.member.state.lessor.grant(lease, 1000, 0.0)
            for key in attached:
                self.member.state.lessor.attach(lease, key)
        self.auth, self.model = self.member.state.auth, Model()
        for store in (self.auth, self.model):
            store.add_user(ROOT, b"", no_password=True)
            store.grant_role(ROOT, ROOT)
            store.add_user("u", b"", no_password=True)
            store.add_role("r")
            store.grant_role("u", "r")
            store.enable()

    def grant(self, granted: list[Permitted]) -> None:
        """Let the user do exactly this."""
        for store in (self.auth, self.model):
            store.delete_role("r")
            store.add_role("r")
            store.grant_role("u", "r")
        for each in granted:
            message = Permission(permType=each.type, key=each.key, range_end=each.end)  # type: ignore[arg-type]
            self.auth.grant_permission("r", message)
            self.model.grant_permission("r", each)
        assert self.auth.revision == self.model.revision

    def caller(self, user: str, late: int | None) -> Caller:
        """Return a user as of a revision so much later than the current one; None: of none."""
        return Caller(Front.LOG, user, 0 if late is None else self.auth.revision + late)

    # The plain walk.

    def lease_looks(self, user: str, lease: int, *, is_write: bool = True) -> Iterator[Look]:
        if self.model.admin_refusal(user) is None:
            return
        for key in self.member.state.lessor.keys_of(lease):
            yield Look(key, b"", is_write)

    def put_looks(self, user: str, request: Put) -> Iterator[Look]:
        yield Look(request.key, b"", True)
        if request.lease:
            yield from self.lease_looks(user, request.lease)
        if request.prev_kv:
            yield Look(request.key, b"", False)

    def operation_looks(self, user: str, operation: Operation) -> Iterator[Look]:
        if isinstance(operation, Txn):
            yield from self.txn_looks(user, operation)
        elif isinstance(operation, Put):
            yield from self.put_looks(user, operation)
        elif isinstance(operation, Range):
            yield Look(operation.key, operation.range_end, False)
        elif isinstance(operation, DeleteRange):
            if operation.prev_kv:
                yield Look(operation.key, operation.range_end, False)
            yield Look(operation.key, operation.range_end, True)

    def txn_looks(self, user: str, request: Txn) -> Iterator[Look]:
        for compare in request.compares:
            yield Look(compare.key, compare.range_end, False)
        for operation in (*request.success, *request.failure):
            yield from self.operation_looks(user, operation)

    def judged(self, caller: Caller, looks: Iterator[Look]) -> tuple[Status | None, list[Look]]:
        """Return the first refusal, and what was looked up until then."""
        seen = []
        for look in looks:
            seen.append(look)
            refusal = self.model.keys_refusal(
                caller.user, caller.revision, look.key, look.range_end, look.is_write
            )
            if refusal is not None:
                return refusal, seen
        return None, seen


@pytest.fixture(scope="module")
def world() -> World:
    return World()


@contextmanager
def keys_per_slice(state: State, count: int) -> Iterator[None]:
    """Let the checks of a state take slices of so many keys."""
    state.limits = WorkLimits(slice_keys=count)
    try:
        yield
    finally:
        state.limits = PRODUCTION


@given(grants, users, late, transactions, st.integers(1, 5))
def test_a_transaction_at_once_and_in_slices(
    world: World,
    granted: list[Permitted],
    user: str,
    late: int | None,
    request: Txn,
    size: int,
) -> None:
    world.grant(granted)
    caller = world.caller(user, late)
    expected, _ = world.judged(caller, world.txn_looks(user, request))
    member = world.member
    assert (
        run_to_end(
            permissions.txn_refusal(member.state, caller, request, Meter(member.state.limits))
        )
        == expected
    )
    with keys_per_slice(member.state, size):
        found, _ = finish(
            permissions.txn_refusal(member.state, caller, request, Meter(member.state.limits))
        )
        assert found == expected
        plain = permissions.plain_txn_refusal(member.state, caller, request)
        if plain is not None and not isinstance(plain, Status):
            plain = run_to_end(plain)
        assert plain == expected


@pytest.mark.parametrize("is_nested", [False, True])
def test_the_keys_of_a_lease_count_in_a_transaction(world: World, is_nested: bool) -> None:
    world.grant([Permitted(READWRITE, b"m", b"")])
    caller = world.caller("u", 0)
    for lease, expected in ((0, None), (9, None), (UNKNOWN_LEASE, None), (8, DENIED)):
        request = Txn([], [], [Put(b"m", lease=lease)])
        if is_nested:
            request = Txn([], [request], [])
        checked = permissions.plain_txn_refusal(world.member.state, caller, request)
        if checked is not None and not isinstance(checked, Status):
            checked = run_to_end(checked)
        assert checked == expected


@given(
    grants,
    users,
    late,
    st.builds(Put, keys, lease=leases, prev_kv=flags),
    st.builds(DeleteRange, keys, ends, flags),
    st.integers(1, 5),
)
def test_single_writes(
    world: World,
    granted: list[Permitted],
    user: str,
    late: int | None,
    put: Put,
    delete: DeleteRange,
    size: int,
) -> None:
    world.grant(granted)
    caller, member = world.caller(user, late), world.member
    expected, _ = world.judged(caller, world.put_looks(user, put))
    with keys_per_slice(member.state, size):
        assert (
            run_to_end(
                permissions.put_refusal(member.state, caller, put, Meter(member.state.limits))
            )
            == expected
        )
    if not put.lease:
        assert permissions.plain_put_refusal(member.state, caller, put) == expected
    # By itself, a deletion is refused for what it writes first; the status tells no difference.
    expected, _ = world.judged(caller, world.operation_looks(user, delete))
    assert permissions.delete_refusal(member.state, caller, delete) == expected


Looks = list[Look]


@contextmanager
def recording() -> Iterator[Looks]:
    """Record what is looked up."""
    found: Looks = []
    real = AuthStore.keys_refusal

    def recorded(
        store: AuthStore, user: str, revision: int, key: bytes, range_end: bytes, is_write: bool
    ) -> Status | None:
        found.append(Look(key, range_end, is_write))
        return real(store, user, revision, key, range_end, is_write)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AuthStore, "keys_refusal", recorded)
        yield found


@pytest.fixture
def looks() -> Iterator[Looks]:
    with recording() as found:
        yield found


@pytest.mark.sources
@settings(max_examples=60)
@given(grants, users, late, transactions)
def test_the_order_of_a_transactions_look_ups(
    world: World, granted: list[Permitted], user: str, late: int | None, request: Txn
) -> None:
    world.grant(granted)
    caller, member = world.caller(user, late), world.member
    _, expected = world.judged(caller, world.txn_looks(user, request))
    with recording() as found:
        run_to_end(
            permissions.txn_refusal(member.state, caller, request, Meter(member.state.limits))
        )
    assert found == expected
    if user == ROOT:
        return
    with recording() as found:
        plain = permissions.plain_txn_refusal(member.state, caller, request)
        if plain is not None and not isinstance(plain, Status):
            # What was looked up before it turned out to be long is looked up again.
            found.clear()
            run_to_end(plain)
    assert found == expected


READS_A = [Permitted(READ, b"a", b"")]
WRITES_A = [Permitted(WRITE, b"a", b"")]


@pytest.mark.sources
def test_a_deletion_by_itself_looks_at_writes_first_and_in_a_transaction_at_reads(
    world: World, looks: Looks
) -> None:
    world.grant([Permitted(READWRITE, b"a", b"c")])
    caller, delete = world.caller("u", 0), DeleteRange(b"a", b"b", True)
    permissions.delete_refusal(world.member.state, caller, delete)
    assert looks == [(b"a", b"b", True), (b"a", b"b", False)]
    looks.clear()
    permissions.plain_txn_refusal(world.member.state, caller, Txn([], [delete], []))
    assert looks == [(b"a", b"b", False), (b"a", b"b", True)]


@pytest.mark.sources
def test_both_branches_are_looked_at_and_the_first_refusal_ends_the_walk(
    world: World, looks: Looks
) -> None:
    world.grant(READS_A)
    caller = world.caller("u", 0)
    request = Txn([Compare(0, 0, b"a", b"", 0)], [Range(b"a")], [Range(b"a"), Put(b"a"), Put(b"b")])
    found = permissions.plain_txn_refusal(world.member.state, caller, request)
    assert found == DENIED
    assert looks == [(b"a", b"", False)] * 3 + [(b"a", b"", True)]


def test_what_is_ignored_in_a_put_needs_no_right_to_read(world: World) -> None:
    world.grant(WRITES_A)
    caller, member = world.caller("u", 0), world.member
    # The key's present lease is not looked at, either: it has keys of others.
    member.state.lessor.attach(7, b"a")
    try:
        for put in (Put(b"a", ignore_value=True), Put(b"a", b"v", ignore_lease=True)):
            assert permissions.plain_put_refusal(member.state, caller, put) is None
        assert (
            permissions.plain_put_refusal(member.state, caller, Put(b"a", prev_kv=True)) is not None
        )
    finally:
        member.state.lessor.detach(7, b"a")


def test_a_transaction_with_nothing_to_check_is_anybodys(world: World) -> None:
    for request in (Txn([], [], []), Txn([], [None, Txn([], [], [None])], [])):
        for caller in (NOBODY, world.caller("u", -1), world.caller("stranger", 0)):
            found = permissions.plain_txn_refusal(world.member.state, caller, request)
            assert found is None or run_to_end(found) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("count", [1, permissions.PLAIN_OPERATIONS_MAX + 1, 1000])
@pytest.mark.parametrize("part", ["compares", "success", "failure"])
def test_a_long_transaction_is_checked_in_slices(world: World, part: str, count: int) -> None:
    world.grant([Permitted(READ, b"a", b"b")])
    caller, member = world.caller("u", 0), world.member
    for last, expected in ((b"aa", None), (b"b", DENIED)):
        asked = [b"a"] * (count - 1) + [last]
        parts: dict[str, list[Operation]] = {"success": [], "failure": []}
        if part != "compares":
            parts[part] = [Range(key) for key in asked]
        made = [Compare(0, 0, key, b"", 0) for key in asked] if part == "compares" else []
        checked = permissions.plain_txn_refusal(member.state, caller, Txn(made, **parts))
        if count <= permissions.PLAIN_OPERATIONS_MAX:
            assert checked == expected
            continue
        assert checked is not None and not isinstance(checked, Status)
        found, slices = finish(checked)
        assert found == expected
        assert slices >= (count - 1) // PRODUCTION.slice_keys


@pytest.mark.parametrize("is_write", [False, True])
def test_a_long_lease_is_checked_in_slices(world: World, is_write: bool) -> None:
    member = world.member
    count = 4 * PRODUCTION.slice_keys
    member.state.lessor.grant(1000 + is_write, 1000, 0.0)
    for number in range(count):
        member.state.lessor.attach(1000 + is_write, b"l%04d" % number)
    world.grant([Permitted(READWRITE, b"l", b"m")])
    caller = world.caller("u", 0)

    def checked() -> tuple[Status | None, int]:
        lease = 1000 + is_write
        return finish(
            permissions.lease_refusal(
                member.state, caller, lease, Meter(member.state.limits), is_write=is_write
            )
        )

    refusal, slices = checked()
    assert refusal is None and slices >= 3
    # One right is missing: wherever it is among the keys, the lease is not the user's.
    world.grant([Permitted(READWRITE, b"l", b"l0500"), Permitted(READWRITE, b"l0501", b"m")])
    caller = world.caller("u", 0)
    refusal, slices = checked()
    assert refusal == DENIED and slices <= 4
    # Who has the role `root` is asked for no key.
    caller = world.caller(ROOT, 0)
    assert checked() == (None, 0)


def test_a_lease_that_is_not_known_has_no_keys_to_refuse_for(world: World) -> None:
    world.grant([])
    for caller in (NOBODY, world.caller("stranger", 0)):
        for lease in (9, UNKNOWN_LEASE):
            slices = permissions.lease_refusal(
                world.member.state, caller, lease, Meter(PRODUCTION), is_write=True
            )
            assert run_to_end(slices) is None


def test_a_read_that_is_given_up_releases_what_it_holds(world: World) -> None:
    released: list[bool] = []

    def reading() -> Slices[Result]:
        try:
            yield
            yield
            yield
            return b"answer"
        finally:
            released.append(True)

    # Kept here, so that no collection of garbage does what closing has to do.
    begun = reading()
    next(begun)
    rest = permissions.refuse_if_outdated(world.member.state, NOBODY, begun)
    assert not isinstance(rest, (bytes, tuple))
    rest.close()
    assert released
