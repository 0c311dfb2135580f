from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RaftAttributes(_message.Message):
    __slots__ = ("peer_urls", "is_learner")
    PEER_URLS_FIELD_NUMBER: _ClassVar[int]
    IS_LEARNER_FIELD_NUMBER: _ClassVar[int]
    peer_urls: _containers.RepeatedScalarFieldContainer[str]
    is_learner: bool
    def __init__(self, peer_urls: _Optional[_Iterable[str]] = ..., is_learner: _Optional[bool] = ...) -> None: ...

class Attributes(_message.Message):
    __slots__ = ("name", "client_urls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CLIENT_URLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    client_urls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., client_urls: _Optional[_Iterable[str]] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("ID", "raft_attributes", "member_attributes")
    ID_FIELD_NUMBER: _ClassVar[int]
    RAFT_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ID: int
    raft_attributes: RaftAttributes
    member_attributes: Attributes
    def __init__(self, ID: _Optional[int] = ..., raft_attributes: _Optional[_Union[RaftAttributes, _Mapping[str, object]]] = ..., member_attributes: _Optional[_Union[Attributes, _Mapping[str, object]]] = ...) -> None: ...

class ClusterVersionSetRequest(_message.Message):
    __slots__ = ("ver",)
    VER_FIELD_NUMBER: _ClassVar[int]
    ver: str
    def __init__(self, ver: _Optional[str] = ...) -> None: ...

class ClusterMemberAttrSetRequest(_message.Message):
    __slots__ = ("member_ID", "member_attributes")
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    member_ID: int
    member_attributes: Attributes
    def __init__(self, member_ID: _Optional[int] = ..., member_attributes: _Optional[_Union[Attributes, _Mapping[str, object]]] = ...) -> None: ...

class DowngradeInfoSetRequest(_message.Message):
    __slots__ = ("enabled", "ver")
    ENABLED_FIELD_NUMBER: _ClassVar[int]
    VER_FIELD_NUMBER: _ClassVar[int]
    enabled: bool
    ver: str
    def __init__(self, enabled: _Optional[bool] = ..., ver: _Optional[str] = ...) -> None: ...
