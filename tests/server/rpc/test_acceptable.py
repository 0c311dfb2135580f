"""Other members take every entry that a client's call can cause.

A follower refuses entries that it could not apply; such an entry would stop the cluster.
"""

from hypothesis import given

from kvorum.api.limits import PRODUCTION
from kvorum.member.message_checks import check_entry
from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import decode_message, encode_message
from tests.server.rpc.calls import Call, every_call, sequences
from tests.server.rpc.harness import Harness

EVERYTHING = 1 << 40


@given(calls=sequences(every_call))
def test_other_members_take_what_clients_cause(calls: list[Call]) -> None:
    harness = Harness()
    member = harness.member
    for call in calls:
        harness.ask(call.name, call.request(member.state.store.revision))
    storage = member.replica.storage
    entries = storage.entries(storage.first_index(), storage.last_index() + 1, EVERYTHING)
    assert entries
    for entry in decode_message(encode_message(Message(MessageType.APP, entries=entries))).entries:
        check_entry(entry, PRODUCTION.txn_slice_bytes)
