"""Every RPC, in everybody's name, in every form: the answers are those of a real etcd."""

from collections.abc import Iterator
from itertools import product

import pytest

from kvorum.api.pb import etcdserverpb as pb
from kvorum.server.rpc.table import RPCS
from tests.etcd import is_target
from tests.server.rpc.differences import not_asked
from tests.server.rpc.pair import masked
from tests.server.rpc.pairs import SEQUENCES
from tests.state.auth.asking import hear, path_of
from tests.state.auth.exceptions import is_excepted
from tests.state.auth.people import CALLERS, FOREIGN, USERS, VICTIM, Caller, prepare, refresh
from tests.state.auth.rows import SERVICES, Row
from tests.state.auth.servers import OURS_IS_ETCD, Both, running_both

BOUNDS = (b"\0", b"a", b"b", b"b\0", b"c", b"d", b"d\0", b"e", b"\xff\xff")
"""Where grants begin and end, and places beside them."""

ALWAYS = ("without identity", "bad token", "nobody", "reader", "writer", "owner", "root")
TURNS = 5


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Both]:
    with running_both(tmp_path_factory.mktemp("table"), with_old=True) as found:
        found.settle()
        prepare(found)
        yield found


def test_every_rpc_has_a_row() -> None:
    named = {path_of(row.name) for rows in SERVICES.values() for row in rows()}
    assert named == {rpc.path for rpc in RPCS}


@pytest.mark.long
@pytest.mark.parametrize("service", SERVICES)
def test_every_call_in_everybodys_name(both: Both, service: str) -> None:
    for number, row in enumerate(SERVICES[service]()):
        for caller in callers_of(number):
            ask(both, row, caller)


@pytest.mark.long
def test_what_ends_an_etcd_is_refused_to_those_who_are_not_root(both: Both) -> None:
    undefined = pb.AlarmRequest(action=9)  # type: ignore[arg-type]
    for caller in CALLERS:
        if "root" not in USERS.get(caller.name, ()) and is_target():
            metadata = [caller.metadata_at(server) for server in both]
            both.check("Maintenance/Alarm", undefined, metadata, caller.name)
    root = both.ours.client.ask(
        "Maintenance/Alarm", undefined, metadata=both.ours.metadata_of("root")
    )
    assert root == not_asked("Maintenance/Alarm", undefined)


def callers_of(number: int) -> list[Caller]:
    """Return who makes the call of a row: everybody in campaigns, else some take turns."""
    others = [caller for caller in CALLERS if caller.name not in ALWAYS]
    turns = 1 if SEQUENCES > 1000 else TURNS
    return [caller for caller in CALLERS if caller.name in ALWAYS] + others[number % turns :: turns]


def ask(both: Both, row: Row, caller: Caller) -> None:
    if is_excepted(row.name, row.request, caller.name):
        return
    metadata = [caller.metadata_at(server) for server in both]
    _, theirs = both.check(row.name, row.request, metadata, caller.name)
    if not theirs.is_refusal and row.undo is not None:
        row.undo(both)


def ranges() -> Iterator[tuple[bytes, bytes]]:
    """Return all ranges between places, those to the end, and single keys; none inverted."""
    for key in BOUNDS:
        yield key, b""
        yield key, b"\0"
        yield from ((key, range_end) for range_end in BOUNDS if range_end > key)


@pytest.mark.parametrize(
    "caller",
    [
        pytest.param(each, marks=() if each.name in ALWAYS else pytest.mark.long, id=each.name)
        for each in CALLERS
    ],
)
def test_every_range_to_read_to_write_to_compare_and_to_watch(both: Both, caller: Caller) -> None:
    metadata = [caller.metadata_at(server) for server in both]
    watches = [
        server.client.talk("Watch/Watch", each) for server, each in zip(both, metadata, strict=True)
    ]
    for key, range_end in ranges():
        both.check("KV/Range", pb.RangeRequest(key=key, range_end=range_end), metadata, caller.name)
        # Permission is needed for what is not executed, too.
        delete = pb.DeleteRangeRequest(key=key, range_end=range_end)
        unexecuted = pb.TxnRequest(failure=[pb.RequestOp(request_delete_range=delete)])
        both.check("KV/Txn", unexecuted, metadata, caller.name)
        compare = pb.Compare(key=key, range_end=range_end)
        both.check("KV/Txn", pb.TxnRequest(compare=[compare]), metadata, caller.name)
        create = pb.WatchCreateRequest(key=key, range_end=range_end)
        if is_excepted("Watch/Watch", pb.WatchRequest(create_request=create), caller.name):
            continue
        for watch in watches:
            watch.say(pb.WatchRequest(create_request=create))
        heard = [masked("Watch/Watch", watch.hear()) for watch in watches]
        assert heard[0] == heard[1], f"{caller.name} watches {create}"
    for watch in watches:
        watch.close()


