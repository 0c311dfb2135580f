"""A member whose database was changed unnoticed is found by the comparison of hashes."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.corruption import alarms, tamper
from tests.cluster.members import PATIENT, Cluster, is_done, running_cluster
from tests.waiting import until


@pytest.fixture
def checking(tmp_path: Path) -> Iterator[Cluster]:
    """Three members whose leader compares them every second."""
    with running_cluster(tmp_path, "kvorum", 3, "--corrupt-check-time=1s") as cluster:
        yield cluster


@pytest.mark.long
def test_a_changed_value_raises_the_alarm(checking: Cluster) -> None:
    victim, through = checking.followers()
    for number in range(20):
        through.put(b"key/%d" % number, b"true")
    # A leader takes the others for those that differ, so this one had better not campaign.
    victim.flags = (PATIENT,)
    victim.terminate()
    tamper(victim, b"key/7", b"false")
    victim.start()
    until("it serves", victim.status)
    assert victim.get(b"key/7", serializable=True) == b"false"
    found = until("the alarm is raised", lambda: alarms(through))
    assert found == [(victim.id, pb.CORRUPT)]
    for member in checking:
        until(
            f"{member} refuses writes",
            lambda member=member: (  # type: ignore[misc]
                member.ask("KV/Put", pb.PutRequest(key=b"key/7")) == errors.CORRUPT
            ),
        )
        assert any("CORRUPT" in each for each in member.state().errors)
    # What an operator does: the member is made anew, and the alarm is cleared.
    remove = pb.MemberRemoveRequest(ID=victim.id)
    until("it is removed", lambda: is_done(through.ask("Cluster/MemberRemove", remove)))
    victim.wait()
    clear = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, memberID=victim.id, alarm=pb.CORRUPT)
    through.answer("Maintenance/Alarm", clear)
    checking.forget(victim)
    through.put(b"key/7", b"true again")
    checking.check_agreement()


def test_a_changed_member_does_not_start(checking: Cluster) -> None:
    victim, through = checking.followers()
    through.put(b"key", b"true")
    # It asks the others for their hashes for as long as it is patient.
    victim.flags = ("--feature-gates=InitialCorruptCheck=true", PATIENT)
    victim.terminate()
    victim.start()
    until("it serves", victim.status)
    victim.terminate()
    tamper(victim, b"key", b"false")
    size = victim.log_size()
    victim.start()
    assert victim.wait() != 0
    assert victim.logged("found data inconsistency with peers", size), victim.log_tail()
