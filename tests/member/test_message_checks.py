"""Messages of another member that say anything: none keeps this member from starting again."""

import random
from dataclasses import replace

import pytest

from kvorum.api.errors import MEMBER_NOT_FOUND
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission
from kvorum.api.pb.membershippb import (
    Attributes,
    ClusterMemberAttrSetRequest,
    ClusterVersionSetRequest,
    DowngradeInfoSetRequest,
)
from kvorum.member.errors import MemberStopped
from kvorum.member.message_checks import check_entry
from kvorum.raft.changes import Change, ChangeType, ConfChange, ConfChangeV2
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    ConfState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.wire import encode_conf_change, encode_message
from kvorum.server.peer.transport.frames import decode_checked
from kvorum.state.apply import requests
from kvorum.state.apply.callers import NOBODY, Caller, Front
from kvorum.state.apply.requests import RequestIds
from kvorum.state.membership.documents import MemberDocument, encode_member, encode_promotion
from tests.member.changes import added, change
from tests.member.harness import Cluster, Machine

STRANGER = 0x77
USER = Caller(Front.GRPC, "root", 3)
PUT = pb.PutRequest(key=b"k", value=b"v" * 30)
REQUESTS = {
    requests.PUT: PUT,
    requests.RANGE: pb.RangeRequest(key=b"k", range_end=b"z", limit=3),
    requests.DELETE_RANGE: pb.DeleteRangeRequest(key=b"a", range_end=b"k", prev_kv=True),
    requests.TXN: pb.TxnRequest(
        compare=[pb.Compare(key=b"k", version=1)],
        success=[pb.RequestOp(request_put=PUT)],
        failure=[pb.RequestOp(request_delete_range=pb.DeleteRangeRequest(key=b"k"))],
    ),
    requests.COMPACTION: pb.CompactionRequest(revision=2),
    requests.LEASE_GRANT: pb.LeaseGrantRequest(ID=9, TTL=60),
    requests.LEASE_REVOKE: pb.LeaseRevokeRequest(ID=9),
    requests.ALARM: pb.AlarmRequest(action="ACTIVATE", memberID=1, alarm="NOSPACE"),
    requests.LEASE_CHECKPOINT: pb.LeaseCheckpointRequest(
        checkpoints=[pb.LeaseCheckpoint(ID=9, remaining_TTL=4)]
    ),
    requests.USER_ADD: pb.AuthUserAddRequest(name="u", hashedPassword="aGFzaA=="),
    requests.USER_GRANT_ROLE: pb.AuthUserGrantRoleRequest(user="u", role="r"),
    requests.ROLE_ADD: pb.AuthRoleAddRequest(name="r"),
    requests.ROLE_GRANT_PERMISSION: pb.AuthRoleGrantPermissionRequest(
        name="r", perm=Permission(permType="READWRITE", key=b"k", range_end=b"z")
    ),
    requests.AUTH_ENABLE: pb.AuthEnableRequest(),
    requests.CLUSTER_VERSION_SET: ClusterVersionSetRequest(ver="3.7.0"),
    requests.CLUSTER_MEMBER_ATTR_SET: ClusterMemberAttrSetRequest(
        member_ID=1, member_attributes=Attributes(name="m", client_urls=["http://m:1"])
    ),
    requests.DOWNGRADE_INFO_SET: DowngradeInfoSetRequest(enabled=True, ver="3.6.0"),
}
IDS = RequestIds(0x1234, 5)


def request(kind: int, body: bytes, caller: Caller = NOBODY) -> bytes:
    return IDS.encode(kind, body, caller)[0]