def inverted_ranges() -> Iterator[tuple[bytes, bytes]]:
    return ((key, end) for key, end in product(BOUNDS, BOUNDS) if b"\0" < end <= key)


@pytest.mark.skipif(OURS_IS_ETCD, reason="etcd's answers depend on the shape of a tree")
@pytest.mark.parametrize("caller", CALLERS, ids=lambda caller: caller.name)
def test_an_inverted_range_needs_what_its_key_needs(both: Both, caller: Caller) -> None:
    """What etcd answers depends on the shape of its tree of grants, so it is asked for the key."""
    metadata = caller.metadata_at(both.ours)
    verdicts = {}
    for key, range_end in inverted_ranges():
        if key not in verdicts:
            point = pb.RangeRequest(key=key)
            asked = hear(both.oracle.client, "KV/Range", point, caller.metadata_at(both.oracle))
            verdicts[key] = asked.status
        request = pb.RangeRequest(key=key, range_end=range_end)
        heard = hear(both.ours.client, "KV/Range", request, metadata)
        assert heard.status == verdicts[key], f"{caller.name}: {request}"
        assert not any(message.kvs for message in heard.messages)


@pytest.mark.parametrize("alarms", [[pb.NOSPACE], [pb.CORRUPT], [pb.NOSPACE, pb.CORRUPT]], ids=str)
def test_alarms_and_refusals_in_their_order(both: Both, alarms: list[pb.AlarmType]) -> None:
    if not is_target():
        pytest.skip("3.5.1 has another order; 'make oracle' builds 3.7.3")
    changes = [pb.AlarmRequest(memberID=5, alarm=alarm) for alarm in alarms]
    for change in changes:
        change.action = pb.AlarmRequest.ACTIVATE
        both.answer("Maintenance/Alarm", change, "root")
    for row in alarmed_rows():
        for caller in CALLERS:
            if caller.name in ALWAYS:
                ask(both, row, caller)
    for change in changes:
        change.action = pb.AlarmRequest.DEACTIVATE
        both.answer("Maintenance/Alarm", change, "root")
    refresh(both)


def alarmed_rows() -> Iterator[Row]:
    """Return what alarms may refuse, and what they do not."""
    for key in (b"c", b"a"):
        put = pb.PutRequest(key=key, prev_kv=True)
        yield Row("KV/Put", put)
        yield Row("KV/DeleteRange", pb.DeleteRangeRequest(key=key))
        yield Row("KV/Range", pb.RangeRequest(key=key))
        yield Row("KV/Txn", pb.TxnRequest(success=[pb.RequestOp(request_put=put)]))
        read = pb.RequestOp(request_range=pb.RangeRequest(key=key))
        yield Row("KV/Txn", pb.TxnRequest(success=[read]))
    yield Row("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=75, TTL=100))
    yield Row("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=FOREIGN))
    yield Row("Lease/LeaseKeepAlive", pb.LeaseKeepAliveRequest(ID=FOREIGN))
    yield Row("KV/Compact", pb.CompactionRequest(revision=1))
    add = pb.AuthUserAddRequest(name=VICTIM, password="secret")
    yield Row("Auth/UserAdd", add)
    yield Row("Auth/UserGet", pb.AuthUserGetRequest(name=VICTIM))
    yield Row("Auth/Authenticate", pb.AuthenticateRequest(name="reader", password="secret"))
    yield Row("Maintenance/Alarm", pb.AlarmRequest())
