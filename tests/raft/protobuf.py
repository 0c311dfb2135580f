"""Random values of raftpb, and the same values as protobuf messages."""

from typing import Any

from hypothesis import strategies as st

from kvorum.api.pb import raftpb
from kvorum.raft.entries import Entry
from kvorum.raft.messages import ConfState, HardState, Message, Snapshot

UINT64_MAX = (1 << 64) - 1
numbers = st.one_of(
    st.integers(0, 300), st.integers(0, UINT64_MAX), st.sampled_from([127, 128, 16383, 16384])
)
payloads = st.one_of(st.binary(max_size=20), st.integers(120, 140).map(bytes))
ids = st.lists(numbers, max_size=3).map(tuple)
entries = st.builds(Entry, st.integers(0, 2), numbers, numbers, payloads)
conf_states = st.builds(ConfState, ids, ids, ids, ids, st.booleans())
snapshots = st.builds(Snapshot, st.integers(1, UINT64_MAX), numbers, conf_states, payloads)
hard_states = st.builds(HardState, numbers, numbers, numbers)


def lists(elements: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.just(()), st.lists(elements, min_size=1, max_size=3))


def messages(responses: st.SearchStrategy[Any]) -> st.SearchStrategy[Message]:
    return st.builds(
        Message,
        st.integers(0, 23),
        *[numbers] * 5,
        lists(entries),
        numbers,
        numbers,
        st.none() | snapshots,
        st.booleans(),
        numbers,
        payloads,
        responses,
    )


all_messages = messages(lists(messages(st.just(()))))


def protobuf_entry(entry: Entry, *, explicit: bool) -> raftpb.Entry:
    made = raftpb.Entry(Term=entry.term, Index=entry.index)
    if entry.type or explicit:
        made.Type = entry.type  # type: ignore[assignment]
    if entry.data or explicit:
        made.Data = entry.data
    return made


def protobuf_conf_state(state: ConfState) -> raftpb.ConfState:
    return raftpb.ConfState(
        voters=state.voters,
        learners=state.learners,
        voters_outgoing=state.voters_outgoing,
        learners_next=state.learners_next,
        auto_leave=state.auto_leave,
    )


def protobuf_snapshot(snapshot: Snapshot) -> raftpb.Snapshot:
    made = raftpb.Snapshot(
        metadata=raftpb.SnapshotMetadata(
            conf_state=protobuf_conf_state(snapshot.conf_state),
            index=snapshot.index,
            term=snapshot.term,
        )
    )
    if snapshot.data:
        made.data = snapshot.data
    return made


FIELDS = {
    "to": "to",
    "from": "sender",
    "term": "term",
    "logTerm": "log_term",
    "index": "index",
    "commit": "commit",
    "vote": "vote",
    "reject": "reject",
    "rejectHint": "reject_hint",
    "context": "context",
}


def protobuf_message(message: Message, *, explicit: bool) -> raftpb.Message:
    """With `explicit`, as members before 3.7 write it: every zero, and an empty snapshot."""
    made = raftpb.Message(type=message.type)  # type: ignore[arg-type]
    for theirs, ours in FIELDS.items():
        value = getattr(message, ours)
        if value or explicit:
            setattr(made, theirs, value)
    made.entries.extend(protobuf_entry(entry, explicit=explicit) for entry in message.entries)
    if message.snapshot is not None:
        made.snapshot.CopyFrom(protobuf_snapshot(message.snapshot))
    elif explicit:
        made.snapshot.CopyFrom(protobuf_snapshot(Snapshot(0, 0)))
    made.responses.extend(protobuf_message(each, explicit=explicit) for each in message.responses)
    return made
