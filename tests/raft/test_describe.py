"""Text forms, to the letter."""

import json

from kvorum.raft.changes import Change, ConfChangeV2
from kvorum.raft.describe import (
    conf_change_text,
    entry_text,
    message_text,
    quote,
    ready_text,
)
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import (
    APPEND_THREAD,
    APPLY_THREAD,
    ConfState,
    Message,
    MessageType,
    Snapshot,
)
from kvorum.raft.ready import Ready
from kvorum.raft.states import ReadState
from kvorum.raft.status import status
from tests.raft.cores import lead, new_core


def test_message() -> None:
    empty = Entry(EntryType.NORMAL, 0, 0)
    response = Message(
        MessageType.APP_RESP, to=17, sender=26, reject=True, reject_hint=4, entries=[empty, empty]
    )
    message = Message(
        MessageType.STORAGE_APPEND,
        to=APPEND_THREAD,
        sender=26,
        term=2,
        vote=26,
        commit=3,
        entries=[empty, Entry(EntryType.CONF_CHANGE, 0, 0)],
        snapshot=Snapshot(11, 1, ConfState((10, 11))),
        responses=[response],
    )
    assert message_text(message) == (
        "1a->AppendThread MsgStorageAppend Term:2 Log:0/0 Commit:3 Vote:26 Entries:[\n"
        '  0/0 EntryNormal ""\n'
        "  0/0 EntryConfChange v0\n"
        "]\n"
        "  Snapshot: Index:11 Term:1 ConfState:Voters:[10 11] VotersOutgoing:[] Learners:[] "
        "LearnersNext:[] AutoLeave:false Responses:[\n"
        "  1a->11 MsgAppResp Term:0 Log:0/0 Rejected (Hint: 4) Entries:[\n"
        '    0/0 EntryNormal ""\n'
        '    0/0 EntryNormal ""\n'
        "  ]\n"
        "]"
    )
    assert message_text(Message(MessageType.HUP, to=APPLY_THREAD)).startswith("None->ApplyThread ")


def test_entry() -> None:
    data = b'a\x00\x7f\xff\xc3\xa9\xe2\x80\x8b"\\\n'
    assert entry_text(Entry(0, 1, 2, data)) == r'1/2 EntryNormal "a\x00\x7f\xffé\u200b\"\\\n"'
    assert entry_text(Entry(0, 1, 2, b"hello\0world")) == r'1/2 EntryNormal "hello\x00world"'
    assert entry_text(Entry(2, 1, 6)) == "1/6 EntryConfChangeV2"
    assert entry_text(Entry(1, 1, 6, b"\x0b")).startswith("1/6 EntryConfChange wire type 3")


def test_quote() -> None:
    assert quote("\U000e0001\t\x07".encode()) == r'"\U000e0001\t\a"'


def test_ready() -> None:
    ready = Ready(read_states=[ReadState(5, b"ab"), ReadState(6, b"")])
    assert ready_text(ready) == "Ready MustSync=false:\nReadStates [{5 [97 98]} {6 []}]\n"
    assert ready_text(Ready()) == "<empty Ready>"


def test_conf_change() -> None:
    assert conf_change_text(ConfChangeV2(0, (Change(2, 17),), b"x")) == (
        "transition:ConfChangeTransitionAuto "
        'changes:{type:ConfChangeUpdateNode node_id:17} context:"x"'
    )


def test_status_of_a_new_leader() -> None:
    core = lead(new_core(26, (10, 26)))
    shown = status(core)
    assert str(shown.config) == "voters=(a 1a)"
    assert [f"{node}: {peer}" for node, peer in shown.progress.items()] == [
        "10: StateProbe match=0 next=1 inactive",
        "26: StateReplicate match=0 next=1",
    ]
    assert json.loads(shown.json()) == json.loads(
        '{"id":"1a","term":1,"vote":"1a","commit":0,"lead":"1a","raftState":"StateLeader",'
        '"applied":0,"progress":{"1a":{"match":0,"next":1,"state":"StateReplicate"},'
        '"a":{"match":0,"next":1,"state":"StateProbe"}},"leadtransferee":"0"}'
    )
    core.become_follower(1, 0)
    assert status(core).progress == {}
    assert '"progress":{},' in status(core).json()
