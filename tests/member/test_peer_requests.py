"""What members ask each other: every path's answers, and what they mean to the one that asked."""

import json
from typing import Any

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb.etcdserverpb import (
    InternalAuthenticateRequest,
    LeaseGrantRequest,
    LeaseKeepAliveRequest,
)
from kvorum.api.pb.leasepb import LeaseInternalRequest, LeaseInternalResponse
from kvorum.member.outbox import Headers
from kvorum.member.peer_requests import (
    DOWNGRADE_PATH,
    HASH_KV_PATH,
    LEASES_INTERNAL_PATH,
    LEASES_PATH,
    PROMOTE_PREFIX,
    Answered,
    allowed_method,
    answer_request,
    credential_headers,
    interpret_answer,
    parse_hash,
)
from kvorum.member.waits import Steps
from kvorum.state.apply import requests
from kvorum.state.apply.callers import MEMBER, Caller, Front
from kvorum.state.membership.documents import decode_members
from tests.member.harness import Cluster, Machine

PATHS = (LEASES_PATH, LEASES_INTERNAL_PATH, HASH_KV_PATH, DOWNGRADE_PATH, PROMOTE_PREFIX + "5")


@pytest.fixture(scope="module")
def cluster() -> Cluster:
    cluster = Cluster(3)
    leader = cluster.leader()
    body = LeaseGrantRequest(ID=7, TTL=100_000).SerializeToString()
    cluster.success(leader, leader.propose(requests.LEASE_GRANT, body))
    cluster.success(leader, leader.put(b"key", b"value", lease=7))
    cluster.pass_time(1.0)
    return cluster


def asked(
    cluster: Cluster,
    machine: Machine,
    path: str,
    body: bytes = b"",
    headers: Headers = (),
) -> Answered:
    answers: list[Answered] = []

    def steps() -> Steps:
        answers.append((yield from answer_request(machine.running, path, body, dict(headers))))
        return None

    machine.running.start(None, MEMBER, steps())
    cluster.wait(lambda: answers)
    return answers[0]


def test_paths_and_methods() -> None:
    assert [allowed_method(path) for path in PATHS] == ["POST", "POST", "GET", "GET", "POST"]
    assert allowed_method("/members") is None


