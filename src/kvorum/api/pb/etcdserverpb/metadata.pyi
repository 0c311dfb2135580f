from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class Metadata(_message.Message):
    __slots__ = ("NodeID", "ClusterID")
    NODEID_FIELD_NUMBER: _ClassVar[int]
    CLUSTERID_FIELD_NUMBER: _ClassVar[int]
    NodeID: int
    ClusterID: int
    def __init__(self, NodeID: _Optional[int] = ..., ClusterID: _Optional[int] = ...) -> None: ...
