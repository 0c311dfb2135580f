"""The calls that administer a cluster, as values: members, maintenance, users and roles."""

from collections.abc import Callable, Sequence
from typing import Any, Literal

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.authpb import Permission as PermissionMessage
from kvorum.client import rpcs
from kvorum.client.keys import KeyRange
from kvorum.client.operations import Operation
from kvorum.client.rpcs import Rpc
from kvorum.client.values import (
    Access,
    Alarm,
    AlarmKind,
    AuthStatus,
    Member,
    MemberStatus,
    Permission,
    StoreHash,
)

_ALARMS: dict[AlarmKind, pb.AlarmType] = {"nospace": pb.NOSPACE, "corrupt": pb.CORRUPT}
_ACCESSES: dict[Access, PermissionMessage.Type] = {
    "read": PermissionMessage.READ,
    "write": PermissionMessage.WRITE,
    "readwrite": PermissionMessage.READWRITE,
}


def _nothing(answer: bytes) -> None:
    del answer


def _silent(rpc: Rpc, request: Any) -> Operation[None]:
    """Return a call without a result."""
    return Operation(rpc, request.SerializeToString(), _nothing)


# Members.


def _member(message: pb.Member) -> Member:
    return Member(
        message.ID,
        message.name,
        list(message.peerURLs),
        list(message.clientURLs),
        message.isLearner,
    )


def _members(kind: Any) -> Callable[[bytes], list[Member]]:
    return lambda answer: [_member(each) for each in kind.FromString(answer).members]


def list_members(*, linearizable: bool) -> Operation[list[Member]]:
    """Return the call that lists members."""
    request = pb.MemberListRequest(linearizable=linearizable)
    return Operation(rpcs.MEMBER_LIST, request.SerializeToString(), _members(pb.MemberListResponse))


def add_member(peer_urls: str | Sequence[str], *, learner: bool) -> Operation[Member]:
    """Return the call that adds a member; its result is the new member."""
    request = pb.MemberAddRequest(peerURLs=_urls(peer_urls), isLearner=learner)

    def decode(answer: bytes) -> Member:
        return _member(pb.MemberAddResponse.FromString(answer).member)

    return Operation(rpcs.MEMBER_ADD, request.SerializeToString(), decode)


def remove_member(member: int) -> Operation[list[Member]]:
    """Return the call that removes a member; its result is the remaining members."""
    message = pb.MemberRemoveRequest(ID=member).SerializeToString()
    return Operation(rpcs.MEMBER_REMOVE, message, _members(pb.MemberRemoveResponse))


def update_member(member: int, peer_urls: str | Sequence[str]) -> Operation[list[Member]]:
    """Return the call that changes the peer URLs of a member; its result is all members."""
    message = pb.MemberUpdateRequest(ID=member, peerURLs=_urls(peer_urls)).SerializeToString()
    return Operation(rpcs.MEMBER_UPDATE, message, _members(pb.MemberUpdateResponse))


def promote_member(member: int) -> Operation[list[Member]]:
    """Return the call that promotes a learner to a voter; its result is all members."""
    message = pb.MemberPromoteRequest(ID=member).SerializeToString()
    return Operation(rpcs.MEMBER_PROMOTE, message, _members(pb.MemberPromoteResponse))


def _urls(urls: str | Sequence[str]) -> list[str]:
    return urls.split(",") if isinstance(urls, str) else list(urls)


# Maintenance.


def status() -> Operation[MemberStatus]:
    """Return the call that reads the status of a member."""

    def decode(answer: bytes) -> MemberStatus:
        found = pb.StatusResponse.FromString(answer)
        return MemberStatus(
            member=found.header.member_id,
            leader=found.leader,
            version=found.version,
            revision=found.header.revision,
            raft_term=found.raftTerm,
            raft_index=found.raftIndex,
            applied_index=found.raftAppliedIndex,
            database_bytes=found.dbSize,
            database_bytes_used=found.dbSizeInUse,
            database_bytes_max=found.dbSizeQuota,
            storage_version=found.storageVersion,
            is_learner=found.isLearner,
            downgrade_target=found.downgradeInfo.targetVersion,
            errors=list(found.errors),
        )

    return Operation(rpcs.STATUS, pb.StatusRequest().SerializeToString(), decode)


