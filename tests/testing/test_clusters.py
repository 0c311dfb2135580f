"""The fixture with a cluster: faults and waits, by the fixture itself and in runs of pytest."""

from contextlib import suppress

import pytest

from kvorum.client import Client, DeadlineError, KvorumError, TooManyOperationsError
from kvorum.client import put as client_put
from kvorum.testing import Cluster, WorkerError
from tests.testing.conftest import Run
from tests.waiting import WAIT_SECONDS_MAX, until


def others(cluster: Cluster, *members: int) -> list[int]:
    return [each for each in range(len(cluster)) if each not in members]


def patient(cluster: Cluster, *members: int) -> Client:
    """Return a client whose calls a busy machine does not end."""
    return cluster.client(*members, timeout=WAIT_SECONDS_MAX)


def put(client: Client, value: str) -> None:
    """Put the key; a busy machine may let members elect another leader amid a call."""

    def is_put() -> bool:
        with suppress(KvorumError):
            client.put("key", value)
            return True
        return False

    until("the cluster takes a key", is_put)


@pytest.mark.long
def test_a_killed_leader_is_replaced_and_comes_back(kvorum_cluster: Cluster) -> None:
    put(patient(kvorum_cluster), "1")

    def leader_and_followers() -> list[int] | None:
        found = [kvorum_cluster.leader(), *kvorum_cluster.followers()]
        # On a busy machine there may be another leader by the second question.
        return found if sorted(found) == [0, 1, 2] else None

    killed, *_ = until("one member leads, and the others follow", leader_and_followers)
    kvorum_cluster.kill(killed)
    assert kvorum_cluster.leader() in others(kvorum_cluster, killed)
    put(patient(kvorum_cluster, *others(kvorum_cluster, killed)), "2")
    with pytest.raises(WorkerError, match=f"member {killed} does not run; restart it first"):
        kvorum_cluster.pause(killed)
    with pytest.raises(WorkerError, match=f"not within .*member {killed} .* ended with -9"):
        kvorum_cluster.settle(timeout=0.1)

    kvorum_cluster.restart(killed)
    kvorum_cluster.settle()
    found = patient(kvorum_cluster, killed).get("key")
    assert found is not None and found.value == b"2"
    # One that runs ends cleanly before it starts again.
    kvorum_cluster.restart(killed)
    assert "closed etcd server" in kvorum_cluster.log(killed)


@pytest.mark.long
def test_without_a_majority_there_is_no_leader(kvorum_cluster: Cluster) -> None:
    leader = kvorum_cluster.leader()
    first, second = others(kvorum_cluster, leader)
    kvorum_cluster.kill(first)
    kvorum_cluster.kill(second)
    with pytest.raises(KvorumError):
        kvorum_cluster.client(leader, timeout=0.2).put("key", "value")
    with pytest.raises(WorkerError, match=r"leader: not within 0\.1 s"):
        kvorum_cluster.leader(timeout=0.1)
    kvorum_cluster.restart(first, wait=False)
    assert kvorum_cluster.leader() in (leader, first)
    put(patient(kvorum_cluster, leader, first), "value")


def test_a_partition_lets_the_majority_go_on(kvorum_cluster: Cluster) -> None:
    alone = kvorum_cluster.leader()
    watching = patient(kvorum_cluster, alone)
    with watching.watch("key") as watch:
        kvorum_cluster.isolate(alone)
        leader = kvorum_cluster.leader()
        assert leader != alone
        put(patient(kvorum_cluster, *others(kvorum_cluster, alone)), "value")
        # It neither writes nor reads what is new, until the others reach it.
        with pytest.raises(KvorumError):
            kvorum_cluster.client(alone, timeout=0.2).put("key", "other")
        stale = patient(kvorum_cluster, alone).get("key", serializable=True)
        assert stale is None
        kvorum_cluster.heal()
        kvorum_cluster.settle()
        assert next(watch).value == b"value"


def test_groups_of_a_partition(kvorum_cluster: Cluster) -> None:
    kvorum_cluster.partition([0], [1], [2])
    with pytest.raises(WorkerError):
        kvorum_cluster.leader(timeout=0.1)
    kvorum_cluster.partition([0, 1])
    assert kvorum_cluster.leader() in (0, 1)
    with pytest.raises(ValueError, match="in one group alone"):
        kvorum_cluster.partition([0, 1], [1])
    with pytest.raises(ValueError, match="there is no member 3; members are 0 to 2"):
        kvorum_cluster.partition([3])


def test_a_paused_leader_is_replaced(kvorum_cluster: Cluster) -> None:
    paused = kvorum_cluster.leader()
    kvorum_cluster.pause(paused)
    with pytest.raises(DeadlineError):
        kvorum_cluster.client(paused, timeout=0.2).get("key", serializable=True)
    assert kvorum_cluster.leader() != paused
    put(patient(kvorum_cluster, *others(kvorum_cluster, paused)), "value")
    kvorum_cluster.resume(paused)
    kvorum_cluster.settle()
    found = patient(kvorum_cluster, paused).get("key")
    assert found is not None and found.value == b"value"


@pytest.mark.long
@pytest.mark.kvorum(tls=True, auth=True, flags={"max-txn-ops": 1})
def test_tls_users_and_flags(kvorum_cluster: Cluster) -> None:
    assert all(url.startswith("https://") for url in kvorum_cluster.urls)
    client = patient(kvorum_cluster)
    put(client, "value")
    assert client.auth.users() == ["root"]
    with pytest.raises(KvorumError):
        kvorum_cluster.client(user="").get("key")
    alone = kvorum_cluster.leader()
    kvorum_cluster.isolate(alone)
    assert kvorum_cluster.leader() != alone
    with pytest.raises(TooManyOperationsError):
        client.txn().then(client_put("a", ""), client_put("b", "")).commit()


@pytest.mark.long
def test_reports_and_refusals(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import pytest

        def test_fails(kvorum_cluster):
            kvorum_cluster.kill(kvorum_cluster.leader())
            assert False

        @pytest.mark.kvorum(flags={"election-timeout": 30})
        def test_refused(kvorum_cluster):
            pass
        """
    )
    result = run_pytest()
    result.assert_outcomes(failed=1, errors=1)
    result.stdout.fnmatch_lines(
        [
            "no kvorum_cluster for this test: member ? ended with 1; it logged:",
            "*should be at least*",
            "*- kvorum cluster -*",
            "member 0 *; member 1 *; member 2 *",
            "*- kvorum log of member 0 -*",
            "*- kvorum log of member 1 -*",
            "*- kvorum log of member 2 -*",
        ]
    )
