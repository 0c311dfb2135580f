"""The simulator's model of users and roles, compared with production's."""

import base64
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.errors import StatusError
from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.sim.auditor import _check_users
from kvorum.sim.permissions import State, changed, name_of
from kvorum.state.apply.administration import _CHANGES
from kvorum.state.apply.requests import decode
from kvorum.state.auth.store import AuthStore
from kvorum.state.auth.tokens import SimpleTokens
from tests.database import Database

KEYS = st.sampled_from([b"a", b"b", b"b\0", b"c", b"d", b"ab"])
ENDS = st.sampled_from([b"", b"\0", b"a", b"b", b"c", b"d", b"e"])
NAMES = st.sampled_from(["root", "u", "v"])
ROLES = st.sampled_from(["root", "r", "s"])
TYPES = st.sampled_from([Permission.READ, Permission.WRITE, Permission.READWRITE])
HASHES = st.binary(max_size=3).map(lambda data: base64.b64encode(data).decode())
PERMISSIONS = st.fixed_dictionaries({"permType": TYPES, "key": KEYS, "range_end": ENDS})


def request(kind: str, **fields: Any) -> Any:
    envelope: Any = InternalRaftRequest
    return st.fixed_dictionaries(fields).map(lambda given: envelope(**{kind: given}))


REQUESTS = st.one_of(
    request("auth_enable"),
    request("auth_disable"),
    request("auth_user_add", name=NAMES, hashedPassword=HASHES),
    request(
        "auth_user_add",
        name=NAMES,
        options=st.just({"no_password": True}),
    ),
    request("auth_user_delete", name=NAMES),
    request("auth_user_change_password", name=NAMES, hashedPassword=HASHES),
    request("auth_user_grant_role", user=NAMES, role=ROLES),
    request("auth_user_revoke_role", name=NAMES, role=ROLES),
    request("auth_role_add", name=ROLES),
    request("auth_role_delete", role=ROLES),
    request("auth_role_grant_permission", name=ROLES, perm=PERMISSIONS),
    request("auth_role_grant_permission", name=ROLES, perm=PERMISSIONS),
    request("auth_role_revoke_permission", role=ROLES, key=KEYS, range_end=ENDS),
)
QUESTIONS = st.lists(st.tuples(NAMES, KEYS, ENDS, st.booleans()), max_size=5)
FIRST = [
    InternalRaftRequest(auth_user_add={"name": "root"}),
    InternalRaftRequest(auth_user_grant_role={"user": "root", "role": "root"}),
    InternalRaftRequest(auth_user_add={"name": "u"}),
    InternalRaftRequest(auth_role_add={"name": "r"}),
    InternalRaftRequest(auth_user_grant_role={"user": "u", "role": "r"}),
    InternalRaftRequest(auth_enable={}),
]


class Quiet:
    """A state, as far as a change of its users needs one."""

    applied = 0

    def __init__(self, auth: AuthStore) -> None:
        self.auth = auth
        self.tokens = SimpleTokens(300.0)
        self.logger = self

    def info(self, _text: str) -> None:
        pass


@given(st.lists(st.tuples(REQUESTS, QUESTIONS), max_size=25))
def test_both_change_and_decide_alike(steps: list[tuple[Any, list[Any]]]) -> None:
    target: Any = Quiet(AuthStore(Database().backend))
    auth, state = target.auth, State()
    for envelope, questions in [*((each, []) for each in FIRST), *steps]:
        kind = name_of(envelope)
        envelope.header.ID = 1
        number, _, body, _ = decode(envelope.SerializeToString())
        parse, change = _CHANGES[number]
        refused = None
        try:
            change(target, parse(body))
        except StatusError as error:
            refused = error.status.text
        state, told = changed(state, kind, getattr(envelope, kind), 1)
        assert refused == told
        _check_users("it", 1, auth, state)
        if not state.is_enabled:
            continue
        for user, key, end, is_write in questions:
            for revision in (0, state.revision - 1, state.revision):
                status = auth.keys_refusal(user, revision, key, end, is_write)
                expected = state.keys_refusal(user, revision, key, end, is_write=is_write)
                assert (status and status.text) == expected
            status = auth.admin_refusal(user)
            assert (status and status.text) == state.admin_refusal(user, state.revision)