def alarms() -> Operation[list[Alarm]]:
    """Return the call that lists alarms."""
    return _alarm_operation(pb.AlarmRequest(action=pb.AlarmRequest.GET))


def raise_alarm(alarm: Alarm) -> Operation[list[Alarm]]:
    """Return the call that raises an alarm."""
    return _alarm_operation(_alarm_request(pb.AlarmRequest.ACTIVATE, alarm))


def clear_alarm(alarm: Alarm) -> Operation[list[Alarm]]:
    """Return the call that clears an alarm; its result is the alarm if it was raised."""
    return _alarm_operation(_alarm_request(pb.AlarmRequest.DEACTIVATE, alarm))


def _alarm_request(action: pb.AlarmRequest.AlarmAction, alarm: Alarm) -> pb.AlarmRequest:
    if alarm.kind not in _ALARMS:
        raise ValueError(f"there is no alarm {alarm.kind!r}; expected {' or '.join(_ALARMS)}")
    return pb.AlarmRequest(action=action, memberID=alarm.member, alarm=_ALARMS[alarm.kind])


def _alarm_operation(request: pb.AlarmRequest) -> Operation[list[Alarm]]:
    kinds = {number: kind for kind, number in _ALARMS.items()}

    def decode(answer: bytes) -> list[Alarm]:
        found = pb.AlarmResponse.FromString(answer).alarms
        return [Alarm(each.memberID, kinds[each.alarm]) for each in found if each.alarm in kinds]

    return Operation(rpcs.ALARM, request.SerializeToString(), decode)


def defragment() -> Operation[None]:
    """Return the call that defragments the database of a member."""
    return _silent(rpcs.DEFRAGMENT, pb.DefragmentRequest())


def hash_database() -> Operation[int]:
    """Return the call that hashes a member's whole database."""

    def decode(answer: bytes) -> int:
        found: int = pb.HashResponse.FromString(answer).hash
        return found

    return Operation(rpcs.HASH, pb.HashRequest().SerializeToString(), decode)


def hash_keys(revision: int) -> Operation[StoreHash]:
    """Return the call that hashes a member's keys up to a revision."""

    def decode(answer: bytes) -> StoreHash:
        found = pb.HashKVResponse.FromString(answer)
        # Servers before 3.6 do not return the hashed revision: it is the requested or newest one.
        up_to = found.hash_revision or revision or found.header.revision
        return StoreHash(found.hash, up_to, found.compact_revision)

    message = pb.HashKVRequest(revision=revision).SerializeToString()
    return Operation(rpcs.HASH_KV, message, decode)


def snapshot() -> Operation[pb.SnapshotResponse]:
    """Return the call that fetches a snapshot in several messages."""
    message = pb.SnapshotRequest().SerializeToString()
    return Operation(rpcs.SNAPSHOT, message, pb.SnapshotResponse.FromString)


def move_leader(member: int) -> Operation[None]:
    """Return the call that moves the leadership to another member; only the leader serves it."""
    return _silent(rpcs.MOVE_LEADER, pb.MoveLeaderRequest(targetID=member))


def downgrade(action: Literal["VALIDATE", "ENABLE", "CANCEL"], version: str) -> Operation[str]:
    """Return a call about downgrading; its result is the cluster's version."""
    request = pb.DowngradeRequest(action=action, version=version)

    def decode(answer: bytes) -> str:
        found: str = pb.DowngradeResponse.FromString(answer).version
        return found

    return Operation(rpcs.DOWNGRADE, request.SerializeToString(), decode)


# Users and roles.


def enable_auth() -> Operation[None]:
    """Return the call that enables authentication."""
    return _silent(rpcs.AUTH_ENABLE, pb.AuthEnableRequest())


def disable_auth() -> Operation[None]:
    """Return the call that disables authentication."""
    return _silent(rpcs.AUTH_DISABLE, pb.AuthDisableRequest())


