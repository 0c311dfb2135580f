"""Responses by concatenation are what protobuf would have written."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kvorum.api import responses
from kvorum.api.codec import HeaderEncoder, key_value, tombstone
from kvorum.api.pb.etcdserverpb import ResponseHeader, WatchResponse
from kvorum.api.pb.mvccpb import Event, KeyValue

HEADER = HeaderEncoder(1 << 63, 77, 5)

positive = st.integers(1, (1 << 63) - 1)
signed = st.integers(-(1 << 63), (1 << 63) - 1)
binary = st.binary(min_size=1, max_size=40)
key_values = st.builds(
    KeyValue,
    key=binary,
    create_revision=positive,
    mod_revision=positive,
    version=positive,
    value=st.binary(max_size=200),
    lease=st.integers(0, (1 << 63) - 1),
)


def stored(kv: KeyValue) -> bytes:
    return key_value(kv.key, kv.create_revision, kv.mod_revision, kv.version, kv.value, kv.lease)


def header(revision: int) -> ResponseHeader:
    return ResponseHeader(cluster_id=1 << 63, member_id=77, revision=revision, raft_term=5)


@given(key_values, st.none() | key_values, st.booleans(), positive, signed)
def test_an_event(
    kv: KeyValue, prev_kv: KeyValue | None, deleted: bool, main: int, watch_id: int
) -> None:
    row = tombstone(kv.key) if deleted else stored(kv)
    before = None if prev_kv is None else stored(prev_kv)
    event = Event(kv=KeyValue(key=kv.key, mod_revision=main) if deleted else kv, prev_kv=prev_kv)
    if deleted:
        event.type = Event.DELETE
    expected = WatchResponse(header=header(main), watch_id=watch_id, events=[event])
    encoded = (
        HEADER.field(main)
        + responses.watch_id_field(watch_id)
        + responses.event_field(kv.key, main, row, deleted, before)
    )
    assert encoded == expected.SerializeToString(deterministic=True)


@given(st.text(max_size=60), positive, signed)
def test_control_responses(reason: str, revision: int, watch_id: int) -> None:
    field = responses.watch_id_field(watch_id)
    made = [
        (
            responses.watch_refused(HEADER.field(revision), f"no: {reason}"),
            WatchResponse(
                header=header(revision),
                watch_id=-1,
                created=True,
                canceled=True,
                cancel_reason=f"no: {reason}",
            ),
        ),
        (
            responses.watch_compacted(HEADER.field(0), field, revision),
            WatchResponse(
                header=header(0), watch_id=watch_id, canceled=True, compact_revision=revision
            ),
        ),
        (
            HEADER.field(revision) + field + responses.CREATED,
            WatchResponse(header=header(revision), watch_id=watch_id, created=True),
        ),
        (
            HEADER.field(revision) + field + responses.CANCELED,
            WatchResponse(header=header(revision), watch_id=watch_id, canceled=True),
        ),
    ]
    for encoded, expected in made:
        assert encoded == expected.SerializeToString(deterministic=True)


@given(st.lists(st.integers(0, 120), max_size=30), st.integers(1, 400), signed)
def test_fragments(sizes: list[int], limit: int, watch_id: int) -> None:
    events = [
        Event(kv=KeyValue(key=b"k%d" % number, value=bytes(size)))
        for number, size in enumerate(sizes)
    ]
    whole = WatchResponse(header=header(9), watch_id=watch_id, events=events)
    fields = [WatchResponse(events=[event]).SerializeToString() for event in events]
    found = responses.watch_fragments(
        HEADER.field(9), responses.watch_id_field(watch_id), fields, limit
    )

    decoded = [WatchResponse.FromString(data) for data in found]
    for data, response in zip(found, decoded, strict=True):
        assert data == response.SerializeToString(deterministic=True)
        assert response.header == whole.header and response.watch_id == watch_id
    assert [event for response in decoded for event in response.events] == events
    assert [response.fragment for response in decoded] == [True] * (len(found) - 1) + [False]
    if whole.ByteSize() < limit or len(events) < 2:
        assert len(found) == 1
    else:
        for response, following in pairwise(decoded):
            # Below the limit, unless one event alone is not; and no event more would fit.
            assert response.ByteSize() < limit or len(response.events) == 1
            response.events.append(following.events[0])
            assert response.ByteSize() >= limit
