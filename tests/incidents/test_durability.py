"""Incidents of the field about what a crash leaves: each test is named for etcd's issue."""

import pytest

from kvorum.api.limits import PRODUCTION, WorkLimits
from kvorum.api.pb.etcdserverpb import DefragmentRequest, DefragmentResponse, PutRequest
from kvorum.sim.calls import METHODS
from kvorum.sim.coverage_points import count_coverage
from kvorum.sim.violation import Violation
from tests.incidents.conftest import MakeStage
from tests.incidents.stage import Stage

METHODS.setdefault(DefragmentRequest, ("/etcdserverpb.Maintenance/Defragment", DefragmentResponse))


def cut_off(stage: Stage, calls: int, work: list[object]) -> list[object]:
    """Let the power fail after some calls to the disk; return the answers until then.

    Afterwards the member is up again, on what was left.
    """
    machine = stage.machine()
    machine.disk.cut_off_after(calls)
    answers = []
    for request in work:
        record = stage.begin(request)
        stage.world.run_while(
            lambda record=record: not record.finished and not machine.is_dead,  # type: ignore[misc]
            stage.world.now + 5.0,
        )
        if machine.is_dead:
            break
        answers.append(record.response)
    machine.disarm()
    if not machine.is_dead:
        machine.crash(power_cut=True)
    machine.start()
    stage.serve()
    return answers


def test_13766_index_and_effects_are_one_write(make_stage: MakeStage) -> None:
    """Whatever call the power fails before: no entry is skipped, and none is applied twice."""
    was_cut = 0
    for calls in range(0, 36, 3):
        stage = make_stage(1, seed=calls, flush_writes_max=3, snapshot_entries=5)
        work = [PutRequest(key=b"k/%d" % (n % 3), value=b"%d" % n) for n in range(12)]
        answers = cut_off(stage, calls, list(work))
        was_cut += len(answers) < len(work)
        stage.everything()
        # One history: every revision has the effects it had before the crash.
        stage.judge()
    assert was_cut > 3


def test_13766_members_agree_after_one_was_cut_off(make_stage: MakeStage) -> None:
    stage = make_stage(3, flush_writes_max=3)
    for number in range(30):
        member = number % 3 + 1
        if number % 10 == 5:
            stage.machine(member).disk.cut_off_after(number % 7)
            stage.run(0.2)
            stage.restart(member)
            stage.serve()
        stage.put(b"k/%d" % (number % 4), b"%d" % number, member)
    stage.agree()
    stage.judge()


def test_14370_one_member_answers_after_its_sync(make_stage: MakeStage) -> None:
    """The power fails in the very moment of the answer, twenty times; nothing is lost."""
    stage = make_stage(1)
    for number in range(20):
        revision = stage.put(b"k/%d" % number, b"%d" % number)
        stage.restart()
        stage.serve()
        found = stage.everything()
        assert found.header.revision >= revision
        assert b"k/%d" % number in [kv.key for kv in found.kvs]
    stage.judge()


def test_14685_a_crash_in_a_defragmentation_loses_nothing(make_stage: MakeStage) -> None:
    was_cut = 0
    for calls in range(0, 27, 3):
        stage = make_stage(1, seed=calls)
        last = [stage.put(b"k/%d" % number, b"%d" % number) for number in range(6)][-1]
        before = stage.everything()
        was_cut += not cut_off(stage, calls, [DefragmentRequest()])
        found = stage.everything()
        assert found.header.revision >= last
        kept = [kv for kv in found.kvs if kv.key.startswith(b"k/")]
        assert kept == [kv for kv in before.kvs if kv.key.startswith(b"k/")]
        stage.judge()
    assert was_cut > 3


@pytest.mark.parametrize("seed", range(4))
def test_14685_a_snapshot_is_installed_amid_defragmentations(
    make_stage: MakeStage, seed: int
) -> None:
    """Several wait for each other when the database is replaced: they leave the new one alone.

    One that waited began on the database from before, and removed the file that took its place.
    """
    stage = make_stage(3, seed=seed, snapshot_entries=2, catch_up_entries=1, flush_seconds=0.02)
    behind = stage.followers()[0]
    others = [each for each in stage.cluster.members if each != behind]
    for number in range(3):
        stage.isolate(behind)
        for each in range(6):
            stage.put(b"k/%d" % each, b"%d.%d" % (number, each), others[each % 2])
        stage.heal()
        for _ in range(30):
            stage.begin(DefragmentRequest(), behind)
            stage.run(0.01)
        stage.serve()
    stage.agree()
    stage.restart(behind)
    stage.serve()
    stage.agree()
    stage.judge()


