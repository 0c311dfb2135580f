"""Incidents of the field about watches: each test is named for etcd's issue."""

from kvorum.api.pb.etcdserverpb import DeleteRangeRequest, PutRequest, RequestOp, TxnRequest
from kvorum.api.pb.mvccpb import Event
from tests.incidents.conftest import MakeStage


def test_15220_progress_comes_behind_the_events_before_it(make_stage: MakeStage) -> None:
    stage = make_stage(1)
    watch = stage.watch(b"k/", b"k0", 1)
    for number in range(40):
        stage.begin(PutRequest(key=b"k/%d" % (number % 3), value=b"%d" % number))
        if number % 3 == 0:
            watch.ask_for_progress()
        stage.run(0.0005 * (number % 5))
    watch.wait(40)
    watch.ask_for_progress()
    count = len(watch.responses)
    stage.run_until(lambda: len(watch.responses) > count)
    complete, told = 0, 0
    for response in watch.responses[1:]:
        if response.events:
            assert response.events[0].kv.mod_revision > complete
            told = response.events[-1].kv.mod_revision
        else:
            complete = response.header.revision
            assert complete >= told
    assert complete == max(watch.revisions)


def test_15271_a_watch_does_not_go_back_after_a_partition(make_stage: MakeStage) -> None:
    """A follower is cut off, falls behind, and gets a snapshot; who watches there goes on."""
    stage = make_stage(3, snapshot_entries=3, catch_up_entries=1)
    behind = stage.followers()[0]
    others = [each for each in stage.cluster.members if each != behind]
    watch = stage.watch(b"k/", b"k0", 1, member=behind)
    last = 0
    for number in range(3):
        last = stage.put(b"k/0", b"before %d" % number, behind)
        stage.isolate(behind)
        for each in range(8):
            last = stage.put(b"k/%d" % each, b"%d.%d" % (number, each), others[0])
        stage.heal()
        stage.serve()
    watch.wait(27)
    assert watch.revisions == sorted(set(watch.revisions)) and len(watch.revisions) == 27
    # And whoever goes on from there at another member misses nothing and repeats nothing.
    resumed = stage.watch(b"k/", b"k0", watch.revisions[10] + 1, member=others[1])
    resumed.wait(16)
    assert resumed.revisions == watch.revisions[11:] and resumed.revisions[-1] == last


def test_17247_a_transaction_is_told_once(make_stage: MakeStage) -> None:
    """One transaction, watched by several ranges at once: no event is told twice."""
    stage = make_stage(1)
    stage.put(b"k/0", b"a")
    stage.put(b"k/1", b"b")
    watches = [
        stage.watch(key, end, 1)
        for key, end in [(b"k/", b"k0"), (b"k/0", b""), (b"\0", b"\0"), (b"k/0", b"k/2")]
    ]
    operations = [
        RequestOp(request_put=PutRequest(key=b"k/0", value=b"c")),
        RequestOp(request_delete_range=DeleteRangeRequest(key=b"k/1")),
        RequestOp(request_put=PutRequest(key=b"k/2", value=b"d")),
    ]
    main = stage.ask(TxnRequest(success=operations)).header.revision
    stage.run(1.0)
    for watch in watches:
        keys = [(event.kv.mod_revision, event.kv.key) for event in watch.events]
        assert len(keys) == len(set(keys))
        told = [response for response in watch.responses if response.header.revision == main]
        assert len([response for response in told if response.events]) == 1, "one response"
    whole = [event for event in watches[0].events if event.kv.mod_revision == main]
    assert [event.kv.key for event in whole] == [b"k/0", b"k/1", b"k/2"]
    assert whole[1].type == Event.DELETE and whole[1].prev_kv.value == b"b"


def test_17529_a_starved_stream_loses_nothing(make_stage: MakeStage) -> None:
    """A client takes nothing while others write, asks for progress, and then takes everything."""
    stage = make_stage(1)
    watch = stage.watch(b"k/", b"k0", 1)
    stage.cluster.stall(1, watch.call, 2.0)
    for number in range(120):
        stage.put(b"k/%d" % (number % 5), b"%d" % number + b"." * 500)
        if number % 20 == 0:
            watch.ask_for_progress()
    assert len(watch.events) < 120, "it was starved"
    watch.wait(120)
    assert watch.revisions == sorted(set(watch.revisions))
    complete = 0
    for response in watch.responses[1:]:
        assert not response.events or response.events[0].kv.mod_revision > complete
        complete = max(complete, 0 if response.events else response.header.revision)


def test_20221_a_watch_from_the_future_hears_nothing_before(make_stage: MakeStage) -> None:
    stage = make_stage(3)
    now = stage.put(b"k/0", b"a")
    start = now + 5
    watches = [stage.watch(b"k/", b"k0", start, member=each) for each in stage.cluster.members]
    for number in range(8):
        for watch in watches:
            watch.ask_for_progress()
        stage.put(b"k/%d" % number, b"%d" % number)
    for watch in watches:
        watch.wait(4)
        stage.run(0.2)
        assert watch.revisions == list(range(start, start + 4))
        for response in watch.responses[1:]:
            # No progress is told of a revision before the first one it wants.
            assert response.header.revision >= start
