"""Patroni's driver for etcd v3 without a PostgreSQL: a walk through what its nodes do all day.

A program of its own, because the driver's threads end only with their process. It is given the
addresses of three members. It prints the address of the one that it talks to, and goes on without
that one after a line on its standard input.
"""

import importlib
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

WAIT_SECONDS = 60.0
LOOP_SECONDS = 1
UNKNOWN_LEASE = "4242"


def driver(name: str, members: Sequence[str]) -> Any:
    """Return what a node of Patroni has of the cluster's state, kept up to date by a watch."""
    settings = {
        "scope": "walk",
        "name": name,
        "ttl": 30,
        "loop_wait": LOOP_SECONDS,
        "retry_timeout": 10,
        "etcd3": {"hosts": list(members)},
    }
    return importlib.import_module("patroni.dcs").get_dcs(settings)


def hear(node: Any, condition: Callable[[Any], bool]) -> None:
    """Wait until what the node has heard fulfils a condition.

    Its watch wakes it; what it hears when a watch is opened anew, it sees in its next round.
    """
    end = time.monotonic() + WAIT_SECONDS
    while not condition(node.get_cluster()):
        assert time.monotonic() < end, f"not heard of: {node.get_cluster()}"
        node.watch(None, LOOP_SECONDS)


def walk(members: Sequence[str]) -> None:
    """Do everything, once, with two nodes."""
    first, second = driver("first", members), driver("second", members)
    assert first.initialize(create_new=True, sysid="7")
    assert not second.initialize(create_new=True, sysid="8")
    assert first.touch_member({"state": "running"}) and second.touch_member({"state": "running"})

    assert first.attempt_to_acquire_leader()
    hear(second, lambda cluster: cluster.leader_name == "first")
    assert not second.attempt_to_acquire_leader()
    cluster = first.get_cluster()
    assert cluster.leader.session == first._lease, "leases are compared as text"
    assert first.update_leader(cluster, 1000)

    # A lease that is gone is granted anew, and the key goes over to it in a nested transaction.
    assert first._client.lease_keepalive(UNKNOWN_LEASE) is None
    first._lease = UNKNOWN_LEASE
    assert first.update_leader(first.get_cluster(), 1001)
    assert first.get_cluster().leader.session == first._lease != UNKNOWN_LEASE

    assert first.set_config_value('{"ttl":30}')
    config = first.get_cluster().config
    assert first.set_config_value('{"ttl":31}', config.version)
    assert not first.set_config_value('{"ttl":32}', config.version)
    hear(second, lambda cluster: cluster.config and cluster.config.data == {"ttl": 31})
    state = first.write_sync_state("first", ["second"], 0)
    assert first.delete_sync_state(version=state.version)

    # The member that the leader talks to ends; both nodes go on with the others.
    print(first._client._base_uri, flush=True)  # noqa: T201
    sys.stdin.readline()
    assert first.update_leader(first.get_cluster(), 1002)
    hear(second, lambda cluster: cluster.status.last_lsn == 1002)

    assert first.delete_leader(first.get_cluster().leader, 1003)
    hear(second, lambda cluster: cluster.is_unlocked())
    assert second.attempt_to_acquire_leader()
    hear(first, lambda cluster: cluster.leader_name == "second")
    assert second.delete_cluster()


if __name__ == "__main__":
    walk(sys.argv[1:])
