"""What clients were told is judged by what they were permitted: what differs is noticed."""

import base64
from collections.abc import Callable, Iterator
from dataclasses import replace
from tempfile import TemporaryDirectory

import pytest

from kvorum.api.errors import AUTH_OLD_REVISION, PERMISSION_DENIED, Status
from kvorum.api.pb.etcdserverpb import (
    InternalRaftRequest,
    LeaseGrantRequest,
    PutRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.sim.auth_checks import check_visits
from kvorum.sim.faults import without_faults
from kvorum.sim.ledger import Ledger
from kvorum.sim.permissions import DENIED, EMPTY, OLD
from kvorum.sim.plan import BCRYPT_COST, draw_plan
from kvorum.sim.run import Run, memory_directory, stand_ins_installed
from kvorum.sim.users import Realm, Visit
from kvorum.sim.violation import Violation
from kvorum.sim.workloads import ETCD

PUT = "/etcdserverpb.KV/Put"
RANGE = "/etcdserverpb.KV/Range"


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Return a run with users, and with refusals and answers of all kinds."""
    realm = Realm(
        users=2,
        roles=2,
        administrators=2,
        change_gap=0.05,
        disable_chance=0.0,
        token_seconds=300.0,
        password_error_chance=0.0,
    )
    for seed in range(100):
        plan = draw_plan(seed, 3)
        if ETCD not in plan.workload.shapes:
            continue
        plan = replace(plan, realm=realm, faults=without_faults(), fault_seconds=6.0, limits={})
        plan = replace(plan, options=plan.options | {"bcrypt_cost": BCRYPT_COST})
        with TemporaryDirectory(dir=memory_directory()) as directory:
            run = Run(plan, directory, None)
            with stand_ins_installed(run):
                outcome = run.outcome()
        assert not outcome.guarantee, outcome
        if all(find(run, path, refused) for path in (PUT, RANGE) for refused in (True, False)):
            yield run
            return
    raise AssertionError("no seed has everything")


def find(run: Run, path: str, refused: bool) -> list[Visit]:
    assert run.users is not None
    return [
        visit
        for visit in run.users.visits
        if visit.path == path
        and visit.token is not None
        and visit.user.startswith("u")
        and (visit.result == PERMISSION_DENIED if refused else isinstance(visit.result, bytes))
    ]


def judge(run: Run) -> None:
    assert run.users is not None and run.cluster.auditor is not None
    check_visits(run.users, run.cluster.auditor)


@pytest.mark.parametrize("path", [PUT, RANGE])
@pytest.mark.parametrize("refused", [True, False])
def test_the_opposite_of_an_answer_is_noticed(run: Run, path: str, refused: bool) -> None:
    judge(run)
    told: list[bytes | Status] = [b""] if refused else [PERMISSION_DENIED, AUTH_OLD_REVISION]
    visit = find(run, path, refused)[-1]
    before = visit.result
    for result in told:
        visit.result = result
        with pytest.raises(Violation, match="answers are permitted"):
            judge(run)
    visit.result = before
    judge(run)


def test_a_token_of_another_user_is_noticed(run: Run) -> None:
    visit = find(run, RANGE, refused=False)[0]
    before, visit.user = visit.user, "wide"
    with pytest.raises(Violation, match="answers are permitted"):
        judge(run)
    visit.user = before


class Log:
    """Entries for a ledger, one after the other."""

    def __init__(self) -> None:
        self.ledger = Ledger()

    def take(self, user: str = "", revision: int = 0, **request: object) -> str | None:
        """Return why a request is refused."""
        envelope = InternalRaftRequest(**request)  # type: ignore[arg-type]
        envelope.header.ID = 1
        envelope.header.username, envelope.header.auth_revision = user, revision
        self.ledger.take(self.ledger.last + 1, envelope.SerializeToString())
        (kind,) = request
        body = getattr(envelope, kind).SerializeToString()
        return self.ledger.entries[kind, body][-1].refusal

    @property
    def main(self) -> int:
        return self.ledger.main_at(self.ledger.last)


@pytest.fixture
def log() -> Log:
    """Return a log in which `u` may write what begins with `a` as of revision 6, and no more."""
    log = Log()
    password = base64.b64encode(b"hash").decode()
    permission = {"permType": 1, "key": b"a", "range_end": b"b"}
    steps: list[Callable[[], str | None]] = [
        lambda: log.take(auth_user_add={"name": "root", "hashedPassword": password}),
        lambda: log.take(auth_user_grant_role={"user": "root", "role": "root"}),
        lambda: log.take(auth_user_add={"name": "u", "hashedPassword": password}),
        lambda: log.take(auth_role_add={"name": "r"}),
        lambda: log.take(auth_role_grant_permission={"name": "r", "perm": permission}),
        lambda: log.take(auth_user_grant_role={"user": "u", "role": "r"}),
        lambda: log.take(auth_enable={}),
    ]
    assert [step() for step in steps] == [None] * len(steps)
    assert log.ledger.state_at(log.ledger.last).revision == 7
    return log


def test_an_entry_is_judged_for_who_asked_and_when(log: Log) -> None:
    put = PutRequest(key=b"a", value=b"1")
    assert log.take("u", 7, put=put) is None and log.main == 2
    assert log.take("u", 6, put=put) == OLD
    assert log.take(put=put) == EMPTY
    assert log.take("u", 7, put=PutRequest(key=b"b")) == DENIED
    assert log.take("u", 7, put=PutRequest(key=b"a", prev_kv=True)) == DENIED
    assert log.take("root", 7, put=PutRequest(key=b"b")) is None and log.main == 3
    assert log.take("u", 7, auth_role_add={"name": "s"}) == DENIED
    assert log.take("root", 6, auth_role_add={"name": "s"}) is None
    assert log.take("u", 7, put=put) == OLD


def test_nested_transactions_are_judged_whole(log: Log) -> None:
    inner = TxnRequest(success=[RequestOp(request_put=PutRequest(key=b"b"))])
    outer = TxnRequest(
        success=[
            RequestOp(request_put=PutRequest(key=b"a")),
            RequestOp(request_txn=inner),
        ]
    )
    assert log.take("u", 7, txn=outer) == DENIED and log.main == 1
    assert log.take("root", 7, txn=outer) is None and log.main == 2
    assert len(log.ledger.expected[2]) == 2


def test_a_lease_stands_for_all_its_keys(log: Log) -> None:
    assert log.take("u", 7, lease_grant=LeaseGrantRequest(ID=5, TTL=9)) is None
    assert log.take("u", 7, put=PutRequest(key=b"a", lease=5)) is None
    assert log.take("root", 7, put=PutRequest(key=b"z", lease=5)) is None
    assert log.take("u", 7, put=PutRequest(key=b"aa", lease=5)) == DENIED
    assert log.take("u", 7, lease_revoke={"ID": 5}) == DENIED
    main = log.main
    assert log.take("root", 7, lease_revoke={"ID": 5}) is None and log.main == main + 1
    assert [revision & 1 for revision, _ in log.ledger.expected[main + 1]] == [1, 1]
