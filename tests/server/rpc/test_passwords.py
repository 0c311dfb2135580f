"""Passwords are hashed and compared by jobs, one at a time: who waits, leaves and is refused."""

from typing import Any

import pytest
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member.jobs import ExecutorKind, JobLostError
from kvorum.member.member import Member
from kvorum.network.edge.interface import EdgeEventKind, Metadata
from kvorum.server.rpc.password_queue import PASSWORDS_WAITING_MAX
from kvorum.server.rpc.table import NUMBERS
from kvorum.state.apply import requests
from kvorum.state.apply.callers import Caller, Front
from kvorum.state.auth.passwords import CheckPassword, HashPassword
from kvorum.state.auth.tokens import SimpleTokens
from kvorum.storage.files.memory import MemoryFiles
from tests.member.harness import Cluster, Machine

AUTH = "/etcdserverpb.Auth/"
LOGIN = pb.AuthenticateRequest(name="u", password="secret")
COST = 4


def hashed(password: str) -> bytes:
    return HashPassword(password, COST, bytes(16)).run(MemoryFiles())


class World:
    """A server whose authentication is enabled, and whose password jobs can be held."""

    def __init__(self, is_enabled: bool = True, limits: WorkLimits = PRODUCTION) -> None:
        self.cluster = Cluster(1, bcrypt_cost=COST, limits=limits)
        self.machine: Machine = self.cluster.leader()
        self.member: Member = self.machine.running
        auth = self.member.state.auth
        for name in ("root", "u"):
            auth.add_user(name, hashed("secret"), no_password=False)
        auth.add_user("certified", b"", no_password=True)
        auth.grant_role("root", "root")
        if is_enabled:
            auth.enable()
        self.cluster.settle()

    def hold(self) -> None:
        self.machine.held.add(ExecutorKind.PASSWORDS)

    def release(self) -> None:
        self.machine.held.clear()
        self.machine.run_jobs()
        self.cluster.settle()

    def run_one(self) -> None:
        """Run the job that is held."""
        self.machine.run_job(self.machine.jobs[ExecutorKind.PASSWORDS].popleft())
        self.cluster.settle()

    @property
    def jobs_held(self) -> int:
        return len(self.machine.jobs[ExecutorKind.PASSWORDS])

    @property
    def jobs_run(self) -> int:
        return sum(job.executor is ExecutorKind.PASSWORDS for job in self.machine.jobs_run)

    @property
    def tokens_kept(self) -> int:
        tokens = self.member.state.tokens
        assert isinstance(tokens, SimpleTokens)
        return len(tokens)

    def begin(self, name: str, request: Message, metadata: Metadata | None = None) -> int:
        call = self.cluster.next_call()
        payload = request.SerializeToString()
        self.machine.requests.append((call, NUMBERS[AUTH + name], payload, metadata))
        self.cluster.settle()
        return call

    def leave(self, call: int) -> None:
        self.machine.events.append((EdgeEventKind.ENDED, call, None))
        self.cluster.settle()

    def answer(self, call: int) -> bytes | Status | None:
        return self.machine.replies.get(call)

    def ask(self, name: str, request: Message, metadata: Metadata | None = None) -> Any:
        return self.cluster.answer(self.machine, self.begin(name, request, metadata))

    def change(self, kind: int, request: Message) -> None:
        """Apply a change of an administrator's."""
        caller = Caller(Front.GRPC, "root", 1)
        call = self.machine.propose(kind, request.SerializeToString(), caller=caller)
        assert isinstance(self.cluster.answer(self.machine, call), bytes)

    def last_entry(self, kind: type[Message]) -> Any:
        storage = self.member.replica.storage
        (entry,) = storage.entries(storage.last_index(), storage.last_index() + 1, 1 << 20)
        return kind.FromString(requests.decode(entry.data)[2])


def is_token(answer: object) -> bool:
    return isinstance(answer, bytes) and bool(pb.AuthenticateResponse.FromString(answer).token)


# Waiting.


def test_passwords_wait_for_each_other_and_only_so_many() -> None:
    world = World()
    world.hold()
    under_way = world.begin("Authenticate", LOGIN)
    waiting = [world.begin("Authenticate", LOGIN) for _ in range(PASSWORDS_WAITING_MAX)]
    calls = [under_way, *waiting]
    assert not any(map(world.answer, calls)) and world.jobs_held == 1
    for name, request in (
        ("Authenticate", LOGIN),
        ("UserAdd", pb.AuthUserAddRequest(name="n", password="n")),
        ("UserChangePassword", pb.AuthUserChangePasswordRequest(name="n", password="n")),
    ):
        refused = world.begin(name, request)
        assert world.answer(refused) == errors.REQUEST_TOO_MANY_REQUESTS
    # One that is done makes room for another, and so does one that leaves.
    world.run_one()
    assert is_token(world.answer(under_way)) and world.jobs_held == 1
    calls.append(world.begin("Authenticate", LOGIN))
    world.leave(calls.pop(60))
    calls.append(world.begin("Authenticate", LOGIN))
    assert world.answer(world.begin("Authenticate", LOGIN)) == errors.REQUEST_TOO_MANY_REQUESTS
    world.release()
    assert all(is_token(world.answer(call)) for call in calls)
    assert len({world.answer(call) for call in calls}) == len(calls)
    # In the order in which they came.
    assert [call for call in world.machine.edge.ended if call in calls] == calls
    assert world.jobs_run == len(calls)


