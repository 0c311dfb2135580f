"""What inspectors are told of the members is compared with what they were."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api.pb.etcdserverpb import MemberAddRequest, MemberListRequest
from kvorum.sim.history import Record
from kvorum.sim.inspectors import STATUS, Inspector
from kvorum.sim.violation import Violation
from tests.incidents.stage import Stage

ADD_PATH = "/etcdserverpb.Cluster/MemberAdd"


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path, members=1)
    yield stage
    stage.close()


@pytest.fixture
def inspector(stage: Stage) -> Inspector:
    return Inspector(stage.world, stage.cluster, stage.cluster, stage.cluster.history, 1)


def listed(stage: Stage) -> Record:
    record = stage.begin(MemberListRequest())
    stage.run_until(lambda: record.finished > 0)
    return record


def test_members_that_never_were_are_noticed(stage: Stage, inspector: Inspector) -> None:
    before, record = inspector._before(1), listed(stage)
    inspector._check(record, before)
    record.response.members[0].ID += 1
    with pytest.raises(Violation, match="there never were") as violation:
        inspector._check(record, before)
    assert violation.value.guarantee == STATUS


def test_the_members_of_a_damaged_machine_may_be_unknown(
    stage: Stage, inspector: Inspector
) -> None:
    assert stage.machine().disk.flip("log")
    added: list[object] = []
    request = MemberAddRequest(peerURLs=["http://m9:2380"], isLearner=True)
    stage.cluster.call(1, ADD_PATH, request.SerializeToString(), added.append)
    stage.run_until(lambda: bool(added))
    before, record = inspector._before(1), listed(stage)
    assert len(record.response.members) == 2
    inspector._check(record, before)
