"""Long ranges are answered one after the other, as their clients take the answers."""

from kvorum.api.limits import PRODUCTION
from kvorum.api.pb import etcdserverpb as pb
from tests.server.rpc.harness import Harness

RUNNING_MAX = PRODUCTION.long_reads_running_max
PATH = "/etcdserverpb.KV/Range"
ALL = pb.RangeRequest(key=b"k", range_end=b"l", serializable=True)


def filled() -> Harness:
    harness = Harness()
    for start in range(0, 3000, 1000):
        puts = [put(number) for number in range(start, start + 1000)]
        harness.begin_all("/etcdserverpb.KV/Put", puts)
    harness.until(lambda: len(harness.edge.replies) == 3000)
    return harness


def put(number: int) -> bytes:
    return pb.PutRequest(key=b"k%05d" % number, value=bytes(100)).SerializeToString()


def test_no_long_answer_is_made_without_room() -> None:
    harness = filled()
    asked: list[int] = []
    open_calls: set[int] = set()

    def has_room(call: int, is_long: bool) -> bool:
        asked.append(call)
        return is_long and call in open_calls

    harness.member.replica.long_reads.has_room = has_room
    calls = harness.begin_all(PATH, [ALL.SerializeToString()] * (3 * RUNNING_MAX))
    harness.settle()
    assert set(calls) <= set(asked)
    assert not set(calls) & set(harness.edge.replies)
    # Short reads do not wait for them.
    short = pb.RangeRequest(key=b"k00001", serializable=True)
    assert len(harness.ask("KV/Range", short).kvs) == 1
    # And the last one is answered first, if its client has room.
    open_calls.add(calls[-1])
    answer = pb.RangeResponse.FromString(taken(harness, calls[-1]))
    assert len(answer.kvs) == 3000
    assert not set(calls[:-1]) & set(harness.edge.replies)
    open_calls.update(calls)
    for call in calls:
        assert taken(harness, call) == taken(harness, calls[-1])


def taken(harness: Harness, call: int) -> bytes:
    answer = harness.answer(call)
    assert isinstance(answer, bytes)
    return answer


def test_only_a_few_run_at_once() -> None:
    harness = filled()
    harness.looks_max = 1
    calls = harness.begin_all(PATH, [ALL.SerializeToString()] * 10)
    while True:
        harness.turn()
        done = [call for call in calls if call in harness.edge.replies]
        if done:
            break
    # The first ones end before the others begin.
    assert len(done) <= RUNNING_MAX
    assert set(done) <= set(calls[:RUNNING_MAX])
    harness.looks_max = 0
    harness.until(lambda: set(calls) <= set(harness.edge.replies))
