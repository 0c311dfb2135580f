"""Short HTTP requests between members at the peer port, beside raft.

This module has both sides: it answers a peer's request and interprets a peer's answer. The
transport carries both without parsing them, and adds the headers that all answers share.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status, StatusError
from kvorum.api.pb.etcdserverpb import (
    LeaseKeepAliveRequest,
    LeaseKeepAliveResponse,
    LeaseTimeToLiveResponse,
)
from kvorum.api.pb.leasepb import LeaseInternalRequest, LeaseInternalResponse
from kvorum.member import leases
from kvorum.member.hashing import Hashed, hash_kv
from kvorum.member.promotion import promote_here
from kvorum.member.waits import AppliedTo, ReadIndex
from kvorum.state.membership.documents import decode_members, encode_members
from kvorum.state.mvcc.hashes import HashKV

if TYPE_CHECKING:
    from kvorum.member.member import Member
    from kvorum.member.outbox import Headers
    from kvorum.member.parts import Part
    from kvorum.state.apply.callers import Caller
    from kvorum.state.apply.results import Result

LEASES_PATH = leases.LEASES_PATH
LEASES_INTERNAL_PATH = leases.INTERNAL_PATH
HASH_KV_PATH = "/members/hashkv"
PROMOTE_PREFIX = "/members/promote/"
DOWNGRADE_PATH = "/downgrade/enabled"

BODY_BYTES_MAX = 64 * 1024
"""Members refuse a request with a longer body before reading it."""

_AUTHORIZATION = "authorization"
_BEARER = "Bearer "
_USER = "x-kvorum-user"

_TEXT = "text/plain; charset=utf-8"
_PROTOBUF = "application/protobuf"
_JSON = "application/json"
_UINT64_MAX = (1 << 64) - 1
_NUMBER = re.compile(r"[0-9]{1,100}", re.ASCII)
"""Only digits, as Go parses an unsigned number; more than 100 cannot be a member's id."""


class Answered(NamedTuple):
    """The answer to a peer's request: HTTP status, content type, body."""

    status: int
    content_type: str
    body: bytes


def make_refusal(status: int, text: str) -> Answered:
    """Return a refusal with its reason as plain text."""
    return Answered(status, _TEXT, text.encode(errors="backslashreplace") + b"\n")


def allowed_method(path: str) -> str | None:
    """Return the one method that a path accepts; None for a path not served here."""
    if path.startswith(PROMOTE_PREFIX):
        return "POST"
    return _METHODS.get(path)


def answer_request(
    member: Member, path: str, body: bytes, headers: Mapping[str, str]
) -> Part[Answered]:
    """Return the steps that answer a request at a path that `allowed_method` knows."""
    if path.startswith(PROMOTE_PREFIX):
        return _answer_promotion(member, path.removeprefix(PROMOTE_PREFIX), headers)
    return _ANSWERS[path](member, body)


def interpret_answer(path: str, status: int, body: bytes) -> Result | None:
    """Return the answer for `Member.take_answer`: the body, a refusal, or None to ask again.

    A body that does not parse as the path's response counts as no answer.
    """
    if status == 200:
        return body if _is_sound(path, body) else None
    if path in (LEASES_PATH, LEASES_INTERNAL_PATH):
        return errors.LEASE_NOT_FOUND if status == 404 else None
    if path.startswith(PROMOTE_PREFIX):
        if status == 404:
            return errors.MEMBER_NOT_FOUND
        if status == 412:
            return _find_refusal(body, errors.LEARNER_NOT_READY, errors.MEMBER_NOT_LEARNER)
    if path == HASH_KV_PATH and status in (400, 412):
        return _find_refusal(body, errors.COMPACTED, errors.FUTURE_REV, errors.CLUSTER_ID_MISMATCH)
    return None


def _is_sound(path: str, body: bytes) -> bool:
    parse = decode_members if path.startswith(PROMOTE_PREFIX) else _PARSERS.get(path)
    if parse is None:
        return True
    try:
        parse(body)
    except (DecodeError, ValueError):
        return False
    return True


def _find_refusal(body: bytes, *candidates: Status) -> Status | None:
    """Return the first refusal whose text is in a body, whichever part of etcd wrote it."""
    text = body.decode(errors="replace")
    return next((each for each in candidates if each.text.split(": ")[-1] in text), None)


# Answers.


def _answer_renewal(member: Member, body: bytes) -> Part[Answered]:
    try:
        lease_id = LeaseKeepAliveRequest.FromString(body).ID
    except DecodeError:
        return make_refusal(400, "error unmarshalling request")
    renewed = None
    if member.is_leader:
        renewed = yield from leases.renew_here(member, lease_id)
    if renewed is None or isinstance(renewed, Status):
        return _refuse_lease(renewed or errors.NOT_PRIMARY_LESSOR)
    if not renewed:
        return make_refusal(404, "lease not found")
    response = LeaseKeepAliveResponse(ID=lease_id, TTL=renewed)
    return Answered(200, _PROTOBUF, response.SerializeToString())


def _answer_time_to_live(member: Member, body: bytes) -> Part[Answered]:
    try:
        request = LeaseInternalRequest.FromString(body).LeaseTimeToLiveRequest
    except DecodeError:
        return make_refusal(400, "error unmarshalling request")
    found = None
    if member.is_leader:
        found = yield from leases.time_to_live_here(member, request.ID)
    if found is None:
        return make_refusal(500, errors.NOT_PRIMARY_LESSOR.text)
    if isinstance(found, Status):
        return _refuse_lease(found)
    remaining, granted = found
    response = LeaseTimeToLiveResponse(ID=request.ID, TTL=remaining, grantedTTL=granted)
    response.header.SetInParent()
    if request.keys:
        response.keys.extend(member.state.lessor.keys_of(request.ID))
    internal = LeaseInternalResponse(LeaseTimeToLiveResponse=response)
    return Answered(200, _PROTOBUF, internal.SerializeToString())