def spoiled(data: bytes, chance: random.Random) -> bytes:
    """Return bytes that are a little, or quite, different."""
    changed = bytearray(data)
    what = chance.randrange(6)
    if not changed or what == 0:
        return chance.randbytes(chance.randrange(40))
    if what == 1:
        return bytes(changed[: chance.randrange(len(changed))])
    if what == 2:
        at = chance.randrange(len(changed))
        changed[at:at] = chance.randbytes(chance.randrange(1, 5))
    else:
        for _ in range(chance.choice((1, 1, 3))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def any_change(chance: random.Random) -> tuple[int, bytes]:
    node = chance.choice((0, 5, 6, 7, (1 << 64) - 1))
    about = node if chance.randrange(3) else 8
    context = encode_member(
        MemberDocument(about, (f"http://m{about}:1",), bool(chance.randrange(2)))
    )
    if chance.randrange(4) == 0:
        context = spoiled(context, chance)
    kind = chance.randrange(4)
    if chance.randrange(6) == 0:
        return encode_conf_change(ConfChangeV2(0, (Change(kind, node),), b""))
    return encode_conf_change(ConfChange(kind, node, context, 3))


def any_entry(term: int, index: int, chance: random.Random) -> Entry:
    """Return an entry that a leader may make, or one that is damaged on the way."""
    if chance.randrange(4) == 0:
        kind, data = any_change(chance)
    else:
        number, message = chance.choice(list(REQUESTS.items()))
        kind, body = EntryType.NORMAL, message.SerializeToString()
        if chance.randrange(3) == 0:
            body = spoiled(body, chance)
        data = request(number, body, chance.choice((NOBODY, NOBODY, USER)))
    if chance.randrange(3) == 0:
        data = spoiled(data, chance)
    if chance.randrange(20) == 0:
        term = chance.choice((0, 1, term + 1))
    if chance.randrange(20) == 0:
        index += chance.choice((-1, 1))
    if chance.randrange(30) == 0:
        kind = chance.randrange(4)
    return Entry(kind, term, index, data)


def any_message(machine: Machine, chance: random.Random) -> Message:
    """Return a message that fits a member's log, or nearly."""
    raft, log = machine.running.replica.node.raft, machine.running.replica.node.raft.log
    term, index = raft.term + chance.choice((0, 1)), log.last_index()
    count = chance.choice((0, 1, 1, 2))
    message = Message(
        chance.choice((MessageType.APP, MessageType.APP, MessageType.APP, chance.randrange(24))),
        to=machine.running.id,
        sender=chance.choice((raft.lead or STRANGER, STRANGER)),
        term=term,
        log_term=log.term_or_zero(index),
        index=index,
        entries=[any_entry(term, index + 1 + at, chance) for at in range(count)],
        commit=index + count,
        context=chance.choice((b"", b"context")),
        reject=chance.randrange(4) == 0,
        vote=chance.choice((0, STRANGER)),
    )
    if chance.randrange(6) == 0:
        field = chance.choice(("term", "log_term", "index", "commit", "sender", "reject_hint"))
        value = chance.choice((0, 1, 2, index + 1, 1 << 32, 1 << 63, (1 << 64) - 1))
        setattr(message, field, value)
    if message.type == MessageType.SNAP:
        state = ConfState((machine.running.id,))
        message = replace(message, entries=(), snapshot=Snapshot(index + 5, term, state, b""))
    return message


def send(machine: Machine, data: bytes) -> None:
    """Let bytes arrive as the front of a member passes them on."""
    try:
        message = decode_checked(data)
    except ValueError:
        return
    # A snapshot comes with its database alone, and another way.
    if message.type != MessageType.SNAP:
        machine.running.receive(message)


def serves(cluster: Cluster, machine: Machine) -> None:
    """Assert that a member that is started again applies what it has."""
    machine.kill()
    machine.start()
    if machine.running.conf_state.voters == (machine.running.id,):
        cluster.leader()
    else:
        # A sound change has added voters, of whom none is there.
        cluster.pass_time(5.0)


@pytest.mark.parametrize("seed", range(6))
def test_whatever_arrives_a_member_can_start_again(seed: int) -> None:
    """The only voter: what it was made to write counts as committed when it leads again."""
    attack(seed, 60)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
def test_whatever_arrives_a_thousand_members_can_start_again() -> None:
    for seed in range(1000, 2000):
        attack(seed, 60)


def attack(seed: int, count: int) -> None:
    chance = random.Random(seed)
    cluster = Cluster(1)
    machine = cluster.leader()
    for _ in range(count):
        data = encode_message(any_message(machine, chance))
        if chance.randrange(5) == 0:
            data = spoiled(data, chance)
        try:
            send(machine, data)
            cluster.pass_time(0.1)
        except MemberStopped:
            serves(cluster, machine)
    serves(cluster, machine)


def appended(machine: Machine, *entries: tuple[int, bytes], **fields: int) -> Message:
    """Return an append of the next leader, whose entries are committed at once."""
    raft = machine.running.replica.node.raft
    term, index = raft.term + 1, raft.log.last_index()
    message = Message(
        MessageType.APP,
        to=machine.running.id,
        sender=STRANGER,
        term=term,
        log_term=raft.term,
        index=index,
        entries=[
            Entry(kind, term, index + 1 + at, data) for at, (kind, data) in enumerate(entries)
        ],
        commit=index + len(entries),
    )
    return replace(message, **fields)  # type: ignore[arg-type]


SOUND = request(requests.PUT, PUT.SerializeToString())
REFUSED: list[tuple[int, bytes]] = [
    (EntryType.NORMAL, b"\xff\xff"),
    (EntryType.NORMAL, b"\x0a"),
    (EntryType.NORMAL, SOUND[:-4]),
    (EntryType.NORMAL, request(999, b"")),
    (EntryType.NORMAL, request(requests.LEASE_GRANT, b"\xff")),
    (EntryType.NORMAL, request(requests.PUT, b"\x12\x01v")),
    (EntryType.NORMAL, request(requests.TXN, b"\x12\x00")),
    (EntryType.NORMAL, request(requests.CLUSTER_VERSION_SET, b"\x0a\x01x")),
    (EntryType.CONF_CHANGE, b"\xff"),
    encode_conf_change(ConfChange(ChangeType.ADD_NODE, 5, b"{", 1)),
    encode_conf_change(ConfChange(ChangeType.ADD_NODE, 5, encode_member(MemberDocument(6)), 1)),
    encode_conf_change(ConfChangeV2(0, (Change(ChangeType.ADD_NODE, 5),), b"")),
]


@pytest.mark.parametrize(("kind", "data"), REFUSED)
def test_what_cannot_be_applied_is_not_written(kind: int, data: bytes) -> None:
    """Neither as an append nor as a proposal that another member forwards."""
    cluster = Cluster(1)
    machine = cluster.leader()
    last = machine.running.replica.node.raft.log.last_index()
    proposal = Message(
        MessageType.PROP, machine.running.id, STRANGER, entries=[Entry(kind, 0, 0, data)]
    )
    for message in (
        proposal,
        appended(machine, (EntryType.NORMAL, SOUND), (kind, data)),
        replace(proposal, entries=[Entry(EntryType.NORMAL, 0, 0, SOUND), *proposal.entries]),
    ):
        send(machine, encode_message(message))
        cluster.pass_time(0.1)
        assert machine.running.replica.node.raft.log.last_index() == last
    # Nothing has happened: it leads, and takes what is sound.
    send(machine, encode_message(replace(proposal, entries=[Entry(EntryType.NORMAL, 0, 0, SOUND)])))
    cluster.pass_time(1.0)
    assert machine.running.replica.node.raft.log.last_index() == last + 1
    serves(cluster, machine)


@pytest.mark.parametrize("fields", [{"term": 0}, {"log_term": 1 << 40}])
def test_an_append_that_no_leader_sends_is_not_written(fields: dict[str, int]) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    last = machine.running.replica.node.raft.log.last_index()
    message = appended(machine, (EntryType.NORMAL, SOUND), **fields)
    message.entries = [replace_term(each, message.term) for each in message.entries]
    send(machine, encode_message(message))
    cluster.pass_time(0.1)
    assert machine.running.replica.node.raft.log.last_index() == last


@pytest.mark.parametrize("node", [0, 8, APPLY_THREAD, APPEND_THREAD])
def test_changes_of_ids_that_clients_make_up_are_applied_everywhere(node: int) -> None:
    """Every one of them is refused when it is applied, and holds no follower up."""
    cluster = Cluster(3)
    leader = cluster.leader()
    for made in (
        ConfChange(ChangeType.REMOVE_NODE, node),
        ConfChange(
            ChangeType.UPDATE_NODE, node, encode_member(MemberDocument(node, ("http://m:1",)))
        ),
        ConfChange(ChangeType.ADD_NODE, node, encode_promotion(node)),
    ):
        assert cluster.answer(leader, change(leader, made)) == MEMBER_NOT_FOUND
    cluster.settle()
    assert len({machine.running.state.applied for machine in cluster}) == 1
    for machine in cluster:
        machine.kill()
        machine.start()
    cluster.leader()


@pytest.mark.parametrize("node", [0, APPLY_THREAD, APPEND_THREAD])
def test_no_member_has_an_id_that_means_something_else(node: int) -> None:
    kind, data = encode_conf_change(added(node, "http://m:1"))
    with pytest.raises(ValueError, match="which cannot be one"):
        check_entry(Entry(kind, 1, 1, data), PRODUCTION.txn_slice_bytes)


def replace_term(entry: Entry, term: int) -> Entry:
    return Entry(entry.type, term, entry.index, entry.data)


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        # What newer versions add to a request has another number.
        (requests.PUT, PUT.SerializeToString() + b"\xa2\x06\x03new"),
        (requests.LEASE_GRANT, b"\x10\x09\x08\x3c\xf8\x07\x01"),
        (requests.TXN, b""),
    ],
)
def test_what_a_newer_version_adds_is_taken(kind: int, body: bytes) -> None:
    cluster = Cluster(1)
    machine = cluster.leader()
    message = appended(machine, (EntryType.NORMAL, request(kind, body)))
    send(machine, encode_message(message))
    cluster.pass_time(0.1)
    assert machine.running.state.applied == message.commit
    serves(cluster, machine)


def test_a_long_transaction_that_is_damaged_stops_the_member_with_what_to_do() -> None:
    """Reading it as it arrives would hold the loop."""
    cluster = Cluster(1)
    machine = cluster.leader()
    body = b"\x12\xff" * PRODUCTION.txn_slice_bytes
    send(
        machine, encode_message(appended(machine, (EntryType.NORMAL, request(requests.TXN, body))))
    )
    with pytest.raises(MemberStopped, match=r"holds no request .* What to do"):
        cluster.pass_time(0.1)