def test_what_needs_no_password_does_not_wait() -> None:
    world = World()
    world.hold()
    world.begin("Authenticate", LOGIN)
    for request, status in (
        (pb.AuthenticateRequest(name="stranger", password="x"), errors.AUTH_FAILED),
        (pb.AuthenticateRequest(), errors.AUTH_FAILED),
        (pb.AuthenticateRequest(name="certified", password=""), errors.NO_PASSWORD_USER),
    ):
        assert world.ask("Authenticate", request) == status
    assert world.ask("AuthStatus", pb.AuthStatusRequest()) != errors.TIMEOUT


def test_no_job_is_begun_for_who_has_left() -> None:
    world = World()
    world.hold()
    first, second, third = (world.begin("Authenticate", LOGIN) for _ in range(3))
    assert {first, second, third} <= world.machine.edge.waiting
    world.leave(second)
    # The job of the first is under way: it runs to its end, and its client gets nothing.
    world.leave(first)
    assert world.jobs_held == 1
    world.release()
    assert world.jobs_run == 2
    assert is_token(world.answer(third))
    assert world.answer(first) is None and world.answer(second) is None
    # Nothing was proposed for them, either.
    assert world.tokens_kept == 1


def test_who_waits_too_long_is_told_so() -> None:
    world = World()
    world.hold()
    calls = [world.begin("Authenticate", LOGIN) for _ in range(3)]
    limit = world.member.config.request_seconds_max
    world.cluster.pass_time(limit - 1)
    late = world.begin("Authenticate", LOGIN)
    world.cluster.pass_time(2)
    assert [world.answer(call) for call in calls] == [None, errors.TIMEOUT, errors.TIMEOUT]
    assert world.answer(late) is None
    world.release()
    assert is_token(world.answer(late))


# Failures.


