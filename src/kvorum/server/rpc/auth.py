"""The Auth service: users, roles, and tokens in exchange for passwords.

The service proposes changes like writes, and members check permissions when they apply them.
Queries are linearizable reads. Jobs hash passwords, and compare them with hashes, in the order of
`PasswordQueue`. Only hashes go into the log.
"""

import base64
from functools import partial
from typing import Any

from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.coverage import reach
from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.etcdserverpb import (
    AuthDisableRequest,
    AuthEnableRequest,
    AuthenticateRequest,
    AuthenticateResponse,
    AuthRoleAddRequest,
    AuthRoleDeleteRequest,
    AuthRoleGetRequest,
    AuthRoleGetResponse,
    AuthRoleGrantPermissionRequest,
    AuthRoleListRequest,
    AuthRoleListResponse,
    AuthRoleRevokePermissionRequest,
    AuthStatusRequest,
    AuthStatusResponse,
    AuthUserAddRequest,
    AuthUserChangePasswordRequest,
    AuthUserDeleteRequest,
    AuthUserGetRequest,
    AuthUserGetResponse,
    AuthUserGrantRoleRequest,
    AuthUserListRequest,
    AuthUserListResponse,
    AuthUserRevokeRoleRequest,
    InternalAuthenticateRequest,
)
from kvorum.api.wire import parse_message
from kvorum.member.jobs import ExecutorKind
from kvorum.member.member import Member
from kvorum.member.parts import Part, run_job
from kvorum.member.waits import Propose, ReadIndex, Steps, Woken
from kvorum.server.rpc.interface import RpcOutput, canonical
from kvorum.server.rpc.password_queue import PasswordQueue
from kvorum.state.apply import requests
from kvorum.state.apply.callers import NOBODY, Caller, current
from kvorum.state.apply.permissions import admin_refusal
from kvorum.state.apply.results import Result
from kvorum.state.apply.state import State
from kvorum.state.auth.passwords import PASSWORD_BYTES_MAX, CheckPassword, HashPassword, draw_salt
from kvorum.state.auth.tokens import LETTERS, PREFIX_LETTERS

CHECK_SECONDS = 0.5
"""How often a waiting call advances the queue, because the budget grows with time."""


