from kvorum.api.pb.etcdserverpb import lease as _lease_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Lease(_message.Message):
    __slots__ = ("ID", "TTL", "RemainingTTL")
    ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    REMAININGTTL_FIELD_NUMBER: _ClassVar[int]
    ID: int
    TTL: int
    RemainingTTL: int
    def __init__(self, ID: _Optional[int] = ..., TTL: _Optional[int] = ..., RemainingTTL: _Optional[int] = ...) -> None: ...

class LeaseInternalRequest(_message.Message):
    __slots__ = ("LeaseTimeToLiveRequest",)
    LEASETIMETOLIVEREQUEST_FIELD_NUMBER: _ClassVar[int]
    LeaseTimeToLiveRequest: _lease_pb2.LeaseTimeToLiveRequest
    def __init__(self, LeaseTimeToLiveRequest: _Optional[_Union[_lease_pb2.LeaseTimeToLiveRequest, _Mapping[str, object]]] = ...) -> None: ...

class LeaseInternalResponse(_message.Message):
    __slots__ = ("LeaseTimeToLiveResponse",)
    LEASETIMETOLIVERESPONSE_FIELD_NUMBER: _ClassVar[int]
    LeaseTimeToLiveResponse: _lease_pb2.LeaseTimeToLiveResponse
    def __init__(self, LeaseTimeToLiveResponse: _Optional[_Union[_lease_pb2.LeaseTimeToLiveResponse, _Mapping[str, object]]] = ...) -> None: ...
