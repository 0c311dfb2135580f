"""One call of any kind, unary or a stream, and what a server says to it, made comparable.

Of a stream that goes on, the first message is taken. What two servers never have in common is
masked: besides what `tests.server.rpc.pair` masks, tokens, and ids that a server chose.
"""

from copy import deepcopy
from typing import Any, NamedTuple

import grpc
from google.protobuf.message import Message

from kvorum.api.errors import Code, Status
from kvorum.server.rpc.table import RPCS, RpcKind
from tests.cluster.client import CALL_SECONDS_MAX, Client, Metadata
from tests.server.rpc.oracle import by_name, status_of
from tests.server.rpc.pair import masked

KINDS = {rpc.path: rpc.kind for rpc in RPCS}
HEALTH = "/grpc.health.v1.Health/"
"""The one service whose messages are not in the contract: its calls are given as bytes."""
WHOLE = ("KV/RangeStream",)
"""Streams that end by themselves, and are heard to their end."""


class Heard(NamedTuple):
    """What a server said: messages, and how it ended the call.

    The status is None for a unary call that was answered, and for a stream that goes on.
    """

    messages: tuple[Any, ...]
    status: Status | None

    @property
    def is_refusal(self) -> bool:
        return self.status is not None and self.status.code is not Code.OK


def path_of(name: str) -> str:
    return name if name.startswith("/") else by_name(name).path


def hear(client: Client, name: str, request: Any, metadata: Metadata) -> Heard:
    """Make a call, which is a message, or bytes for a path that begins with a slash."""
    kind = KINDS.get(path_of(name), RpcKind.UNARY)
    if kind is RpcKind.BOTH_WAYS:
        return _talked(client, name, request, metadata)
    if kind is RpcKind.SERVER_STREAM:
        return _streamed(client, name, request, metadata)
    try:
        if isinstance(request, bytes):
            return Heard((client.ask_bytes(name, request, CALL_SECONDS_MAX, metadata),), None)
        answer = client.ask(name, request, metadata=metadata)
    except grpc.RpcError as error:
        return Heard((), status_of(error))
    return Heard((), answer) if isinstance(answer, Status) else Heard((answer,), None)


def _talked(client: Client, name: str, request: Message, metadata: Metadata) -> Heard:
    talk = client.talk(name, metadata, CALL_SECONDS_MAX)
    talk.say(request)
    try:
        return Heard((talk.hear(),), None)
    except grpc.RpcError as error:
        return Heard((), status_of(error))
    except StopIteration:
        return Heard((), Status(Code.OK, ""))
    finally:
        talk.close()


def _streamed(client: Client, name: str, request: Any, metadata: Metadata) -> Heard:
    open_stream = client.pieces_of_bytes if isinstance(request, bytes) else client.pieces
    stream = open_stream(name, request, CALL_SECONDS_MAX, metadata)
    found: list[Any] = []
    try:
        for message in stream:
            found.append(message)
            if name not in WHOLE:
                return Heard(tuple(found), None)
    except grpc.RpcError as error:
        return Heard(tuple(found), status_of(error))
    finally:
        stream.cancel()
    return Heard(tuple(found), Status(Code.OK, ""))


def comparable(name: str, request: Any, heard: Heard) -> Heard:
    """Return what was heard without what two servers never have in common."""
    if name == "KV/RangeStream" and heard.messages:
        whole = deepcopy(heard.messages[0].range_response)
        for message in heard.messages[1:]:
            whole.MergeFrom(message.range_response)
        return heard._replace(messages=(masked("KV/Range", whole),))
    return heard._replace(
        messages=tuple(_comparable(name, request, message) for message in heard.messages)
    )


def _comparable(name: str, request: Any, message: Any) -> Any:
    if isinstance(message, bytes):
        return message
    if name == "Maintenance/Snapshot":
        # What is in it differs as databases do.
        return message.version
    found = masked(name, message)
    if name == "Auth/Authenticate":
        assert found.token.count(".") == 1
        found.token = ""
    elif name.startswith("Cluster/"):
        for member in found.members:
            member.clientURLs[:] = []
    elif name == "Lease/LeaseGrant" and not request.ID:
        found.ID = 0
    elif name == "Lock/Lock" and not request.lease:
        found.key = request.name
    elif name == "Election/Campaign" and not request.lease:
        found.leader.key, found.leader.lease = request.name, 0
    elif name == "Maintenance/Hash":
        # It covers what a member notes for itself.
        found.hash = 0
    return found
