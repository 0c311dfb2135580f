"""The chart's start script: pods found a cluster, come back, grow, shrink, and lose volumes."""

from pathlib import Path

import pytest

from kvorum.api.pb import etcdserverpb as pb
from tests.certificates import Authority
from tests.deploy.pods import running_pods

pytestmark = pytest.mark.long


def test_three_pods_found_a_cluster_and_come_back(tmp_path: Path) -> None:
    with running_pods(tmp_path, 3) as pods:
        assert pods.names() == ["store-0", "store-1", "store-2"]
        ids = pods.ids()
        pods[1].client.ask("KV/Put", pb.PutRequest(key=b"key"))
        assert pods[1].stop() == 0
        pods[1].start()
        assert pods.names() == ["store-0", "store-1", "store-2"]
        assert pods.ids() == ids
        assert "asks the cluster" not in pods[1].log.read_text()


def test_a_pod_alone_founds_nothing(tmp_path: Path) -> None:
    with running_pods(tmp_path, 3) as pods:
        pods.names()
        for pod in pods:
            pod.stop()
        pods[0].lose_volume()
        pods[0].start()
        pods[0].says("waits for store-1, store-2")
        pods[1].start()
        pods[2].start()
        # Two have a quorum, so the third replaces the member whose votes it has forgotten.
        pods[0].says("has lost the log")
        assert pods.names() == ["store-0", "store-1", "store-2"]
        # A signal ends a pod that waits.
        pods[1].stop()
        pods[2].stop()
        pods[0].stop()
        pods[0].lose_volume()
        pods[0].start()
        pods[0].says("waits for")
        assert pods[0].stop() == 0


def test_a_lost_volume(tmp_path: Path) -> None:
    with running_pods(tmp_path, 3) as pods:
        pods.names()
        before = pods.ids()
        pods[2].client.ask("KV/Put", pb.PutRequest(key=b"key", value=b"value"))
        pods[2].stop()
        pods[2].lose_volume()
        pods[2].start()
        assert pods.names() == ["store-0", "store-1", "store-2"]
        after = pods.ids()
        assert after.pop("store-2") != before.pop("store-2")
        assert after == before
        found = pods[2].client.ask("KV/Range", pb.RangeRequest(key=b"key"))
        assert found.kvs[0].value == b"value"


def test_growth_and_shrinking(tmp_path: Path) -> None:
    with running_pods(tmp_path, 3) as pods:
        assert pods.shrink(3) == 0
        assert pods.names() == ["store-0", "store-1", "store-2"]
        pods.scale(5)
        # Both at once: the second one waits until the first has been promoted.
        pods[3].start()
        pods[4].start()
        assert pods.names() == [f"store-{ordinal}" for ordinal in range(5)]
        gone = [pods[3], pods[4]]
        assert pods.shrink(3) == 0
        for pod in gone:
            assert pod.wait() == 0
            # A restart, before Kubernetes deletes the pod, adds nothing.
            pod.start()
            assert pod.wait() != 0
        pods.scale(3)
        assert pods.names() == ["store-0", "store-1", "store-2"]


def test_a_lost_volume_and_shrinking_with_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "certificates")
    with running_pods(tmp_path, 3, authority) as pods:
        assert pods.names() == ["store-0", "store-1", "store-2"]
        pods[2].stop()
        pods[2].lose_volume()
        pods[2].start()
        assert pods.names() == ["store-0", "store-1", "store-2"]
        gone = pods[2]
        assert pods.shrink(2) == 0
        assert gone.wait() == 0
        pods.scale(2)
        assert pods.names() == ["store-0", "store-1"]
