"""The version that a cluster agrees on, lowered and raised by commands to any member."""

import pytest

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.etcdserverpb import DowngradeRequest
from tests.cluster.members import Cluster, Member
from tests.waiting import until


@pytest.fixture(scope="module")
def make() -> str:
    """Ours alone: downgrades came after the etcd that there is to compare with."""
    return "kvorum"


def ask(member: Member, action: DowngradeRequest.DowngradeAction, version: str = "") -> object:
    request = pb.DowngradeRequest(action=action, version=version)
    answer = member.settled("Maintenance/Downgrade", request)
    return answer if isinstance(answer, Status) else answer.version


def seen_by_all(cluster: Cluster, target: str, storage: str) -> bool:
    found = [member.state() for member in cluster]
    return {(each.downgradeInfo.targetVersion, each.storageVersion) for each in found} == {
        (target, storage)
    }


@pytest.mark.long
def test_a_downgrade_is_begun_and_given_up_through_followers(cluster: Cluster) -> None:
    one, other = cluster.followers()
    until("the version is agreed on", lambda: seen_by_all(cluster, "", "3.7.0"))
    assert ask(one, DowngradeRequest.VALIDATE, "3.5") == errors.INVALID_DOWNGRADE_TARGET_VERSION
    assert ask(one, DowngradeRequest.VALIDATE, "next") == errors.WRONG_DOWNGRADE_VERSION_FORMAT
    assert ask(one, DowngradeRequest.VALIDATE, "3.6") == "3.7"
    until("nothing has begun", lambda: seen_by_all(cluster, "", "3.7.0"))
    assert ask(one, DowngradeRequest.ENABLE, "3.6.0") == "3.7"
    until("the cluster is at the target", lambda: seen_by_all(cluster, "3.6.0", "3.6.0"))
    for member in cluster:
        member.terminate()
        member.start()
        cluster.settle()
    until("restarts change nothing", lambda: seen_by_all(cluster, "3.6.0", "3.6.0"))
    assert ask(other, DowngradeRequest.CANCEL) == "3.6"
    until("it is given up", lambda: seen_by_all(cluster, "", "3.7.0"))
    cluster.check_agreement()
