"""Encode members and their changes as JSON, byte for byte as Go encodes its structs.

Bucket `members` stores these bytes, configuration changes in the log carry them as their context,
and `/members` answers them; etcd's members read all three.
"""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from kvorum.raft.messages import ConfState

_UINT64_MAX = (1 << 64) - 1
_SURROGATE = re.compile("[\ud800-\udfff]")
# Go escapes these, so that JSON may be embedded in HTML.
_ESCAPES = str.maketrans({character: f"\\u{ord(character):04x}" for character in "<>&\u2028\u2029"})


class DocumentError(ValueError):
    """The bytes are not the expected JSON."""


@dataclass(slots=True, frozen=True)
class MemberDocument:
    """A member of the cluster; one with a name has started."""

    id: int
    peer_urls: tuple[str, ...] = ()
    is_learner: bool = False
    name: str = ""
    client_urls: tuple[str, ...] = ()

    @property
    def is_started(self) -> bool:
        """Whether the member has published its name and URLs."""
        return bool(self.name)


@dataclass(slots=True, frozen=True)
class ChangeContext:
    """The context of a configuration change: its member, and whether it promotes a learner."""

    member: MemberDocument
    is_promotion: bool = False


def encode_member(member: MemberDocument) -> bytes:
    """Return a member's document for the store, and for the context that adds or updates it."""
    return _encode(_member_fields(member))


def decode_member(document: bytes) -> MemberDocument:
    """Return the member of a document; raises DocumentError."""
    return _member(_object(document))


def encode_members(members: Iterable[MemberDocument]) -> bytes:
    """Return the answer to `/members`, without its final newline."""
    return _encode([_member_fields(member) for member in members])


def decode_members(document: bytes) -> list[MemberDocument]:
    """Return the members of an answer to `/members`; raises DocumentError."""
    fields = _decode(document)
    if not isinstance(fields, list):
        raise DocumentError(f"expected a list of members, got {document!r}")
    return [_member(each) for each in fields]


def encode_promotion(member_id: int) -> bytes:
    """Return the context of the change that makes a learner a voter."""
    return _encode({"id": member_id, "peerURLs": None, "isPromote": True})


def decode_context(document: bytes) -> ChangeContext:
    """Return the decoded context of a configuration change; raises DocumentError."""
    fields = _object(document)
    return ChangeContext(_member(fields), _flag(fields, "isPromote"))


def encode_conf_state(state: ConfState) -> bytes:
    """Return a configuration's document for bucket `meta`."""
    fields: dict[str, Any] = {}
    for name in ("voters", "learners", "voters_outgoing", "learners_next"):
        if members := getattr(state, name):
            fields[name] = list(members)
    return _encode(fields | {"auto_leave": state.auto_leave})


def decode_conf_state(document: bytes) -> ConfState:
    """Return the configuration of a document; raises DocumentError."""
    fields = _object(document)
    return ConfState(
        _numbers(fields, "voters"),
        _numbers(fields, "learners"),
        _numbers(fields, "voters_outgoing"),
        _numbers(fields, "learners_next"),
        _flag(fields, "auto_leave"),
    )


def encode_downgrade(target: str, *, is_enabled: bool) -> bytes:
    """Return a downgrade job's document for bucket `cluster`."""
    return _encode({"target-version": target, "enabled": is_enabled})


def decode_downgrade(document: bytes) -> str | None:
    """Return the target version of a downgrade job, None without one; raises DocumentError."""
    fields = _object(document)
    return _text(fields, "target-version") if _flag(fields, "enabled") else None


def encode_attributes(member: MemberDocument) -> str:
    """Return name and client URLs only, as etcd's version 2 store keeps them."""
    return _encode(_attributes(member)).decode()


def encode_raft_attributes(member: MemberDocument) -> str:
    """Return peer URLs and role only, as etcd's version 2 store keeps them."""
    return _encode(_raft_attributes(member)).decode()


def _member_fields(member: MemberDocument) -> dict[str, Any]:
    return {"id": member.id} | _raft_attributes(member) | _attributes(member)


def _raft_attributes(member: MemberDocument) -> dict[str, Any]:
    fields: dict[str, Any] = {"peerURLs": list(member.peer_urls) or None}
    return fields | {"isLearner": True} if member.is_learner else fields


def _attributes(member: MemberDocument) -> dict[str, Any]:
    fields: dict[str, Any] = {"name": member.name} if member.name else {}
    return fields | {"clientURLs": list(member.client_urls)} if member.client_urls else fields


def _encode(value: object) -> bytes:
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.translate(_ESCAPES).encode()


def _decode(document: bytes) -> object:
    try:
        return json.loads(document)
    except (ValueError, RecursionError) as error:
        raise DocumentError(f"{document[:1000]!r} is not JSON: {error}") from error


def _object(document: bytes) -> dict[str, Any]:
    return _checked_object(_decode(document), document)


def _checked_object(fields: object, document: object) -> dict[str, Any]:
    if not isinstance(fields, dict):
        raise DocumentError(f"expected an object, got {document!r}")
    return fields


def _member(value: object) -> MemberDocument:
    fields = _checked_object(value, value)
    return MemberDocument(
        id=_number(fields.get("id", 0)),
        peer_urls=_texts(fields, "peerURLs"),
        is_learner=_flag(fields, "isLearner"),
        name=_text(fields, "name"),
        client_urls=_texts(fields, "clientURLs"),
    )


def _number(value: object) -> int:
    if type(value) is not int or not 0 <= value <= _UINT64_MAX:
        raise DocumentError(f"expected a number of 64 bits, got {value!r}")
    return value


def _numbers(fields: dict[str, Any], name: str) -> tuple[int, ...]:
    return tuple(_number(each) for each in _list(fields, name))


def _texts(fields: dict[str, Any], name: str) -> tuple[str, ...]:
    texts = _list(fields, name)
    if not all(isinstance(each, str) for each in texts):
        raise DocumentError(f"{name}: expected texts, got {texts!r}")
    return tuple(map(_sound, texts))


def _list(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name)
    if not isinstance(value, list | None):
        raise DocumentError(f"{name}: expected a list, got {value!r}")
    return value or []


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name, "")
    if not isinstance(value, str):
        raise DocumentError(f"{name}: expected a text, got {value!r}")
    return _sound(value)


def _sound(text: str) -> str:
    """Replace unpaired surrogates, as Go does, so that the text can be encoded again."""
    return _SURROGATE.sub("\ufffd", text)


def _flag(fields: dict[str, Any], name: str) -> bool:
    value = fields.get(name, False)
    if not isinstance(value, bool):
        raise DocumentError(f"{name}: expected true or false, got {value!r}")
    return value
