"""Who calls: by a token, a certificate or nothing; and calls whose token cannot be judged yet."""

from math import inf
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from kvorum.member import identities
from kvorum.member.identities import Identities
from kvorum.network.edge.interface import EdgeEventKind, Metadata
from kvorum.server.rpc import undecided
from kvorum.server.rpc.interface import OK
from kvorum.server.rpc.lease import _leases_refusal
from kvorum.server.rpc.table import NUMBERS
from kvorum.state.apply import requests
from kvorum.state.auth.jwt_keys import read_keys
from kvorum.state.auth.jwt_tokens import JwtTokens
from kvorum.state.auth.tokens import NoTokens
from tests.certificates import Authority
from tests.server.rpc.guarded import PUT, RANGE, Guarded, shown
from tests.server.rpc.harness import Harness
from tests.state.auth.keys import SECRET
from tests.state.lease.model import finish

INVALID = errors.INVALID_AUTH_TOKEN
NOBODY = ("", 0)
READ_A = pb.RangeRequest(key=b"a")


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Certificates in DER, by their common names."""
    authority = Authority(tmp_path_factory.mktemp("authority"))

    def issued(name: str) -> bytes:
        pem = Path(authority.issue(name).cert).read_bytes()
        return x509.load_pem_x509_certificate(pem).public_bytes(Encoding.DER)

    return {name: issued(name) for name in ("u", "root", "stranger", "")}


def identity_in(data: bytes) -> tuple[str, int]:
    """Return who an entry says it was proposed for."""
    caller = requests.decode(data)[3]
    return caller.user, caller.revision


def forms(good: bytes) -> dict[str, tuple[Metadata | None, bool]]:
    """Return metadata by what is shown in it, and whether that is a good token."""
    return {
        "token": ({"token": good}, True),
        "authorization": ({"authorization": good}, True),
        "a token of a bearer": ({"token": b"Bearer " + good}, True),
        "an authorization of a bearer": ({"authorization": b"Bearer " + good}, True),
        "both": ({"token": good, "authorization": b"bad"}, True),
        "both, the first bad": ({"token": b"bad", "authorization": good}, False),
        "both, the first empty": ({"token": b"", "authorization": good}, False),
        "both, the first a bearer of nothing": (
            {"token": b"Bearer ", "authorization": good},
            False,
        ),
        "an empty token": ({"token": b""}, False),
        "an empty authorization": ({"authorization": b""}, False),
        "a bearer of nothing": ({"authorization": b"Bearer "}, False),
        "a bearer without a blank": ({"authorization": b"Bearer"}, False),
        "small letters": ({"authorization": b"bearer " + good}, False),
        "great letters": ({"authorization": b"BEARER " + good}, False),
        "two blanks": ({"authorization": b"Bearer  " + good}, False),
        "a bearer of a bearer": ({"authorization": b"Bearer Bearer " + good}, False),
        "another scheme": ({"authorization": b"Basic " + good}, False),
        "a blank before": ({"token": b" " + good}, False),
        "a blank behind": ({"token": good + b" "}, False),
        "a zero byte behind": ({"token": good + b"\0"}, False),
        "another case": ({"token": good.swapcase()}, False),
        "the beginning": ({"token": good[:-1]}, False),
        "no index": ({"token": good.partition(b".")[0]}, False),
        "no UTF-8": ({"token": b"\xff\xfe" + good}, False),
        "only that": ({"token": b"\xff"}, False),
        "much": ({"token": b"x" * 100_000 + b"." + b"9" * 100_000}, False),
    }


@pytest.fixture(scope="module")
def guarded() -> Guarded:
    return Guarded(client_cert_identifies_user=True)


@pytest.fixture(scope="module")
def unasking() -> Guarded:
    """Without `--client-cert-auth`."""
    return Guarded()


def identifying(guarded: Guarded) -> Identities:
    found = guarded.services.caller.identifying
    assert isinstance(found, Identities)
    return found


@pytest.mark.parametrize("with_certificate", [False, True], ids=["alone", "with a certificate"])
@pytest.mark.parametrize("form", forms(b""))
def test_a_token_in_any_form(
    guarded: Guarded, certificates: dict[str, bytes], form: str, with_certificate: bool
) -> None:
    """A bad one is never repaired by a good certificate."""
    guarded.edge.certificate = certificates["root"] if with_certificate else None
    metadata, is_good = forms(guarded.log_in("u").encode())[form]
    expected = ("u", guarded.member.state.auth.revision) if is_good else INVALID
    assert guarded.who(metadata) == expected


@pytest.mark.parametrize(
    ("name", "metadata", "expected"),
    [
        ("u", None, "u"),
        ("u", {}, "u"),
        ("u", {"hasleader": b"true"}, "u"),
        ("stranger", None, "stranger"),
        ("", None, None),
        ("u", {"grpcgateway-accept": b"*/*"}, None),
        ("u", {"grpcgateway-accept": b""}, None),
        (None, None, None),
        (None, {"grpcgateway-accept": b"*/*"}, None),
    ],
)
def test_a_certificate(
    guarded: Guarded,
    unasking: Guarded,
    certificates: dict[str, bytes],
    name: str | None,
    metadata: Metadata | None,
    expected: str | None,
) -> None:
    for server in (guarded, unasking):
        server.edge.certificate = None if name is None else certificates[name]
    known = (expected, guarded.member.state.auth.revision)
    assert guarded.who(metadata) == (NOBODY if expected is None else known)
    # It counts only with `--client-cert-auth`.
    assert unasking.who(metadata) == NOBODY


def test_a_certificate_that_cannot_be_parsed_is_nobodys(guarded: Guarded) -> None:
    guarded.edge.certificate = b"\x30\x03abc"
    assert guarded.who(None) == NOBODY


def test_the_gateways_calls_may_show_tokens(
    guarded: Guarded, certificates: dict[str, bytes]
) -> None:
    guarded.edge.certificate = certificates["root"]
    metadata = shown(guarded.log_in("u")) | {"grpcgateway-accept": b"*/*"}
    assert guarded.who(metadata) == ("u", guarded.member.state.auth.revision)


def test_a_user_that_does_not_exist_has_an_identity_and_no_rights(
    guarded: Guarded, certificates: dict[str, bytes]
) -> None:
    guarded.edge.certificate = certificates["stranger"]
    assert not isinstance(guarded.ask("Maintenance/Status", pb.StatusRequest()), Status)
    assert not isinstance(guarded.ask("Cluster/MemberList", pb.MemberListRequest()), Status)
    assert guarded.ask("Auth/UserList", pb.AuthUserListRequest()) == errors.USER_NOT_FOUND
    assert guarded.ask("KV/Range", READ_A) == errors.PERMISSION_DENIED
    guarded.edge.certificate = certificates[""]
    for name, request in (
        ("Maintenance/Status", pb.StatusRequest()),
        ("Auth/UserList", pb.AuthUserListRequest()),
        ("KV/Range", READ_A),
    ):
        assert guarded.ask(name, request) == errors.USER_EMPTY


def test_without_authentication_nobody_is_asked(certificates: dict[str, bytes]) -> None:
    harness = Harness(client_cert_identifies_user=True)
    harness.edge.certificate = certificates["u"]
    storage = harness.member.replica.storage
    for metadata, _ in forms(b"abc.99999").values():
        answer = harness.ask("KV/Put", pb.PutRequest(key=b"a"), metadata)
        assert not isinstance(answer, Status)
        last = storage.last_index()
        assert identity_in(storage.entries(last, last + 1, 1 << 20)[0].data) == NOBODY
    stream = harness.open("Watch/Watch", shown("abc.99999"))
    stream.send(create(b"a"))
    assert [each.canceled for each in stream.received()] == [False]


CALLS_OPEN_TO_ALL: dict[str, tuple[str, bytes]] = {
    "Authenticate": (
        "/etcdserverpb.Auth/Authenticate",
        pb.AuthenticateRequest(name="u", password="u").SerializeToString(),
    ),
    "health": ("/grpc.health.v1.Health/Check", b""),
}


@pytest.mark.parametrize("token", [b"bad", b"", b"\xff", b"abc.99999999"])
@pytest.mark.parametrize("name", CALLS_OPEN_TO_ALL)
def test_some_calls_do_not_look_at_tokens(guarded: Guarded, name: str, token: bytes) -> None:
    path, payload = CALLS_OPEN_TO_ALL[name]
    call = guarded.begin(path, payload, {"token": token})
    assert call in guarded.edge.replies
    assert isinstance(guarded.edge.replies[call], bytes)


def test_who_logs_in_with_a_token_is_nobody_in_the_log(guarded: Guarded) -> None:
    before = guarded.member.replica.storage.last_index()
    call = guarded.begin(*CALLS_OPEN_TO_ALL["Authenticate"], shown(guarded.log_in("root")))
    guarded.answer(call)
    entries = guarded.member.replica.storage.entries(before + 1, before + 3, 1 << 20)
    assert [identity_in(entry.data) for entry in entries] == [NOBODY] * 2


def test_without_tokens_only_certificates_count(certificates: dict[str, bytes]) -> None:
    guarded = Guarded(client_cert_identifies_user=True, tokens=NoTokens())
    login = pb.AuthenticateRequest(name="u", password="u")
    assert guarded.ask("Auth/Authenticate", login) == errors.AUTH_FAILED
    guarded.edge.certificate = certificates["u"]
    for token in ("", "abc", "abc.1", "abc.99999999"):
        # None of them is waited for, either.
        call = guarded.begin(PUT, pb.PutRequest(key=b"a"), shown(token))
        assert guarded.edge.replies[call] == INVALID
    assert guarded.who(None) == ("u", guarded.member.state.auth.revision)


@pytest.mark.sources
def test_the_kept_callers_are_limited(guarded: Guarded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identities, "CACHED_MAX", 3)
    for _ in range(10):
        token = guarded.log_in("u")
        assert guarded.who(shown(token)) == ("u", guarded.member.state.auth.revision)
        assert 0 < len(identifying(guarded)._cached) <= 3


# Tokens that cannot be judged yet.


def create(key: bytes) -> pb.WatchRequest:
    return pb.WatchRequest(create_request=pb.WatchCreateRequest(key=key))


def waits(harness: Harness) -> bool:
    return bool(harness.services.undecided)


def arrive_at(guarded: Guarded, token: str) -> None:
    """Let the entries come that a token of `token_to_come(1)` waits for."""
    guarded.log_in("root")
    assert guarded.log_in("u") == token
    guarded.settle()


def test_a_call_waits_until_its_token_is_known() -> None:
    guarded = Guarded()
    token = guarded.token_to_come(1)
    call = guarded.begin(RANGE, READ_A, shown(token))
    bearer = guarded.begin(RANGE, READ_A, {"authorization": b"Bearer " + token.encode()})
    false = guarded.begin(RANGE, READ_A, shown(f"b{token[1:]}"))
    calls = {call, bearer, false}
    assert calls <= guarded.edge.waiting and not calls & guarded.edge.replies.keys()
    guarded.pass_time(1.0)
    # It is applied up to the index that the token names; its own entry comes after that.
    guarded.log_in("root")
    assert not calls & guarded.edge.replies.keys()
    assert guarded.log_in("u") == token
    guarded.settle()
    assert isinstance(guarded.edge.replies[call], bytes)
    assert isinstance(guarded.edge.replies[bearer], bytes)
    assert guarded.edge.replies[false] == INVALID
    assert not waits(guarded)


def test_a_token_that_was_known_is_not_waited_for() -> None:
    guarded = Guarded()
    token = guarded.log_in("u")
    guarded.pass_time(301.0)
    call = guarded.begin(RANGE, READ_A, shown(token))
    assert guarded.edge.replies[call] == INVALID


def test_the_messages_of_a_watch_wait_in_their_order() -> None:
    guarded = Guarded()
    token = guarded.token_to_come(1)
    stream = guarded.open("Watch/Watch", shown(token))
    stream.send(create(b"a"))
    for message in (
        create(b"b"),
        create(b"aa"),
        pb.WatchRequest(cancel_request=pb.WatchCancelRequest(watch_id=1)),
        pb.WatchRequest(progress_request=pb.WatchProgressRequest()),
    ):
        stream.send(message)
    stream.half_close()
    assert stream.received() == [] and waits(guarded)
    arrive_at(guarded, token)
    found = [(each.watch_id, each.created, each.canceled) for each in stream.received()]
    assert found[:4] == [(0, True, False), (-1, True, True), (1, True, False), (1, False, True)]
    assert stream.status is None
    guarded.succeed("KV/Put", pb.PutRequest(key=b"a"), token)
    (event,) = [each for each in stream.received() if each.events][-1:]
    assert event.watch_id == 0


def test_the_messages_of_a_keep_alive_stream_wait_in_their_order() -> None:
    guarded = Guarded()
    for lease in (7, 8):
        request = pb.LeaseGrantRequest(ID=lease, TTL=100 * lease)
        guarded.succeed("Lease/LeaseGrant", request, guarded.log_in("u"))
    token = guarded.token_to_come(1)
    stream = guarded.open("Lease/LeaseKeepAlive", shown(token))
    for lease in (7, 8, 9):
        stream.send(pb.LeaseKeepAliveRequest(ID=lease))
    stream.half_close()
    assert stream.received() == [] and stream.status is None
    arrive_at(guarded, token)
    assert [(each.ID, each.TTL) for each in stream.received()] == [(7, 700), (8, 800), (9, 0)]
    assert stream.status == OK


def test_a_stream_with_one_request_waits() -> None:
    guarded = Guarded()
    guarded.succeed("KV/Put", pb.PutRequest(key=b"a"), guarded.log_in("u"))
    token = guarded.token_to_come(1)
    stream = guarded.open("KV/RangeStream", shown(token))
    stream.send(READ_A)
    stream.half_close()
    assert stream.status is None
    arrive_at(guarded, token)
    assert stream.status == OK
    (answer,) = stream.received()
    assert [each.key for each in answer.range_response.kvs] == [b"a"]


def test_a_token_that_is_never_known_ends_what_waits_within_the_time_for_requests() -> None:
    guarded = Guarded()
    token = "a.99999999"
    call = guarded.begin(PUT, pb.PutRequest(key=b"a"), shown(token))
    watch = guarded.open("Watch/Watch", shown(token))
    watch.send(create(b"a"))
    watch.send(create(b"a"))
    keep_alive = guarded.open("Lease/LeaseKeepAlive", shown(token))
    keep_alive.send(pb.LeaseKeepAliveRequest(ID=7))
    keep_alive.send(pb.LeaseKeepAliveRequest(ID=7))
    limit = guarded.member.config.request_seconds_max
    guarded.pass_time(limit - 1)
    assert call not in guarded.edge.replies and waits(guarded)
    guarded.pass_time(1.5)
    assert guarded.edge.replies[call] == INVALID
    assert [each.cancel_reason for each in watch.received()] == [INVALID.wrapped()] * 2
    assert watch.status is None
    assert keep_alive.status == INVALID
    assert not waits(guarded)


def test_what_waits_when_the_server_stops_is_not_served_any_more() -> None:
    guarded = Guarded()
    token = guarded.token_to_come(1)
    call = guarded.begin(RANGE, READ_A, shown(token))
    assert waits(guarded)
    guarded.services.stop()
    assert not waits(guarded) and not guarded.services.has_decided
    guarded.pass_time(10.0)
    assert call not in guarded.edge.replies


@pytest.mark.parametrize("is_stream", [False, True])
def test_a_client_that_leaves_meanwhile_is_forgotten(is_stream: bool) -> None:
    guarded = Guarded()
    token = guarded.token_to_come(1)
    revision = guarded.member.state.store.revision
    if is_stream:
        stream = guarded.open("Watch/Watch", shown(token))
        stream.send(create(b"a"))
        stream.cancel()
        call = stream.call
    else:
        call = guarded.begin(PUT, pb.PutRequest(key=b"a"), shown(token))
        guarded.happen((EdgeEventKind.ENDED, call, None))
    assert not waits(guarded)
    guarded.log_in("root")
    guarded.log_in("u")
    guarded.settle()
    assert guarded.member.state.store.revision == revision
    assert call not in guarded.edge.replies and call not in guarded.edge.sent
    assert not guarded.member.hub.streams_open


def test_authentication_that_is_disabled_meanwhile_lets_everything_pass() -> None:
    guarded = Guarded()
    root = guarded.log_in("root")
    call = guarded.begin(PUT, pb.PutRequest(key=b"z"), shown("a.99999999"))
    stream = guarded.open("Watch/Watch", shown("a.99999999"))
    stream.send(create(b"z"))
    guarded.succeed("Auth/AuthDisable", pb.AuthDisableRequest(), root)
    guarded.until(lambda: not waits(guarded))
    assert isinstance(guarded.edge.replies[call], bytes)
    first, *events = stream.received()
    assert first.created and not first.canceled and len(events) == 1


def test_a_server_that_stops_ends_the_streams_that_wait() -> None:
    guarded = Guarded()
    stream = guarded.open("Watch/Watch", shown("a.99999999"))
    stream.send(create(b"a"))
    guarded.end()
    assert stream.status == errors.STOPPED


def test_only_so_many_calls_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided, "CALLS_MAX", 3)
    guarded = Guarded()
    token = "a.99999999"
    streams = [guarded.open("Watch/Watch", shown(token)) for _ in range(2)]
    streams[0].send(create(b"a"))
    calls = [guarded.begin(PUT, pb.PutRequest(key=b"a"), shown(token)) for _ in range(4)]
    assert [call in guarded.edge.replies for call in calls] == [False, False, True, True]
    streams[1].send(create(b"a"))
    assert [each.cancel_reason for each in streams[1].received()] == [INVALID.wrapped()]
    # Those that wait are not concerned; one that leaves makes room.
    streams[0].send(create(b"a"))
    assert streams[0].received() == []
    guarded.happen((EdgeEventKind.ENDED, calls[0], None))
    again = guarded.begin(PUT, pb.PutRequest(key=b"a"), shown(token))
    assert again not in guarded.edge.replies


def test_only_so_many_bytes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(undecided, "BYTES_MAX", 10_000)
    guarded = Guarded()
    token = "a.99999999"
    large = pb.PutRequest(key=b"a", value=bytes(20_000))
    first = guarded.begin(PUT, large, shown(token))
    second = guarded.begin(PUT, large, shown(token))
    assert first not in guarded.edge.replies
    assert guarded.edge.replies[second] == INVALID
    guarded.happen((EdgeEventKind.ENDED, first, None))
    third = guarded.begin(PUT, large, shown(token))
    assert third not in guarded.edge.replies


@pytest.mark.parametrize("size", [0, 3000])
def test_a_stream_cannot_let_any_number_of_messages_wait(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(undecided, "BYTES_MAX", 100 * undecided.ITEM_BYTES)
    guarded = Guarded()
    message = create(b"a" * size).SerializeToString() if size else b""
    stream = guarded.open("Watch/Watch", shown("a.99999999"))
    stream.send(create(b"a"))
    for _ in range(300):
        stream.send(message)
        assert guarded.services.undecided._bytes <= 101 * undecided.ITEM_BYTES + size
    # What there was no room for, and all before it, was judged by what was known.
    assert stream.received()[0].cancel_reason == INVALID.wrapped()


# What changes between the arrival of a call and its execution.


def batch(guarded: Guarded, *calls: tuple[str, Any, str]) -> list[bytes | Status]:
    """Let calls arrive together, each as (path, request, token); return their answers."""
    arriving = []
    for path, request, token in calls:
        guarded._calls += 1
        payload = request.SerializeToString()
        arriving.append((guarded._calls, NUMBERS[path], payload, shown(token)))
    guarded.arrive(arriving)
    return [guarded.answer(call) for call, *_ in arriving]


WRITE = (PUT, pb.PutRequest(key=b"a"))
DELETE = ("/etcdserverpb.KV/DeleteRange", pb.DeleteRangeRequest(key=b"a"))
TXN = "/etcdserverpb.KV/Txn"
CHANGE = pb.TxnRequest(success=[pb.RequestOp(request_put=pb.PutRequest(key=b"a"))])
LOOK = pb.TxnRequest(success=[pb.RequestOp(request_range=READ_A)])

CHANGES: dict[str, tuple[str, Any]] = {
    "a role is added": ("Auth/RoleAdd", pb.AuthRoleAddRequest(name="new")),
    "the right is revoked": (
        "Auth/RoleRevokePermission",
        pb.AuthRoleRevokePermissionRequest(role="r", key=b"a", range_end=b"b"),
    ),
    "the user is deleted": ("Auth/UserDelete", pb.AuthUserDeleteRequest(name="u")),
    "the password is changed": (
        "Auth/UserChangePassword",
        pb.AuthUserChangePasswordRequest(name="u", hashedPassword="YQ=="),
    ),
}


@pytest.mark.parametrize("what", CHANGES)
def test_users_change_before_a_write_is_applied(what: str) -> None:
    """It is judged as of when it was proposed; the client is told to try again."""
    guarded = Guarded()
    root, user = guarded.log_in("root"), guarded.log_in("u")
    name, request = CHANGES[what]
    change = (f"/etcdserverpb.{name}", request, root)
    changed, *written = batch(
        guarded, change, (*WRITE, user), (*DELETE, user), (TXN, CHANGE, user), (*WRITE, root)
    )
    assert not isinstance(changed, Status)
    assert written == [errors.AUTH_OLD_REVISION] * 4
    assert guarded.member.state.store.revision == 1


@pytest.mark.parametrize(
    ("what", "expected"),
    [
        ("a role is added", None),
        ("the right is revoked", errors.PERMISSION_DENIED),
        ("the user is deleted", INVALID),
        ("the password is changed", INVALID),
    ],
)
def test_users_change_before_a_read_is_made(what: str, expected: Status | None) -> None:
    """It is judged as of when it is made."""
    guarded = Guarded()
    root, user = guarded.log_in("root"), guarded.log_in("u")
    reads = [
        (1000, NUMBERS[RANGE], READ_A.SerializeToString(), shown(user)),
        (1001, NUMBERS[TXN], LOOK.SerializeToString(), shown(user)),
    ]
    # They arrive, and have to wait for others.
    guarded.server.calls.receive(reads, 0.0, 0.0)
    guarded.services.serve(reads, inf)
    waiting, guarded.member.replica.reads.waiting = guarded.member.replica.reads.waiting, []
    assert len(waiting) == 2
    guarded.succeed(*CHANGES[what], root)
    guarded.member.replica.reads.waiting += waiting
    for call in (1000, 1001):
        answer = guarded.answer(call)
        assert (answer if isinstance(answer, Status) else None) == expected


def fill(guarded: Guarded, token: str) -> None:
    puts = [
        pb.RequestOp(request_put=pb.PutRequest(key=b"a%04d" % number, value=bytes(500)))
        for number in range(100)
    ]
    for start in range(20):
        for put in puts:
            put.request_put.key = b"a%d/" % start + put.request_put.key
        guarded.succeed("KV/Txn", pb.TxnRequest(success=puts), token)


EVERYTHING = pb.RangeRequest(key=b"a", range_end=b"b")


@pytest.mark.parametrize(
    ("path", "request_"),
    [
        (RANGE, EVERYTHING),
        (TXN, pb.TxnRequest(success=[pb.RequestOp(request_range=EVERYTHING)])),
    ],
    ids=["Range", "Txn"],
)
def test_users_change_while_a_long_read_is_made(path: str, request_: Any) -> None:
    guarded = Guarded()
    root, user = guarded.log_in("root"), guarded.log_in("u")
    fill(guarded, user)
    guarded.looks_max = 1
    guarded._calls += 1
    call = guarded._calls
    guarded.turn([(call, NUMBERS[path], request_.SerializeToString(), shown(user))])
    for _ in range(3):
        guarded.turn()
    assert call not in guarded.edge.replies and guarded.member.replica.long_reads.is_busy
    guarded.member.state.auth.add_role("another")
    assert guarded.answer(call) == errors.AUTH_OLD_REVISION
    guarded.looks_max = 0
    assert isinstance(guarded.answer(guarded.begin(path, request_, shown(root))), bytes)


def test_users_change_while_a_range_is_streamed() -> None:
    guarded = Guarded()
    user = guarded.log_in("u")
    fill(guarded, user)
    stream = guarded.open("KV/RangeStream", shown(user))
    guarded.looks_max = 1
    guarded.turn((), [(EdgeEventKind.MESSAGE, stream.call, EVERYTHING.SerializeToString())])
    while stream.call not in guarded.edge.sent:
        guarded.turn()
    guarded.member.state.auth.add_role("another")
    guarded.settle()
    # All of it was sent, and then the client is told.
    keys = [kv.key for each in stream.received() for kv in each.range_response.kvs]
    assert len(keys) == 2000
    assert stream.status == errors.AUTH_OLD_REVISION


# Signed tokens, which say as of which revision they are.


def signed(**options: Any) -> Guarded:
    return Guarded(tokens=JwtTokens(read_keys("HS256", SECRET, b""), 300.0), **options)


def forged(guarded: Guarded, user: str, late: int) -> str:
    """Return a token that was signed with the right key, as of a later revision."""
    tokens = guarded.member.state.tokens
    assert isinstance(tokens, JwtTokens)
    expires = int(guarded.member.seams.wall_clock()) + 100
    return tokens.sign(user, max(0, guarded.member.state.auth.revision + late), expires)


def test_a_signed_token_is_of_its_revision() -> None:
    guarded = signed()
    token = guarded.log_in("u")
    assert guarded.who(shown(token)) == ("u", guarded.member.state.auth.revision)
    guarded.succeed("KV/Range", READ_A, token)
    before = guarded.member.state.auth.revision
    guarded.succeed("Auth/RoleAdd", pb.AuthRoleAddRequest(name="new"), guarded.log_in("root"))
    assert guarded.who(shown(token)) == ("u", before)
    for name, request in (("KV/Range", READ_A), ("KV/Put", pb.PutRequest(key=b"a"))):
        assert guarded.ask(name, request, shown(token)) == errors.AUTH_OLD_REVISION
    # Who it is is known all the same, and an administrator stays one.
    guarded.succeed("Maintenance/Status", pb.StatusRequest(), token)
    root = forged(guarded, "root", -1)
    guarded.succeed("Auth/UserList", pb.AuthUserListRequest(), root)
    assert guarded.ask("KV/Range", READ_A, shown(root)) == errors.AUTH_OLD_REVISION


def test_a_signed_token_of_a_later_revision_writes_and_does_not_read() -> None:
    guarded = signed()
    token = forged(guarded, "u", 5)
    guarded.succeed("KV/Put", pb.PutRequest(key=b"a"), token)
    assert guarded.ask("KV/Range", READ_A, shown(token)) == errors.AUTH_OLD_REVISION


@pytest.mark.parametrize(
    ("user", "late", "expected"),
    [
        ("stranger", 0, (None, errors.USER_NOT_FOUND, errors.PERMISSION_DENIED)),
        ("", 0, (None, errors.USER_EMPTY, errors.PERMISSION_DENIED)),
        ("u", -1000, (None, errors.PERMISSION_DENIED, errors.USER_EMPTY)),
        ("", -1000, (errors.USER_EMPTY, errors.USER_EMPTY, errors.USER_EMPTY)),
    ],
)
def test_signed_tokens_of_nobody_in_particular(
    user: str, late: int, expected: tuple[Status | None, ...]
) -> None:
    guarded = signed()
    token = forged(guarded, user, late)
    found = [
        guarded.ask(name, request, shown(token))
        for name, request in (
            ("Maintenance/Status", pb.StatusRequest()),
            ("Auth/UserList", pb.AuthUserListRequest()),
            ("KV/Range", READ_A),
        )
    ]
    assert tuple(each if isinstance(each, Status) else None for each in found) == expected


def test_a_signed_token_is_not_waited_for() -> None:
    guarded = signed()
    call = guarded.begin(RANGE, READ_A, shown("a.99999999"))
    assert guarded.edge.replies[call] == INVALID


# Leases.


def test_listing_leases_is_checked_in_slices() -> None:
    """Leases without keys have nothing to check, and may be very many."""
    guarded = Guarded()
    user = guarded.log_in("u")
    leases = list(range(1, 4 * PRODUCTION.leases_per_slice + 1))
    for lease in leases:
        guarded.member.state.lessor.grant(lease, 1000, guarded.now)
    caller = identifying(guarded).identify_token(user)
    assert finish(_leases_refusal(guarded.member.state, caller, leases)) == (None, 4)
    listed = guarded.succeed("Lease/LeaseLeases", pb.LeaseLeasesRequest(), user)
    assert len(listed.leases) == len(leases)
    # One whose keys may not be read refuses all.
    guarded.member.state.lessor.attach(leases[-1], b"z")
    refused = guarded.ask("Lease/LeaseLeases", pb.LeaseLeasesRequest(), shown(user))
    assert refused == errors.PERMISSION_DENIED
