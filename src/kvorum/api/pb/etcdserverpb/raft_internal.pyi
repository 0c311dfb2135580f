from kvorum.api.pb.etcdserverpb import auth as _auth_pb2
from kvorum.api.pb.etcdserverpb import kv as _kv_pb2
from kvorum.api.pb.etcdserverpb import lease as _lease_pb2
from kvorum.api.pb.etcdserverpb import maintenance as _maintenance_pb2
from kvorum.api.pb.membershippb import membership as _membership_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DowngradeVersionTestRequest(_message.Message):
    __slots__ = ("ver",)
    VER_FIELD_NUMBER: _ClassVar[int]
    ver: str
    def __init__(self, ver: _Optional[str] = ...) -> None: ...

class RequestHeader(_message.Message):
    __slots__ = ("ID", "username", "auth_revision")
    ID_FIELD_NUMBER: _ClassVar[int]
    USERNAME_FIELD_NUMBER: _ClassVar[int]
    AUTH_REVISION_FIELD_NUMBER: _ClassVar[int]
    ID: int
    username: str
    auth_revision: int
    def __init__(self, ID: _Optional[int] = ..., username: _Optional[str] = ..., auth_revision: _Optional[int] = ...) -> None: ...

class InternalRaftRequest(_message.Message):
    __slots__ = ("header", "ID", "range", "put", "delete_range", "txn", "compaction", "lease_grant", "lease_revoke", "alarm", "lease_checkpoint", "auth_enable", "auth_disable", "auth_status", "authenticate", "auth_user_add", "auth_user_delete", "auth_user_get", "auth_user_change_password", "auth_user_grant_role", "auth_user_revoke_role", "auth_user_list", "auth_role_list", "auth_role_add", "auth_role_delete", "auth_role_get", "auth_role_grant_permission", "auth_role_revoke_permission", "cluster_version_set", "cluster_member_attr_set", "downgrade_info_set", "downgrade_version_test")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    RANGE_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    DELETE_RANGE_FIELD_NUMBER: _ClassVar[int]
    TXN_FIELD_NUMBER: _ClassVar[int]
    COMPACTION_FIELD_NUMBER: _ClassVar[int]
    LEASE_GRANT_FIELD_NUMBER: _ClassVar[int]
    LEASE_REVOKE_FIELD_NUMBER: _ClassVar[int]
    ALARM_FIELD_NUMBER: _ClassVar[int]
    LEASE_CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    AUTH_ENABLE_FIELD_NUMBER: _ClassVar[int]
    AUTH_DISABLE_FIELD_NUMBER: _ClassVar[int]
    AUTH_STATUS_FIELD_NUMBER: _ClassVar[int]
    AUTHENTICATE_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_DELETE_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_GET_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_CHANGE_PASSWORD_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_GRANT_ROLE_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_REVOKE_ROLE_FIELD_NUMBER: _ClassVar[int]
    AUTH_USER_LIST_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_LIST_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_ADD_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_DELETE_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_GET_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_GRANT_PERMISSION_FIELD_NUMBER: _ClassVar[int]
    AUTH_ROLE_REVOKE_PERMISSION_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_VERSION_SET_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_MEMBER_ATTR_SET_FIELD_NUMBER: _ClassVar[int]
    DOWNGRADE_INFO_SET_FIELD_NUMBER: _ClassVar[int]
    DOWNGRADE_VERSION_TEST_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    ID: int
    range: _kv_pb2.RangeRequest
    put: _kv_pb2.PutRequest
    delete_range: _kv_pb2.DeleteRangeRequest
    txn: _kv_pb2.TxnRequest
    compaction: _kv_pb2.CompactionRequest
    lease_grant: _lease_pb2.LeaseGrantRequest
    lease_revoke: _lease_pb2.LeaseRevokeRequest
    alarm: _maintenance_pb2.AlarmRequest
    lease_checkpoint: _lease_pb2.LeaseCheckpointRequest
    auth_enable: _auth_pb2.AuthEnableRequest
    auth_disable: _auth_pb2.AuthDisableRequest
    auth_status: _auth_pb2.AuthStatusRequest
    authenticate: InternalAuthenticateRequest
    auth_user_add: _auth_pb2.AuthUserAddRequest
    auth_user_delete: _auth_pb2.AuthUserDeleteRequest
    auth_user_get: _auth_pb2.AuthUserGetRequest
    auth_user_change_password: _auth_pb2.AuthUserChangePasswordRequest
    auth_user_grant_role: _auth_pb2.AuthUserGrantRoleRequest
    auth_user_revoke_role: _auth_pb2.AuthUserRevokeRoleRequest
    auth_user_list: _auth_pb2.AuthUserListRequest
    auth_role_list: _auth_pb2.AuthRoleListRequest
    auth_role_add: _auth_pb2.AuthRoleAddRequest
    auth_role_delete: _auth_pb2.AuthRoleDeleteRequest
    auth_role_get: _auth_pb2.AuthRoleGetRequest
    auth_role_grant_permission: _auth_pb2.AuthRoleGrantPermissionRequest
    auth_role_revoke_permission: _auth_pb2.AuthRoleRevokePermissionRequest
    cluster_version_set: _membership_pb2.ClusterVersionSetRequest
    cluster_member_attr_set: _membership_pb2.ClusterMemberAttrSetRequest
    downgrade_info_set: _membership_pb2.DowngradeInfoSetRequest
    downgrade_version_test: DowngradeVersionTestRequest
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping[str, object]]] = ..., ID: _Optional[int] = ..., range: _Optional[_Union[_kv_pb2.RangeRequest, _Mapping[str, object]]] = ..., put: _Optional[_Union[_kv_pb2.PutRequest, _Mapping[str, object]]] = ..., delete_range: _Optional[_Union[_kv_pb2.DeleteRangeRequest, _Mapping[str, object]]] = ..., txn: _Optional[_Union[_kv_pb2.TxnRequest, _Mapping[str, object]]] = ..., compaction: _Optional[_Union[_kv_pb2.CompactionRequest, _Mapping[str, object]]] = ..., lease_grant: _Optional[_Union[_lease_pb2.LeaseGrantRequest, _Mapping[str, object]]] = ..., lease_revoke: _Optional[_Union[_lease_pb2.LeaseRevokeRequest, _Mapping[str, object]]] = ..., alarm: _Optional[_Union[_maintenance_pb2.AlarmRequest, _Mapping[str, object]]] = ..., lease_checkpoint: _Optional[_Union[_lease_pb2.LeaseCheckpointRequest, _Mapping[str, object]]] = ..., auth_enable: _Optional[_Union[_auth_pb2.AuthEnableRequest, _Mapping[str, object]]] = ..., auth_disable: _Optional[_Union[_auth_pb2.AuthDisableRequest, _Mapping[str, object]]] = ..., auth_status: _Optional[_Union[_auth_pb2.AuthStatusRequest, _Mapping[str, object]]] = ..., authenticate: _Optional[_Union[InternalAuthenticateRequest, _Mapping[str, object]]] = ..., auth_user_add: _Optional[_Union[_auth_pb2.AuthUserAddRequest, _Mapping[str, object]]] = ..., auth_user_delete: _Optional[_Union[_auth_pb2.AuthUserDeleteRequest, _Mapping[str, object]]] = ..., auth_user_get: _Optional[_Union[_auth_pb2.AuthUserGetRequest, _Mapping[str, object]]] = ..., auth_user_change_password: _Optional[_Union[_auth_pb2.AuthUserChangePasswordRequest, _Mapping[str, object]]] = ..., auth_user_grant_role: _Optional[_Union[_auth_pb2.AuthUserGrantRoleRequest, _Mapping[str, object]]] = ..., auth_user_revoke_role: _Optional[_Union[_auth_pb2.AuthUserRevokeRoleRequest, _Mapping[str, object]]] = ..., auth_user_list: _Optional[_Union[_auth_pb2.AuthUserListRequest, _Mapping[str, object]]] = ..., auth_role_list: _Optional[_Union[_auth_pb2.AuthRoleListRequest, _Mapping[str, object]]] = ..., auth_role_add: _Optional[_Union[_auth_pb2.AuthRoleAddRequest, _Mapping[str, object]]] = ..., auth_role_delete: _Optional[_Union[_auth_pb2.AuthRoleDeleteRequest, _Mapping[str, object]]] = ..., auth_role_get: _Optional[_Union[_auth_pb2.AuthRoleGetRequest, _Mapping[str, object]]] = ..., auth_role_grant_permission: _Optional[_Union[_auth_pb2.AuthRoleGrantPermissionRequest, _Mapping[str, object]]] = ..., auth_role_revoke_permission: _Optional[_Union[_auth_pb2.AuthRoleRevokePermissionRequest, _Mapping[str, object]]] = ..., cluster_version_set: _Optional[_Union[_membership_pb2.ClusterVersionSetRequest, _Mapping[str, object]]] = ..., cluster_member_attr_set: _Optional[_Union[_membership_pb2.ClusterMemberAttrSetRequest, _Mapping[str, object]]] = ..., downgrade_info_set: _Optional[_Union[_membership_pb2.DowngradeInfoSetRequest, _Mapping[str, object]]] = ..., downgrade_version_test: _Optional[_Union[DowngradeVersionTestRequest, _Mapping[str, object]]] = ...) -> None: ...

class EmptyResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class InternalAuthenticateRequest(_message.Message):
    __slots__ = ("name", "password", "simple_token")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PASSWORD_FIELD_NUMBER: _ClassVar[int]
    SIMPLE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    name: str
    password: str
    simple_token: str
    def __init__(self, name: _Optional[str] = ..., password: _Optional[str] = ..., simple_token: _Optional[str] = ...) -> None: ...
