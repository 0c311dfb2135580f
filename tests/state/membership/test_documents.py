"""JSON of members and configurations: what is written is read back, and damage is refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.raft.messages import ConfState
from kvorum.state.membership.documents import (
    ChangeContext,
    DocumentError,
    MemberDocument,
    decode_conf_state,
    decode_context,
    decode_downgrade,
    decode_member,
    decode_members,
    encode_conf_state,
    encode_downgrade,
    encode_member,
    encode_members,
    encode_promotion,
)

IDS = st.integers(1, (1 << 64) - 1)
TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
URLS = st.lists(TEXTS, max_size=3).map(tuple)
MEMBERS = st.builds(MemberDocument, IDS, URLS, st.booleans(), TEXTS, URLS)
MANY = st.lists(IDS, max_size=3).map(tuple)


@settings(deadline=None)
@given(st.lists(MEMBERS, max_size=4))
def test_members_are_read_back(members: list[MemberDocument]) -> None:
    document = encode_members(members)
    assert decode_members(document) == members
    # Nothing in it that HTML would take for markup.
    assert not set("<>&\u2028\u2029") & set(document.decode())
    for member in members:
        assert decode_member(encode_member(member)) == member
        assert decode_context(encode_member(member)) == ChangeContext(member)


@settings(deadline=None)
@given(st.builds(ConfState, MANY, MANY, MANY, MANY, st.booleans()))
def test_configurations_are_read_back(state: ConfState) -> None:
    assert decode_conf_state(encode_conf_state(state)) == state


def test_the_order_of_fields() -> None:
    member = MemberDocument(1 << 63, ("http://p:1",), True, "n1", ("http://c:1", "http://c:2"))
    assert encode_member(member) == (
        b'{"id":9223372036854775808,"peerURLs":["http://p:1"],"isLearner":true,'
        b'"name":"n1","clientURLs":["http://c:1","http://c:2"]}'
    )
    assert encode_member(MemberDocument(1)) == b'{"id":1,"peerURLs":null}'
    assert encode_promotion(5) == b'{"id":5,"peerURLs":null,"isPromote":true}'
    assert decode_context(encode_promotion(5)) == ChangeContext(
        MemberDocument(5), is_promotion=True
    )
    state = ConfState((1, 2), (3,))
    assert encode_conf_state(state) == b'{"voters":[1,2],"learners":[3],"auto_leave":false}'


@pytest.mark.parametrize("target", ["3.6.0", None])
def test_downgrade_jobs(target: str | None) -> None:
    document = encode_downgrade(target or "", is_enabled=target is not None)
    assert decode_downgrade(document) == target


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"{",
        b"[]",
        b"7",
        b"\xff",
        b'{"id":"1"}',
        b'{"id":-1}',
        b'{"id":18446744073709551616}',
        b'{"id":1.5}',
        b'{"id":true}',
        b'{"id":1,"peerURLs":"x"}',
        b'{"id":1,"peerURLs":[1]}',
        b'{"id":1,"isLearner":1}',
        b'{"id":1,"name":null}',
    ],
)
def test_other_documents_are_refused(document: bytes) -> None:
    with pytest.raises(DocumentError):
        decode_member(document)
    with pytest.raises(DocumentError):
        decode_members(b"[%b]" % document if document else b"{}")


def test_unknown_fields_are_passed_over() -> None:
    document = json.dumps({"id": 1, "peerURLs": ["u"], "new": {"x": 1}}).encode()
    assert decode_member(document) == MemberDocument(1, ("u",))