def auth_status() -> Operation[AuthStatus]:
    """Return the call that reads whether authentication is enabled."""

    def decode(answer: bytes) -> AuthStatus:
        found = pb.AuthStatusResponse.FromString(answer)
        return AuthStatus(found.enabled, found.authRevision)

    return Operation(rpcs.AUTH_STATUS, pb.AuthStatusRequest().SerializeToString(), decode)


def users() -> Operation[list[str]]:
    """Return the call that lists users."""
    message = pb.AuthUserListRequest().SerializeToString()
    return Operation(
        rpcs.USER_LIST,
        message,
        lambda answer: list(pb.AuthUserListResponse.FromString(answer).users),
    )


def roles_of(user: str) -> Operation[list[str]]:
    """Return the call that lists the roles of a user."""
    message = pb.AuthUserGetRequest(name=user).SerializeToString()
    return Operation(
        rpcs.USER_GET, message, lambda answer: list(pb.AuthUserGetResponse.FromString(answer).roles)
    )


def add_user(user: str, password: str | None) -> Operation[None]:
    """Return the call that adds a user; one without a password logs in by certificate alone."""
    request = pb.AuthUserAddRequest(name=user, password=password or "")
    request.options.no_password = password is None
    return _silent(rpcs.USER_ADD, request)


def delete_user(user: str) -> Operation[None]:
    """Return the call that deletes a user."""
    return _silent(rpcs.USER_DELETE, pb.AuthUserDeleteRequest(name=user))


def change_password(user: str, password: str) -> Operation[None]:
    """Return the call that gives a user another password."""
    request = pb.AuthUserChangePasswordRequest(name=user, password=password)
    return _silent(rpcs.USER_CHANGE_PASSWORD, request)


def grant_role(user: str, role: str) -> Operation[None]:
    """Return the call that gives a user a role."""
    return _silent(rpcs.USER_GRANT_ROLE, pb.AuthUserGrantRoleRequest(user=user, role=role))


def revoke_role(user: str, role: str) -> Operation[None]:
    """Return the call that takes a role from a user."""
    return _silent(rpcs.USER_REVOKE_ROLE, pb.AuthUserRevokeRoleRequest(name=user, role=role))


def roles() -> Operation[list[str]]:
    """Return the call that lists roles."""
    message = pb.AuthRoleListRequest().SerializeToString()
    return Operation(
        rpcs.ROLE_LIST,
        message,
        lambda answer: list(pb.AuthRoleListResponse.FromString(answer).roles),
    )


def permissions_of(role: str) -> Operation[list[Permission]]:
    """Return the call that lists the permissions of a role."""
    names = {number: access for access, number in _ACCESSES.items()}

    def decode(answer: bytes) -> list[Permission]:
        found = pb.AuthRoleGetResponse.FromString(answer).perm
        return [Permission(names[each.permType], each.key, each.range_end) for each in found]

    message = pb.AuthRoleGetRequest(role=role).SerializeToString()
    return Operation(rpcs.ROLE_GET, message, decode)


def add_role(role: str) -> Operation[None]:
    """Return the call that adds a role."""
    return _silent(rpcs.ROLE_ADD, pb.AuthRoleAddRequest(name=role))


def delete_role(role: str) -> Operation[None]:
    """Return the call that deletes a role."""
    return _silent(rpcs.ROLE_DELETE, pb.AuthRoleDeleteRequest(role=role))


def grant_permission(role: str, access: Access, keys: KeyRange) -> Operation[None]:
    """Return the call that grants a role access to keys."""
    if access not in _ACCESSES:
        raise ValueError(f"there is no access {access!r}; expected {', '.join(_ACCESSES)}")
    permission = PermissionMessage(permType=_ACCESSES[access], key=keys.key, range_end=keys.end)
    request = pb.AuthRoleGrantPermissionRequest(name=role, perm=permission)
    return _silent(rpcs.ROLE_GRANT_PERMISSION, request)


def revoke_permission(role: str, keys: KeyRange) -> Operation[None]:
    """Return the call that takes a permission from a role."""
    request = pb.AuthRoleRevokePermissionRequest(role=role, key=keys.key, range_end=keys.end)
    return _silent(rpcs.ROLE_REVOKE_PERMISSION, request)
