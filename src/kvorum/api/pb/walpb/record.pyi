from kvorum.api.pb.raftpb import raft as _raft_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Record(_message.Message):
    __slots__ = ("type", "crc", "data")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    CRC_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    type: int
    crc: int
    data: bytes
    def __init__(self, type: _Optional[int] = ..., crc: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("index", "term", "conf_state")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    CONF_STATE_FIELD_NUMBER: _ClassVar[int]
    index: int
    term: int
    conf_state: _raft_pb2.ConfState
    def __init__(self, index: _Optional[int] = ..., term: _Optional[int] = ..., conf_state: _Optional[_Union[_raft_pb2.ConfState, _Mapping[str, object]]] = ...) -> None: ...