class Auth:
    """Serves the calls of Auth."""

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge
        self._passwords = PasswordQueue(member.config.limits.password_prompt_seconds_max)

    # Queries.

    def status(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer whether authentication is enabled; refuse only callers with an invalid token."""
        parse_message(AuthStatusRequest, payload)
        self._member.replica.read(call, caller, _status, None, linearizable=True)

    def user_get(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer which roles a user has; users may query themselves."""
        request = parse_message(AuthUserGetRequest, payload)
        self._member.replica.read(call, caller, _user, request.name, linearizable=True)

    def user_list(self, call: int, caller: Caller, payload: bytes) -> None:
        """List the users."""
        parse_message(AuthUserListRequest, payload)
        self._member.replica.read(call, caller, _users, None, linearizable=True)

    def role_get(self, call: int, caller: Caller, payload: bytes) -> None:
        """Answer what a role permits; users may query their own roles."""
        request = parse_message(AuthRoleGetRequest, payload)
        self._member.replica.read(call, caller, _role, request.role, linearizable=True)

    def role_list(self, call: int, caller: Caller, payload: bytes) -> None:
        """List the roles."""
        parse_message(AuthRoleListRequest, payload)
        self._member.replica.read(call, caller, _roles, None, linearizable=True)

    # Changes.

    def enable(self, call: int, caller: Caller, payload: bytes) -> None:
        """Enable authentication."""
        self._propose(call, caller, requests.AUTH_ENABLE, parse_message(AuthEnableRequest, payload))

    def disable(self, call: int, caller: Caller, payload: bytes) -> None:
        """Disable authentication."""
        self._propose(
            call, caller, requests.AUTH_DISABLE, parse_message(AuthDisableRequest, payload)
        )

    def user_delete(self, call: int, caller: Caller, payload: bytes) -> None:
        """Remove a user."""
        request = parse_message(AuthUserDeleteRequest, payload)
        self._propose(call, caller, requests.USER_DELETE, request)

    def user_grant_role(self, call: int, caller: Caller, payload: bytes) -> None:
        """Give a user a role."""
        request = parse_message(AuthUserGrantRoleRequest, payload)
        self._propose(call, caller, requests.USER_GRANT_ROLE, request)

    def user_revoke_role(self, call: int, caller: Caller, payload: bytes) -> None:
        """Take a role from a user."""
        request = parse_message(AuthUserRevokeRoleRequest, payload)
        self._propose(call, caller, requests.USER_REVOKE_ROLE, request)

    def role_add(self, call: int, caller: Caller, payload: bytes) -> None:
        """Add a role."""
        self._propose(call, caller, requests.ROLE_ADD, parse_message(AuthRoleAddRequest, payload))

    def role_delete(self, call: int, caller: Caller, payload: bytes) -> None:
        """Remove a role."""
        self._propose(
            call, caller, requests.ROLE_DELETE, parse_message(AuthRoleDeleteRequest, payload)
        )

    def role_grant_permission(self, call: int, caller: Caller, payload: bytes) -> None:
        """Grant a role a permission."""
        request = parse_message(AuthRoleGrantPermissionRequest, payload)
        self._propose(call, caller, requests.ROLE_GRANT_PERMISSION, request)

    def role_revoke_permission(self, call: int, caller: Caller, payload: bytes) -> None:
        """Revoke a permission of a role."""
        request = parse_message(AuthRoleRevokePermissionRequest, payload)
        self._propose(call, caller, requests.ROLE_REVOKE_PERMISSION, request)

    def _propose(self, call: int, caller: Caller, kind: int, request: Message) -> None:
        self._member.replica.propose(call, caller, kind, canonical(request), request)

    # Passwords.

    def user_add(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Add a user; with `no_password`, ignore the password in the request."""
        request = parse_message(AuthUserAddRequest, payload)
        request.hashedPassword = ""
        if request.options.no_password:
            request.password = ""
            self._propose(call, caller, requests.USER_ADD, request)
            return None
        return self._hash_and_propose(call, caller, requests.USER_ADD, request)

    def user_change_password(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Give a user another password, or the hash of one."""
        request = parse_message(AuthUserChangePasswordRequest, payload)
        if not request.password:
            self._propose(call, caller, requests.USER_CHANGE_PASSWORD, request)
            return None
        return self._hash_and_propose(call, caller, requests.USER_CHANGE_PASSWORD, request)

    def _hash_and_propose(
        self,
        call: int,
        caller: Caller,
        kind: int,
        request: AuthUserAddRequest | AuthUserChangePasswordRequest,
    ) -> Result | None:
        # Etcd hashes before it checks the caller, so this one refusal comes first.
        if len(request.password.encode()) > PASSWORD_BYTES_MAX:
            return errors.PASSWORD_TOO_LONG
        member = self._member
        if (
            member.state.auth.is_enabled
            and (refusal := current(member.state, caller).refusal) is not None
        ):
            return refusal
        self._edge.mark_waiting(call)
        member.start(call, caller, self._hash_then_propose(caller.remote(call), kind, request))
        return None

    def _hash_then_propose(
        self, client: str, kind: int, request: AuthUserAddRequest | AuthUserChangePasswordRequest
    ) -> Steps:
        member = self._member
        salt = draw_salt(member.seams.random_below)
        work = HashPassword(request.password, member.config.bcrypt_cost, salt)
        hashed: bytes = yield from self._run_password_job(client, work)
        request.password = ""
        request.hashedPassword = base64.b64encode(hashed).decode()
        answer: Result = yield Propose(kind, canonical(request), request)
        return answer

    def authenticate(self, call: int, caller: Caller, payload: bytes) -> None:
        """Return a token in exchange for a user's name and password."""
        request = parse_message(AuthenticateRequest, payload)
        # Ignore a token or certificate of the caller: the entry's header names no user.
        self._edge.mark_waiting(call)
        self._member.start(
            call, NOBODY, self._log_in(caller.remote(call), request.name, request.password)
        )

    def _log_in(self, client: str, name: str, password: str) -> Steps:
        member = self._member
        deadline = member.now + member.config.request_seconds_max
        while member.now < deadline:
            refusal: Status | None = yield ReadIndex()
            if refusal is not None:
                return refusal
            revision = member.state.auth.revision
            yield from self._check_password(client, name, password)
            prefix = "".join(
                LETTERS[member.seams.random_below(len(LETTERS))] for _ in range(PREFIX_LETTERS)
            )
            entry = InternalAuthenticateRequest(name=name, simple_token=prefix)
            answer: Result = yield Propose(requests.AUTHENTICATE, canonical(entry), entry)
            if isinstance(answer, Status):
                return answer
            # With another revision, the password may have changed: check it again.
            if member.state.auth.revision == revision:
                return (yield from self._add_token(answer, name, revision))
            reach("login restarted")
        return errors.TIMEOUT

    def _check_password(self, client: str, name: str, password: str) -> Part[None]:
        """Compare a password with its hash; raise StatusError if the login fails."""
        auth = self._member.state.auth
        if not auth.is_enabled:
            raise StatusError(errors.AUTH_NOT_ENABLED)
        user = auth.user(name)
        if user is None:
            raise StatusError(errors.AUTH_FAILED)
        if user.options.no_password:
            raise StatusError(errors.NO_PASSWORD_USER)
        is_right = yield from self._run_password_job(client, CheckPassword(user.password, password))
        if not is_right:
            self._member.logger.info(f"invalid password for user {name!a}")
            raise StatusError(errors.AUTH_FAILED)

    def _add_token(self, answer: bytes, name: str, revision: int) -> Steps:
        """Return the response, signing the token if the applier did not."""
        response = AuthenticateResponse.FromString(answer)
        if not response.token:
            seams = self._member.seams
            signing = self._member.state.tokens.signing_job(name, revision, seams.wall_clock())
            response.token = yield from run_job(ExecutorKind.POOL, signing)
        return response.SerializeToString()

    def _run_password_job(self, client: str, work: HashPassword | CheckPassword) -> Part[Any]:
        """Run a password job of a client when its turn comes, and return the result.

        Raises StatusError if too many passwords wait, or if the turn does not come in time.
        """
        member, queue = self._member, self._passwords
        deadline = member.now + member.config.request_seconds_max
        turn = queue.join(client, work.seconds, member.now)
        if turn is None:
            raise StatusError(errors.REQUEST_TOO_MANY_REQUESTS)
        has_started = False
        try:
            while turn.executor is None:
                if member.now >= deadline:
                    raise StatusError(errors.TIMEOUT)
                yield Woken(turn.wake_by, min(deadline, member.now + CHECK_SECONDS))
                if turn.is_refused:
                    raise StatusError(errors.REQUEST_TOO_MANY_REQUESTS)
                # The budget grows with time, so a process may be available by now.
                queue.advance(member.now)
            has_started = True
        finally:
            if not has_started:
                queue.leave(turn, member.now)
        return (yield from run_job(turn.executor, work, partial(self._release, turn.executor)))

    def _release(self, executor: ExecutorKind) -> None:
        self._passwords.release(executor, self._member.now)


def _status(state: State, caller: Caller, _request: object) -> Result:
    auth = state.auth
    if auth.is_enabled and (refusal := current(state, caller).refusal) is not None:
        return refusal
    return _answer(state, AuthStatusResponse(enabled=auth.is_enabled, authRevision=auth.revision))


def _user(state: State, caller: Caller, name: str) -> Result:
    refusal = admin_refusal(state, caller)
    if refusal is not None and not _is_own_name(state, caller, name):
        return refusal
    user = state.auth.user(name)
    if user is None:
        return errors.USER_NOT_FOUND
    return _answer(state, AuthUserGetResponse(roles=user.roles))


def _is_own_name(state: State, caller: Caller, name: str) -> bool:
    caller = current(state, caller)
    return caller.refusal is None and caller.user == name


def _users(state: State, caller: Caller, _request: object) -> Result:
    refusal = admin_refusal(state, caller)
    return refusal or _answer(state, AuthUserListResponse(users=state.auth.users))


def _role(state: State, caller: Caller, name: str) -> Result:
    refusal = admin_refusal(state, caller)
    if refusal is not None and not _has_role(state, caller, name):
        return refusal
    try:
        permissions = state.auth.permissions(name)
    except StatusError as error:
        return error.status
    return _answer(state, AuthRoleGetResponse(perm=permissions))


def _has_role(state: State, caller: Caller, name: str) -> bool:
    caller = current(state, caller)
    user = None if caller.refusal is not None else state.auth.user(caller.user)
    return user is not None and name in user.roles


def _roles(state: State, caller: Caller, _request: object) -> Result:
    refusal = admin_refusal(state, caller)
    return refusal or _answer(state, AuthRoleListResponse(roles=state.auth.roles))


def _answer(state: State, response: Message) -> bytes:
    return state.header.field(state.store.revision) + response.SerializeToString()
