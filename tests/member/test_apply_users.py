"""The short way for users' puts does exactly what the long way does, for any entries.

Two members get the same entries in the same order; one of them never takes the short way. The
parsers that find out whether an entry may go it are compared with the one that reads every entry.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvorum.api.codec import alarm_request, length_delimited, varint
from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthRoleGrantPermissionRequest,
    AuthRoleRevokePermissionRequest,
    AuthUserDeleteRequest,
    PutRequest,
    PutResponse,
    TxnRequest,
)
from kvorum.api.requests import Put
from kvorum.member import apply
from kvorum.state.apply import requests
from kvorum.state.apply.alarms import AlarmType
from kvorum.state.apply.callers import NOBODY, Caller, Front
from kvorum.state.apply.requests import RequestIds, caller_of_identity, decode, split_user_request
from tests.member.harness import Cluster, Machine, keys_of

UINT64_MAX = (1 << 64) - 1
LEASE = 7
OTHER_MEMBER = 0xBEEF

# What is put into the log, one after the other.


@dataclass
class Asked:
    """A put that this member proposes for a user, as of a revision so much later than now."""

    user: str
    late: int
    put: PutRequest


@dataclass
class Foreign:
    """A put that another member proposed, with a header in any form.

    With `is_alike` it has the id of what was last proposed here, and comes before that.
    """

    user: bytes
    late: int
    put: PutRequest
    form: str
    is_alike: bool


@dataclass
class Done:
    """A request of an administrator, or of nobody in particular."""

    kind: int
    body: bytes


Step = Asked | Foreign | Done

FORMS: dict[str, Callable[[bytes, bytes, bytes], bytes]] = {
    "as ours": lambda number, name, revision: number + name + revision,
    "the id last": lambda number, name, revision: name + revision + number,
    "the revision first": lambda number, name, revision: number + revision + name,
    "no revision": lambda number, name, _: number + name,
    "no name": lambda number, _, revision: number + revision,
    "nobody": lambda number, _name, _revision: number,
    "the name twice": lambda number, name, revision: number + name + name + revision,
    "another name before": lambda number, name, revision: number + b"\x12\x01x" + name + revision,
    "the id twice": lambda number, name, revision: number + number + name + revision,
    "a revision that takes more bytes": lambda number, name, revision: (
        number + name + b"\x18" + bytes([revision[-1] | 0x80, 0])
    ),
    "unknown fields": lambda number, name, revision: number + name + revision + b"\x20\x01\x3d1234",
}

keys = st.sampled_from([b"a", b"b", b"c", b"d"])
flags = st.sampled_from([False, False, False, True])
puts = st.builds(
    PutRequest,
    key=keys,
    value=st.sampled_from([b"", b"v", bytes(200)]),
    lease=st.sampled_from([0, 0, 0, LEASE, 99]),
    prev_kv=flags,
    ignore_lease=flags,
)
users = st.sampled_from(["u", "u", "u", "r", "root", "stranger", ""])
late = st.sampled_from([0, 0, 0, 0, 1, -1])


def done(kind: int, request: Any) -> Done:
    return Done(kind, request.SerializeToString())


def granted(key: bytes) -> Done:
    permission = Permission(permType=Permission.WRITE, key=key)
    return done(
        requests.ROLE_GRANT_PERMISSION,
        AuthRoleGrantPermissionRequest(name="role", perm=permission),
    )


def revoked(key: bytes) -> Done:
    request = AuthRoleRevokePermissionRequest(role="role", key=key)
    return done(requests.ROLE_REVOKE_PERMISSION, request)


FULL = alarm_request(1, 1, AlarmType.NO_SPACE)
rare = st.sampled_from(
    [
        granted(b"c"),
        revoked(b"c"),
        revoked(b"a"),
        done(requests.AUTH_DISABLE, AuthDisableRequest()),
        done(requests.AUTH_ENABLE, AuthEnableRequest()),
        done(requests.USER_DELETE, AuthUserDeleteRequest(name="r")),
        done(requests.TXN, TxnRequest()),
        Done(requests.ALARM, FULL),
        Done(requests.ALARM, alarm_request(2, 1, AlarmType.NO_SPACE)),
    ]
)
asked = st.builds(Asked, users, late, puts)
foreign = st.builds(
    Foreign,
    users.map(str.encode) | st.just(b"\xff"),
    late,
    puts,
    st.sampled_from(list(FORMS)),
    flags,
)
steps = st.lists(st.one_of(asked, asked, foreign, rare), max_size=12)


class Applied:
    """A member that is given entries, and what came of them."""

    def __init__(self) -> None:
        self.cluster = Cluster(1)
        self.machine: Machine = self.cluster.leader()
        self.cluster.settle()
        member = self.member = self.machine.running
        member.state.lessor.grant(LEASE, 1000, 0.0)
        auth = member.state.auth
        auth.add_role("role")
        for name, role in (("root", "root"), ("u", "role"), ("r", "role")):
            auth.add_user(name, b"", no_password=True)
            auth.grant_role(name, role)
        for key in (b"a", b"b"):
            kind = Permission.READWRITE if key == b"a" else Permission.WRITE
            auth.grant_permission("role", Permission(permType=kind, key=key))
        auth.enable()
        stream = member.hub.open_stream(9999)
        stream.create(b"\0", b"\0", 0)
        self.cluster.settle()

    def take(self, step: Step) -> None:
        """Propose a step, after those before it."""
        revision = self.member.state.auth.revision
        if isinstance(step, Asked):
            caller = Caller(Front.GRPC, step.user, revision + step.late)
            self.machine.propose(requests.PUT, step.put.SerializeToString(), caller=caller)
            return
        proposals = self.member.replica.proposals
        if isinstance(step, Done):
            caller = Caller(Front.GRPC, "root", revision)
            self.machine.propose(step.kind, step.body, caller=caller)
            return
        number = varint(OTHER_MEMBER << 48 | len(proposals.payloads) + 1)
        is_alike = step.is_alike and bool(proposals.ids)
        if is_alike:
            number = proposals.ids[-1]
        name = length_delimited(b"\x12", step.user)
        at = varint(revision + step.late)
        header = FORMS[step.form](b"\x08" + number, name, b"\x18" + at)
        body = step.put.SerializeToString()
        data = length_delimited(b"\x22", body) + length_delimited(b"\xa2\x06", header)
        # Before ours with the same id, which is still awaited then.
        proposals.payloads.insert(len(proposals.payloads) - is_alike, data)

    def outcome(self) -> tuple[object, ...]:
        """Apply everything; return all that can be seen of it."""
        self.cluster.settle()
        member = self.member
        assert not member.replica.proposals.pending
        return (
            member.state.applied,
            keys_of(self.machine),
            self.machine.replies,
            self.machine.sends,
            sorted(member.state.lessor.keys_of(LEASE)),
            member.state.auth.revision,
            [str(alarm) for alarm in member.state.alarms.raised()],
            member.replica.proposals.pending,
        )


PLAIN = PutRequest(key=b"a", value=b"v")


@pytest.mark.sources
@example([[Done(requests.ALARM, FULL), Asked("u", 0, PLAIN)]], 0)
@example([[done(requests.AUTH_DISABLE, AuthDisableRequest()), Asked("u", -1, PLAIN)]], 0)
@given(st.lists(steps, min_size=1, max_size=3), st.sampled_from([0, 1, 3]))
def test_both_ways_do_the_same(batches: list[list[Step]], slices: int) -> None:
    found = []
    for is_short in (True, False):
        with pytest.MonkeyPatch.context() as patch:
            if not is_short:
                patch.setattr(apply, "_is_plain", lambda _: False)
            applied = Applied()
            applied.cluster.slices = slices
            for batch in batches:
                for step in batch:
                    applied.take(step)
                applied.cluster.settle()
            found.append(applied.outcome())
    assert found[0] == found[1]


def taken(step: Step, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Return whether an entry goes the short way."""
    ways: list[bool] = []
    real = apply._classify_users

    def watched(*arguments: Any) -> Put | None:
        request = real(*arguments)
        ways.append(request is not None)
        return request

    monkeypatch.setattr(apply, "_classify_users", watched)
    applied = Applied()
    applied.take(step)
    applied.outcome()
    assert len(ways) <= 1
    return any(ways)