def test_renewals(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    known, unknown = (LeaseKeepAliveRequest(ID=each).SerializeToString() for each in (7, 8))
    renewed = asked(cluster, leader, LEASES_PATH, known)
    assert (renewed.status, renewed.content_type) == (200, "application/protobuf")
    assert asked(cluster, leader, LEASES_PATH, unknown)[::2] == (404, b"lease not found\n")
    assert asked(cluster, leader, LEASES_PATH, b"\xff").status == 400
    refused = asked(cluster, follower, LEASES_PATH, known)
    assert refused[::2] == (400, b"not a primary lessor\n")


def test_what_is_left_of_a_lease(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    request = LeaseInternalRequest()
    request.LeaseTimeToLiveRequest.ID = 7
    request.LeaseTimeToLiveRequest.keys = True
    told = asked(cluster, leader, LEASES_INTERNAL_PATH, request.SerializeToString())
    found = LeaseInternalResponse.FromString(told.body).LeaseTimeToLiveResponse
    assert (found.grantedTTL, list(found.keys)) == (100_000, [b"key"])
    assert found.HasField("header")
    refused = asked(cluster, follower, LEASES_INTERNAL_PATH, request.SerializeToString())
    assert refused.status == 500
    request.LeaseTimeToLiveRequest.ID = 8
    unknown = asked(cluster, leader, LEASES_INTERNAL_PATH, request.SerializeToString())
    assert unknown.status == 404
    assert asked(cluster, leader, LEASES_INTERNAL_PATH, b"\xff").status == 400


@pytest.mark.parametrize("text", ["", "x", "-1", "+5", "5/", "1_0", "٣", str(1 << 64)])
def test_an_id_that_is_none_is_not_promoted(cluster: Cluster, text: str) -> None:
    assert asked(cluster, cluster.leader(), PROMOTE_PREFIX + text).status == 404


def test_promotions(cluster: Cluster) -> None:
    leader, follower = cluster.leader(), cluster.follower()
    unknown = asked(cluster, leader, PROMOTE_PREFIX + "5")
    assert interpret_answer(PROMOTE_PREFIX + "5", *unknown[::2]) == errors.MEMBER_NOT_FOUND
    voter = f"{PROMOTE_PREFIX}{follower.running.id}"
    told = asked(cluster, leader, voter)
    assert told.status == 412
    assert interpret_answer(voter, *told[::2]) == errors.MEMBER_NOT_LEARNER
    # Only the leader decides; after another's answer, the leader is asked again.
    elsewhere = asked(cluster, follower, voter)
    assert elsewhere[::2] == (500, b'{"message":"Internal Server Error"}')
    assert interpret_answer(voter, *elsewhere[::2]) is None


def test_hashes(cluster: Cluster) -> None:
    bodies = (b'{"revision":2}', b"{}", b'{"revision":0}')
    for body in bodies:
        answers = [asked(cluster, each, HASH_KV_PATH, body) for each in cluster]
        assert len(set(answers)) == 1
        hashed = parse_hash(answers[0].body)
        assert (hashed.store_revision, hashed.found.revision) == (2, 2)
    for body in (b"[" * 60_000, b"", b"[]", b'{"revision":"2"}', b'{"revision":1.5}', b"{", b"1"):
        assert asked(cluster, cluster.leader(), HASH_KV_PATH, body).status == 400
    future = asked(cluster, cluster.leader(), HASH_KV_PATH, b'{"revision":3}')
    assert future[::2] == (400, b"mvcc: required revision is a future revision\n")
    assert interpret_answer(HASH_KV_PATH, *future[::2]) == errors.FUTURE_REV


def test_downgrades(cluster: Cluster) -> None:
    for machine in cluster:
        told = asked(cluster, machine, DOWNGRADE_PATH)
        assert told == Answered(200, "text/plain", b"false")


# What real members say.


@pytest.mark.parametrize(
    ("path", "status", "body", "expected"),
    [
        (LEASES_PATH, 404, b"lease not found\n", errors.LEASE_NOT_FOUND),
        (LEASES_PATH, 408, b"waiting for node to catch up its applied index has timed out\n", None),
        (LEASES_PATH, 400, b"not a primary lessor\n", None),
        (LEASES_INTERNAL_PATH, 500, b"not a primary lessor\n", None),
        (PROMOTE_PREFIX, 404, b"membership: ID not found\n", errors.MEMBER_NOT_FOUND),
        (
            PROMOTE_PREFIX,
            412,
            b"etcdserver: can only promote a learner member which is in sync with leader\n",
            errors.LEARNER_NOT_READY,
        ),
        (
            PROMOTE_PREFIX,
            412,
            b"membership: can only promote a learner member\n",
            errors.MEMBER_NOT_LEARNER,
        ),
        (PROMOTE_PREFIX, 500, b'{"message":"Internal Server Error"}', None),
        (HASH_KV_PATH, 400, b"mvcc: required revision has been compacted\n", errors.COMPACTED),
        (HASH_KV_PATH, 412, b"cluster ID mismatch\n", errors.CLUSTER_ID_MISMATCH),
        (HASH_KV_PATH, 404, b"404 page not found\n", None),
    ],
)
def test_what_an_answer_means(path: str, status: int, body: bytes, expected: Status | None) -> None:
    assert interpret_answer(path, status, body) == expected


def test_an_answer_that_is_nested_too_deeply_is_none() -> None:
    for path in PATHS[2:]:
        assert interpret_answer(path, 200, b"[" * 60_000) in (None, b"[" * 60_000)
    assert interpret_answer(HASH_KV_PATH, 200, b"[" * 60_000) is None
    assert interpret_answer(PROMOTE_PREFIX, 200, b"[" * 60_000) is None


JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["header", "revision", "hash", "hash_revision", "id", "peerURLs"]),
            inner,
        )
    ),
    max_leaves=5,
)