def test_17780_the_revision_does_not_go_back_after_a_crash_in_a_compaction(
    make_stage: MakeStage,
) -> None:
    """All keys are gone, and their last revision is compacted: only the compaction knows it."""
    for calls in range(0, 24, 3):
        stage = make_stage(1, seed=calls, compaction_batch=1)
        for number in range(4):
            stage.put(b"k/%d" % number, b"%d" % number)
        last = [stage.delete(b"k/%d" % number) for number in range(4)][-1]
        stage.machine().disk.cut_off_after(calls)
        stage.begin_compaction(last)
        stage.run(0.3)
        stage.restart()
        stage.serve()
        assert stage.everything().header.revision >= last
        stage.judge()


@pytest.mark.parametrize("is_restarted", [False, True])
def test_18089_a_deletion_at_the_compacted_revision_is_told(
    make_stage: MakeStage, is_restarted: bool
) -> None:
    """Issue 19179 is the same bug again."""
    stage = make_stage(1)
    stage.put(b"k/0", b"a")
    deleted = stage.delete(b"k/0")
    stage.put(b"k/1", b"b")
    stage.compact(deleted)
    if is_restarted:
        stage.restart()
        stage.serve()
    watch = stage.watch(b"k/", b"k0", deleted)
    watch.wait(2)
    assert watch.revisions == [deleted, deleted + 1]


def test_18055_snapshots_in_quick_succession(make_stage: MakeStage) -> None:
    """A follower that is cut off again and again gets one snapshot after the other."""
    # A leader that has sent one keeps entries for half a minute, and needs no second one.
    limits = WorkLimits(log_held_after_sending_seconds=0.0)
    stage = make_stage(3, snapshot_entries=2, catch_up_entries=1, flush_writes_max=2, limits=limits)
    behind = stage.followers()[0]
    others = [each for each in stage.cluster.members if each != behind]
    with count_coverage() as reached:
        for number in range(6):
            stage.isolate(behind)
            for each in range(15):
                stage.put(b"k/%d" % each, b"%d.%d" % (number, each), others[each % 2])
            # The leader flushes, and drops its entries.
            stage.run(0.1)
            stage.heal()
            # Sometimes the next one is needed before the last one is installed.
            stage.run(0.2 * number)
            if number == 3:
                stage.restart(behind)
        stage.serve()
    assert reached["snapshot installed"] > 2
    stage.agree()
    stage.judge()


def test_entries_are_kept_for_a_while_for_whoever_was_sent_a_snapshot(
    make_stage: MakeStage,
) -> None:
    """So that it does not fall behind again while it installs."""
    stage = make_stage(3, snapshot_entries=2, catch_up_entries=1, flush_writes_max=2)
    behind = stage.followers()[0]
    others = [each for each in stage.cluster.members if each != behind]

    def fall_behind() -> None:
        stage.isolate(behind)
        for each in range(15):
            stage.put(b"k/%d" % each, b"v", others[each % 2])
        stage.run(0.5)
        stage.heal()
        stage.serve()
        stage.agree()

    fall_behind()
    fall_behind()
    assert stage.cluster.snapshots == 1
    stage.run(PRODUCTION.log_held_after_sending_seconds)
    fall_behind()
    assert stage.cluster.snapshots == 2


def test_20271_damage_in_the_database_is_found(make_stage: MakeStage) -> None:
    """A bit of what is durable flips: the member stops, or what it answers is right."""
    flipped = 0
    for seed in range(4):
        stage = make_stage(1, seed=seed, flush_seconds=0.02)
        for number in range(8):
            stage.put(b"k/%d" % number, b"%d" % number)
        stage.run(0.5)
        machine = stage.machine()
        flipped += any(machine.disk.flip("database") for _ in range(20))
        machine.crash(power_cut=False)
        machine.start()
        if not machine.is_dead:
            stage.answer_or_stop()
        stage.judge()
    assert flipped > 1


def test_6378_a_torn_tail_does_not_stop_a_restart(make_stage: MakeStage) -> None:
    """What was being written when the power failed is torn in all ways; 6379 is its twin."""
    torn = 0
    for seed in range(12):
        stage = make_stage(1, seed=seed)
        stage.put(b"k/0", b"0")
        for number in range(1, 9):
            stage.begin(PutRequest(key=b"k/%d" % number, value=b"%d" % number + b"." * 3000))
        stage.machine().disk.cut_off_after(seed % 5)
        stage.run(0.05)
        try:
            stage.restart()
        except Violation as violation:
            raise AssertionError(f"seed {seed}") from violation
        stage.serve()
        names = stage.machine().files.list("/data/member/wal")
        torn += any(name.endswith(".broken") for name in names)
        assert b"k/0" in [kv.key for kv in stage.everything().kvs]
        stage.judge()
    assert torn > 0