@pytest.mark.sources
@pytest.mark.parametrize(
    ("step", "is_short"),
    [
        (Asked("u", 0, PLAIN), True),
        (Asked("u", 1, PLAIN), True),
        (Asked("root", 0, PutRequest(key=b"z")), True),
        (Foreign(b"u", 0, PLAIN, "as ours", False), True),
        (Asked("u", -1, PLAIN), False),
        (Asked("u", 0, PutRequest(key=b"c")), False),
        (Asked("u", 0, PutRequest(key=b"a", prev_kv=True)), False),
        (Asked("u", 0, PutRequest(key=b"a", lease=LEASE)), False),
        (Asked("u", 0, PutRequest(key=b"a", ignore_lease=True)), False),
        (Asked("stranger", 0, PLAIN), False),
        (Asked("", 0, PLAIN), False),
        (Foreign(b"u", 0, PLAIN, "nobody", False), False),
        *((Foreign(b"u", 0, PLAIN, form, False), False) for form in list(FORMS)[1:5]),
    ],
)
def test_which_puts_go_the_short_way(
    step: Step, is_short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that most users send; the property above would hold without any of them, too."""
    assert taken(step, monkeypatch) is is_short


def test_an_entry_of_another_member_with_the_id_of_ours_gets_no_answer_of_ours() -> None:
    applied = Applied()
    applied.take(Asked("u", 0, PLAIN))
    applied.take(Foreign(b"u", 0, PutRequest(key=b"b"), "as ours", True))
    applied.take(Foreign(b"r", 0, PLAIN, "as ours", True))
    applied.outcome()
    # The last entry is ours, and answered once; the others are applied, and nobody waits for them.
    (answer,) = applied.machine.replies.values()
    assert isinstance(answer, bytes)
    assert PutResponse.FromString(answer).header.revision == 4
    assert applied.member.state.store.revision_of(b"b") >> 32 == 2
    assert applied.member.state.store.revision_of(b"a") >> 32 == 4


@pytest.mark.sources
def test_the_kept_callers_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "CALLERS_MAX", 3)
    applied = Applied()
    for later in range(10):
        applied.take(Asked("u", later, PLAIN))
        applied.cluster.settle()
        assert 0 < len(applied.member.replica.apply_queue.callers) <= 3
    assert all(isinstance(each, bytes) for each in applied.machine.replies.values())


# What the short way reads.

callers = st.builds(
    Caller,
    st.just(Front.GRPC),
    st.text(max_size=150) | st.just("\udcff"),
    st.integers(0, UINT64_MAX),
)
bodies = st.binary(max_size=200)
kinds = st.sampled_from(range(requests.RANGE, requests.LEASE_CHECKPOINT + 1))


@given(st.integers(0, UINT64_MAX), st.integers(0, requests.START_MAX - 1), kinds, bodies, callers)
def test_an_entry_of_a_users_is_read_in_parts(
    member: int, start: int, kind: int, body: bytes, caller: Caller
) -> None:
    data, encoded_id = RequestIds(member, start).encode(kind, body, caller)
    parts = split_user_request(data)
    if caller.is_nobody:
        assert parts is None
        return
    assert parts is not None
    found_kind, first, end, found_id, identity = parts
    assert (found_kind, data[first:end], found_id) == (kind, body, encoded_id)
    assert identity == caller.identity
    found = caller_of_identity(identity)
    assert found is not None
    assert (found.user, found.revision, found.front) == (caller.user, caller.revision, Front.LOG)


def encoded(kind: int, body: bytes, caller: Caller) -> bytes:
    return RequestIds(1, 1).encode(kind, body, caller)[0]


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """An entry with some of its bytes replaced, removed or added."""
    data = bytearray(draw(st.builds(encoded, kinds, st.binary(max_size=5), callers)))
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(data)))
        removed = draw(st.integers(0, 2))
        data[place : place + removed] = draw(st.binary(max_size=2))
    return bytes(data)


headers = st.lists(
    st.one_of(
        st.integers(0, UINT64_MAX).map(lambda value: b"\x08" + varint(value)),
        st.integers(0, UINT64_MAX).map(lambda value: b"\x18" + varint(value)),
        st.binary(max_size=4).map(lambda value: length_delimited(b"\x12", value)),
        st.binary(max_size=6),
    ),
    max_size=4,
).map(b"".join)
shaped = st.builds(
    lambda tag, body, header: (
        length_delimited(bytes([tag]), body) + length_delimited(b"\xa2\x06", header)
    ),
    st.integers(0, 255),
    st.binary(max_size=5),
    headers,
)


@given(st.one_of(damaged(), shaped, st.binary(min_size=1, max_size=20)).filter(bool))
@example(b"\x22\x00\xa2\x06\x04\x08\x01\x18\x01")
@example(b"\x22\x00\xa2\x06\x05\x08\x80\x01\x18\x01")
@example(b"\x22\x00\xa2\x06\x06\x08\x80\x00\x18\x01\x00")
@example(b"\x22\x00\xa2\x06\x04\x08\x00\x18\x01")
@example(b"\x22\x00\xa2\x06\x04\x08\x01\x12\x05")
@example(b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")
def test_what_is_read_in_parts_is_what_every_entry_is_read_as(data: bytes) -> None:
    parts = split_user_request(data)
    caller = None if parts is None else caller_of_identity(parts[4])
    if parts is None or caller is None or not parts[0]:
        return
    kind, first, end, encoded_id, identity = parts
    found_kind, number, body, found = decode(data)
    assert (found_kind, body, varint(number)) == (kind, data[first:end], encoded_id)
    assert (caller.user, caller.revision) == (found.user, found.revision)
    assert not found.is_nobody
    assert caller.identity == identity == found.identity


@given(st.binary(max_size=30) | headers)
def test_a_user_is_read_only_as_it_is_written(identity: bytes) -> None:
    caller = caller_of_identity(identity)
    if caller is None or caller is NOBODY:
        assert caller is None or not identity
        return
    assert Caller(Front.LOG, caller.user, caller.revision).identity == identity