@pytest.mark.parametrize("error", [OSError("no memory"), JobLostError("gone")])
def test_a_job_that_fails_ends_its_call_and_not_the_member(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()

    def fail(_work: object, _files: object, _environments: object) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(CheckPassword, "run", fail)
        patch.setattr(HashPassword, "run", fail)
        for name, request in (
            ("Authenticate", LOGIN),
            ("UserAdd", pb.AuthUserAddRequest(name="n", password="n")),
            ("UserChangePassword", pb.AuthUserChangePasswordRequest(name="u", password="n")),
        ):
            answer = world.ask(name, request)
            assert isinstance(answer, Status) and answer.code is Code.UNKNOWN
            assert "secret" not in answer.text
    assert world.member.stopped is None
    assert is_token(world.ask("Authenticate", LOGIN))


def test_a_wrong_password() -> None:
    world = World()
    for password in ("Secret", "secret ", "", "secret\0", "x" * 1000):
        request = pb.AuthenticateRequest(name="u", password=password)
        assert world.ask("Authenticate", request) == errors.AUTH_FAILED
    assert world.tokens_kept == 0


# What changes while a password is compared.


def test_a_password_that_is_changed_meanwhile_does_not_count() -> None:
    world = World()
    world.hold()
    call = world.begin("Authenticate", LOGIN)
    change = pb.AuthUserChangePasswordRequest(name="u", hashedPassword="YQ==")
    world.change(requests.USER_CHANGE_PASSWORD, change)
    world.release()
    # The old hash was compared, and found right; then the new one.
    assert world.answer(call) == errors.AUTH_FAILED
    assert world.jobs_run == 2


def test_another_change_meanwhile_is_no_obstacle() -> None:
    world = World()
    world.hold()
    call = world.begin("Authenticate", LOGIN)
    world.change(requests.ROLE_ADD, pb.AuthRoleAddRequest(name="r"))
    world.release()
    assert is_token(world.answer(call)) and world.jobs_run == 1 + 1


def test_a_user_that_is_deleted_meanwhile() -> None:
    world = World()
    world.hold()
    call = world.begin("Authenticate", LOGIN)
    world.change(requests.USER_DELETE, pb.AuthUserDeleteRequest(name="u"))
    world.release()
    assert world.answer(call) == errors.AUTH_FAILED
    assert world.tokens_kept == 0


def test_authentication_that_is_disabled_meanwhile() -> None:
    world = World()
    world.hold()
    call = world.begin("Authenticate", LOGIN)
    world.change(requests.AUTH_DISABLE, pb.AuthDisableRequest())
    world.release()
    assert world.answer(call) == errors.AUTH_NOT_ENABLED


# What goes into the log.


def test_only_a_hash_goes_into_the_log() -> None:
    world = World(is_enabled=False)
    request = pb.AuthUserAddRequest(name="n", password="pass", hashedPassword="YQ==")
    assert isinstance(world.ask("UserAdd", request), bytes)
    entry = world.last_entry(pb.AuthUserAddRequest)
    assert entry.password == "" and entry.hashedPassword not in ("", "YQ==")
    user = world.member.state.auth.user("n")
    assert user is not None and user.password.startswith(b"$2a$04$")
    assert CheckPassword(user.password, "pass").run(MemoryFiles())
    change = pb.AuthUserChangePasswordRequest(name="n", password="other", hashedPassword="YQ==")
    assert isinstance(world.ask("UserChangePassword", change), bytes)
    entry = world.last_entry(pb.AuthUserChangePasswordRequest)
    assert entry.password == ""
    user = world.member.state.auth.user("n")
    assert user is not None and CheckPassword(user.password, "other").run(MemoryFiles())
    # Without a password, the hash that a client gives is taken as it is.
    change = pb.AuthUserChangePasswordRequest(name="n", hashedPassword="YQ==")
    assert isinstance(world.ask("UserChangePassword", change), bytes)
    user = world.member.state.auth.user("n")
    assert user is not None and user.password == b"a"


def test_of_a_user_without_a_password_nothing_goes_into_the_log() -> None:
    world = World(is_enabled=False)
    request = pb.AuthUserAddRequest(name="n", password="pass", hashedPassword="YQ==")
    request.options.no_password = True
    assert isinstance(world.ask("UserAdd", request), bytes)
    entry = world.last_entry(pb.AuthUserAddRequest)
    assert (entry.password, entry.hashedPassword) == ("", "")
    assert world.jobs_run == 0


def test_an_empty_password_is_one() -> None:
    world = World()
    token = pb.AuthenticateResponse.FromString(
        world.ask("Authenticate", pb.AuthenticateRequest(name="root", password="secret"))
    ).token
    root = {"token": token.encode()}
    assert isinstance(world.ask("UserAdd", pb.AuthUserAddRequest(name="n"), root), bytes)
    assert is_token(world.ask("Authenticate", pb.AuthenticateRequest(name="n")))
    wrong = pb.AuthenticateRequest(name="n", password="x")
    assert world.ask("Authenticate", wrong) == errors.AUTH_FAILED


@pytest.mark.parametrize("name", ["UserAdd", "UserChangePassword"])
def test_a_password_that_is_too_long_is_refused_before_all_else(name: str) -> None:
    make: Any = {
        "UserAdd": pb.AuthUserAddRequest,
        "UserChangePassword": pb.AuthUserChangePasswordRequest,
    }[name]
    world = World()
    bad = {"token": b"bad"}
    for password in ("x" * 73, "\u00e9" * 37):
        refused = world.ask(name, make(name="n", password=password), bad)
        assert refused == errors.PASSWORD_TOO_LONG
    for password in ("x" * 72, "\u00e9" * 36):
        # No work for who shows a bad token.
        request = make(name="n", password=password)
        assert world.ask(name, request, bad) == errors.INVALID_AUTH_TOKEN
        assert world.jobs_run == 0
    for password in ("x" * 72, "\u00e9" * 36):
        request = make(name="n", password=password)
        assert world.ask(name, request) == errors.USER_EMPTY
    assert world.jobs_run == 2


# Several clients, and the process that gives way.


def test_a_flood_on_one_connection_lets_others_log_in() -> None:
    world = World()
    world.hold()

    def begin(peer: str) -> int:
        call = world.cluster.next_call()
        world.machine.edge.peers[call] = peer
        payload = LOGIN.SerializeToString()
        world.machine.requests.append((call, NUMBERS[AUTH + "Authenticate"], payload, None))
        world.cluster.settle()
        return call

    flood = [begin("1.1.1.1:1") for _ in range(PASSWORDS_WAITING_MAX + 1)]
    assert world.answer(begin("1.1.1.1:1")) == errors.REQUEST_TOO_MANY_REQUESTS
    other = begin("2.2.2.2:2")
    assert world.answer(flood[-1]) == errors.REQUEST_TOO_MANY_REQUESTS
    for _ in range(3):
        world.run_one()
    assert is_token(world.answer(other))
    assert sum(is_token(world.answer(call)) for call in flood) == 2
    world.release()
    assert all(is_token(world.answer(call)) for call in flood[:-1])


def test_a_flood_is_hashed_by_the_process_that_gives_way() -> None:
    one = CheckPassword(hashed("secret"), "secret").seconds
    world = World(limits=WorkLimits(password_prompt_seconds_max=2.5 * one))
    calls = [world.begin("Authenticate", LOGIN) for _ in range(10)]
    assert all(is_token(world.answer(call)) for call in calls)
    places = [job.executor for job in world.machine.jobs_run if isinstance(job.work, CheckPassword)]
    assert places == 3 * [ExecutorKind.PASSWORDS] + 7 * [ExecutorKind.PASSWORDS_IDLE]
    # While the idle process is busy the budget grows: a call that waits notices that by itself.
    world.machine.held.add(ExecutorKind.PASSWORDS_IDLE)
    busy, waiting = (world.begin("Authenticate", LOGIN) for _ in range(2))
    assert world.answer(busy) is None and world.answer(waiting) is None
    world.cluster.pass_time(1)
    assert world.answer(busy) is None and is_token(world.answer(waiting))