def _refuse_lease(status: Status) -> Answered:
    if status == errors.LEASE_NOT_FOUND:
        return make_refusal(404, "lease not found")
    if status == errors.TIMEOUT_WAIT_APPLIED_INDEX:
        return make_refusal(408, "waiting for node to catch up its applied index has timed out")
    return make_refusal(400, status.text)


def credential_headers(caller: Caller) -> Headers:
    """Return the headers that tell the leader for which user a member asks.

    etcd's members verify a token. Members of this project also trust a name from each other: any
    client of the peer port could send entries as well.
    """
    if caller.token is not None:
        return ((_AUTHORIZATION, caller.token),)
    # User names may hold any character, headers only some.
    name = quote(caller.user, safe="", errors="surrogateescape")
    return ((_USER, name),) if name else ()


def _admin_refusal(member: Member, headers: Mapping[str, str]) -> Part[Status | None]:
    """Refuse a request that another member makes for a caller without the role `root`."""
    auth = member.state.auth
    if not auth.is_enabled:
        return None
    token = headers.get(_AUTHORIZATION)
    if token is None:
        return auth.admin_refusal(unquote(headers.get(_USER, ""), errors="surrogateescape"))
    token = token.removeprefix(_BEARER)
    index = member.state.tokens.index_to_await(token)
    if index > member.state.applied:
        yield AppliedTo(index, member.now + leases.APPLY_WAIT_SECONDS)
    verified = member.state.tokens.verify(token, member.now, member.seams.wall_clock())
    if verified is None:
        return errors.INVALID_AUTH_TOKEN
    return member.state.auth.admin_refusal(verified.user)


def _answer_promotion(member: Member, text: str, headers: Mapping[str, str]) -> Part[Answered]:
    number = int(text) if _NUMBER.fullmatch(text) else _UINT64_MAX + 1
    if number > _UINT64_MAX:
        return make_refusal(404, f"member {text} not found in cluster")
    status = yield from _admin_refusal(member, headers)
    if status is None:
        status = yield from promote_here(member, number)
    if status is None:
        return Answered(200, _JSON, encode_members(member.state.cluster.members) + b"\n")
    # For the first two, etcd sends members another text than clients.
    if status == errors.MEMBER_NOT_FOUND:
        return make_refusal(404, "membership: ID not found")
    if status == errors.MEMBER_NOT_LEARNER:
        return make_refusal(412, "membership: can only promote a learner member")
    if status == errors.LEARNER_NOT_READY:
        return make_refusal(412, status.text)
    member.logger.warning(f"cannot promote member {number:x}: {status.text}")
    return Answered(500, _JSON, b'{"message":"Internal Server Error"}')


def _answer_hash(member: Member, body: bytes) -> Part[Answered]:
    try:
        request = json.loads(body)
        revision = 0 if request is None else request.get("revision", 0)
        if type(revision) is not int or not -(1 << 63) <= revision < 1 << 63:
            raise ValueError(revision)
    except (ValueError, AttributeError, RecursionError):
        return make_refusal(400, "error unmarshalling request")
    try:
        hashed = yield from hash_kv(member, revision)
    except StatusError as error:
        return make_refusal(400, error.status.text.removeprefix("etcdserver: "))
    fields = {
        "header": {"revision": hashed.store_revision},
        "hash": hashed.found.hash,
        "compact_revision": hashed.found.compact_revision,
        "hash_revision": hashed.found.revision,
    }
    known = {name: value for name, value in fields.items() if value}
    return Answered(200, _JSON, json.dumps(known, separators=(",", ":")).encode())


def _answer_downgrade(member: Member, _body: bytes) -> Part[Answered]:
    failure: Status | None = yield ReadIndex()
    if failure is not None:
        return make_refusal(500, f"failed linearized read: {failure.text}")
    is_enabled = member.state.cluster.downgrade_target is not None
    return Answered(200, "text/plain", b"true" if is_enabled else b"false")


def parse_hash(body: bytes) -> Hashed:
    """Return the hash in another member's answer; raises ValueError."""
    try:
        fields = json.loads(body)
        header = fields.get("header") or {}
        numbers = [
            fields.get("hash", 0),
            fields.get("hash_revision", 0),
            fields.get("compact_revision", 0),
            header.get("revision", 0),
        ]
    except (AttributeError, RecursionError) as error:
        raise ValueError(f"expected an object, got {body[:100]!r}") from error
    if any(type(number) is not int or abs(number) > _UINT64_MAX for number in numbers):
        raise ValueError(f"expected numbers, got {body[:100]!r}")
    return Hashed(HashKV(*numbers[:3]), numbers[3])


_METHODS = {
    LEASES_PATH: "POST",
    LEASES_INTERNAL_PATH: "POST",
    HASH_KV_PATH: "GET",
    DOWNGRADE_PATH: "GET",
}
_ANSWERS: dict[str, Callable[[Member, bytes], Part[Answered]]] = {
    LEASES_PATH: _answer_renewal,
    LEASES_INTERNAL_PATH: _answer_time_to_live,
    HASH_KV_PATH: _answer_hash,
    DOWNGRADE_PATH: _answer_downgrade,
}
_PARSERS: dict[str, Callable[[bytes], object]] = {
    LEASES_PATH: LeaseKeepAliveResponse.FromString,
    LEASES_INTERNAL_PATH: LeaseInternalResponse.FromString,
    HASH_KV_PATH: parse_hash,
}
