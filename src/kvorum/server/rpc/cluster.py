"""The Cluster service: lists members, and proposes membership changes like writes.

A change passes the strict reconfiguration checks of this member first. Then it goes through the
log, and every member validates it against the same state. It has no deadline but the client's.
Response headers have no revision.
"""

from collections.abc import Sequence

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb
from kvorum.api.pb.etcdserverpb import (
    MemberAddRequest,
    MemberAddResponse,
    MemberListRequest,
    MemberListResponse,
    MemberPromoteRequest,
    MemberRemoveRequest,
    MemberUpdateRequest,
)
from kvorum.api.wire import parse_message
from kvorum.member.member import Member
from kvorum.member.peer_requests import PROMOTE_PREFIX, credential_headers
from kvorum.member.promotion import promote_here
from kvorum.member.waits import AskLeader, LeaderKnown, ProposeChange, Steps, Until
from kvorum.raft.changes import ChangeType, ConfChange
from kvorum.server.rpc.interface import RpcOutput
from kvorum.state.apply.callers import Caller
from kvorum.state.apply.permissions import admin_refusal, identity_refusal
from kvorum.state.apply.results import Result
from kvorum.state.apply.state import State
from kvorum.state.membership import documents, reconfiguration
from kvorum.state.membership.identity import member_id
from kvorum.state.membership.urls import UrlError, encoded, excess_of, kept_urls

RETRY_SECONDS = 0.05


class ClusterCalls:
    """Serves the calls of Cluster."""

    def __init__(self, member: Member, edge: RpcOutput) -> None:
        self._member = member
        self._edge = edge

    def list(self, call: int, caller: Caller, payload: bytes) -> None:
        """List the members in this member's state; if linearizable, after it has caught up."""
        request = parse_message(MemberListRequest, payload)
        self._member.replica.read(
            call, caller, _list_members, None, linearizable=request.linearizable
        )

    def add(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Add a voter or a learner."""
        request = parse_message(MemberAddRequest, payload)
        member = self._member
        if (excess := excess_of(request.peerURLs)) is not None:
            return errors.excessive_urls(excess)
        try:
            urls = kept_urls(request.peerURLs)
        except UrlError:
            return errors.MEMBER_BAD_URLS
        if (refusal := admin_refusal(member.state, caller)) is not None:
            return refusal
        if member.config.strict_reconfig:
            status = reconfiguration.may_add(
                member.state.cluster.members, _connected(member), is_learner=request.isLearner
            )
            if status is not None:
                return status
        added = documents.MemberDocument(
            member_id(urls, "", int(member.unix_seconds())), urls, request.isLearner
        )
        kind = ChangeType.ADD_LEARNER_NODE if added.is_learner else ChangeType.ADD_NODE
        change = ConfChange(kind, added.id, documents.encode_member(added))
        self._propose(call, caller, change, added)
        return None

    def remove(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Remove a member for good."""
        request = parse_message(MemberRemoveRequest, payload)
        member = self._member
        if member.config.strict_reconfig:
            is_active = member.id == request.ID or request.ID in member.replica.connections
            status = reconfiguration.may_remove(
                member.state.cluster.members, _connected(member), request.ID, is_active=is_active
            )
            if status is not None:
                return status
        self._propose(call, caller, ConfChange(ChangeType.REMOVE_NODE, request.ID))
        return None

    def update(self, call: int, caller: Caller, payload: bytes) -> Result | None:
        """Change the peer URLs of a member."""
        request = parse_message(MemberUpdateRequest, payload)
        if (excess := excess_of(request.peerURLs)) is not None:
            return errors.excessive_urls(excess)
        urls = tuple(encoded(text.strip()) for text in request.peerURLs)
        updated = documents.MemberDocument(request.ID, urls)
        change = ConfChange(ChangeType.UPDATE_NODE, updated.id, documents.encode_member(updated))
        # An etcd member with invalid URLs in its log does not start again.
        if self._member.state.cluster.validate(change) is errors.MEMBER_BAD_URLS:
            return errors.MEMBER_BAD_URLS
        if self._member.state.cluster.member(updated.id) is not None:
            try:
                kept_urls(urls)
            except UrlError:
                return errors.MEMBER_BAD_URLS
        self._propose(call, caller, change)
        return None

    def promote(self, call: int, caller: Caller, payload: bytes) -> None:
        """Make a learner a voter, if the leader finds that it keeps up."""
        request = parse_message(MemberPromoteRequest, payload)
        self._edge.mark_waiting(call)
        self._member.start(call, caller, _promote(self._member, caller, request.ID))

    def _propose(
        self,
        call: int,
        caller: Caller,
        change: ConfChange,
        added: documents.MemberDocument | None = None,
    ) -> None:
        self._edge.mark_waiting(call)
        self._member.start(call, caller, _change(self._member, change, added))


def _promote(member: Member, caller: Caller, learner: int) -> Steps:
    deadline = member.now + member.config.request_seconds_max
    while True:
        status = yield from promote_here(member, learner)
        if status is None:
            return _answer(member.state)
        if status is not errors.NOT_LEADER:
            return status
        if not (yield LeaderKnown(deadline)):
            return errors.NO_LEADER
        if not member.is_leader:
            answer: Result | None = yield AskLeader(
                f"{PROMOTE_PREFIX}{learner}", b"", credential_headers(caller)
            )
            if isinstance(answer, Status):
                return answer
            if answer is not None:
                return _answer(member.state, members=documents.decode_members(answer))
        if member.now >= deadline:
            return errors.TIMEOUT
        yield Until(member.now + RETRY_SECONDS)


def _change(member: Member, change: ConfChange, added: documents.MemberDocument | None) -> Steps:
    refusal: Status | None = yield ProposeChange(change)
    return refusal or _answer(member.state, added)


def _answer(
    state: State,
    added: documents.MemberDocument | None = None,
    members: Sequence[documents.MemberDocument] | None = None,
) -> bytes:
    """Encode a response: the added member, if any, and the list of members.

    All responses of this service have the same fields. `members` is the leader's list, which may be
    newer than this member's.
    """
    known = [_encode_member(each) for each in members or state.cluster.members]
    header = state.header.field(0)
    if added is not None:
        answer = MemberAddResponse(member=_encode_member(added), members=known)
        return header + answer.SerializeToString()
    return header + MemberListResponse(members=known).SerializeToString()


def _connected(member: Member) -> list[int]:
    since = member.now - reconfiguration.CONNECTED_SECONDS_MIN
    known = [each.id for each in member.state.cluster.members]
    return [each for each in known if member.replica.is_connected_since(each, since)]


def _list_members(state: State, caller: Caller, _request: object) -> Result:
    return identity_refusal(state, caller) or _answer(state)


def _encode_member(each: documents.MemberDocument) -> etcdserverpb.Member:
    return etcdserverpb.Member(
        ID=each.id,
        name=each.name,
        peerURLs=each.peer_urls,
        clientURLs=each.client_urls,
        isLearner=each.is_learner,
    )