@given(
    path=st.sampled_from(PATHS),
    body=st.binary(max_size=20) | JSON.map(json.dumps).map(str.encode),
    status=st.sampled_from([200, 400, 404, 412, 500]),
)
def test_an_answer_of_any_content_is_understood_or_none(
    path: str, body: bytes, status: int
) -> None:
    told = interpret_answer(path, status, body)
    if isinstance(told, bytes):
        assert status == 200
        # The member that asked reads it without further checks.
        if path == HASH_KV_PATH:
            parse_hash(told)
        elif path.startswith(PROMOTE_PREFIX):
            decode_members(told)


# For whom a member asks.

ODD_NAMES = ["j\u00fcrgen", "a b", "a\r\nx-kvorum-user: root", "%72oot", "", "\udcff", "\0"]


@pytest.fixture(scope="module")
def guarded() -> Cluster:
    """A member whose authentication is enabled; all but `u` have the role `root`."""
    cluster = Cluster(1)
    auth = cluster.leader().running.state.auth
    for name in ("root", "u", *filter(None, ODD_NAMES)):
        auth.add_user(name, b"hash", no_password=False)
        if name != "u":
            auth.grant_role(name, "root")
    auth.enable()
    return cluster


def promoted_for(cluster: Cluster, headers: Headers) -> int:
    """Return the status of the answer to who asks to promote a member that there is not.

    That is found only after the caller was: 404.
    """
    return asked(cluster, cluster.leader(), PROMOTE_PREFIX + "5", headers=headers).status


@pytest.mark.parametrize("name", ["root", "u", "stranger", *ODD_NAMES])
def test_a_caller_with_any_name_is_told_to_the_leader(guarded: Cluster, name: str) -> None:
    headers = credential_headers(Caller(Front.GRPC, name, 7))
    # Whatever the name is, it can be sent.
    h11.Request(method="POST", target="/", headers=[("host", "x"), *headers])
    has_role = name not in ("u", "stranger", "")
    assert promoted_for(guarded, headers) == (404 if has_role else 500)


@given(st.binary(max_size=20).map(lambda name: name.decode(errors="surrogateescape")))
def test_any_name_becomes_a_header(name: str) -> None:
    headers = credential_headers(Caller(Front.GRPC, name, 7))
    h11.Request(method="POST", target="/", headers=[("host", "x"), *headers])
    assert bool(headers) == bool(name)


def test_a_token_is_judged_by_the_leader(guarded: Cluster) -> None:
    member = guarded.leader().running
    for user, expected in (("root", 404), ("u", 500)):
        token = member.state.tokens.assign(user, "prefix", member.state.applied, member.now)
        caller = Caller(Front.GRPC, user, 7, token=token)
        assert promoted_for(guarded, credential_headers(caller)) == expected
    for token in ("", "nonsense", "prefix.1"):
        # What the caller's name is does not count then.
        headers = (("authorization", token), ("x-kvorum-user", "root"))
        assert promoted_for(guarded, headers) == 500


def test_a_token_that_the_leader_does_not_know_yet_is_awaited(guarded: Cluster) -> None:
    machine = guarded.leader()
    member = machine.running
    token = f"another.{member.state.applied}"
    statuses: list[int] = []

    def steps() -> Steps:
        headers = {"authorization": token}
        found = yield from answer_request(member, PROMOTE_PREFIX + "5", b"", headers)
        statuses.append(found.status)
        return None

    member.start(None, MEMBER, steps())
    guarded.settle()
    assert not statuses
    request = InternalAuthenticateRequest(name="root", simple_token="another")
    machine.propose(requests.AUTHENTICATE, request.SerializeToString())
    guarded.settle()
    assert statuses == [404]


def test_without_authentication_nobody_is_asked(cluster: Cluster) -> None:
    assert promoted_for(cluster, ()) == promoted_for(cluster, (("authorization", "x"),)) == 404
