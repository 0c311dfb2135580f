"""A member that joins, and ends before it has heard anything of its cluster."""

from dataclasses import replace

from tests.member.harness import Cluster, Machine


def test_a_joining_member_never_founds_a_cluster() -> None:
    cluster = Cluster(1)
    known = cluster[0].running.state.cluster.cluster_id
    machine = Machine(cluster, "m9", cluster.config("m9", joins=(99, known)))
    machine.start()
    machine.turn()
    machine.kill()
    # There is a log now, so nobody is asked again; the flags list the members, with this one.
    urls = {name: (f"http://{name}:2380",) for name in ("m0", "m9")}
    machine.config = replace(machine.config, joins=None, initial_cluster=urls)
    member = machine.start()
    machine.turn()
    assert (member.id, member.state.cluster.cluster_id) == (99, known)
    assert member.conf_state.voters == ()
    assert member.committed == 0
    assert member.replica.node.raft.log.last_index() == 0


def test_a_founder_founds_again_what_was_not_written() -> None:
    cluster = Cluster(2)
    machine = cluster[0]
    machine.lose_power(lambda: False)
    member = machine.start()
    machine.turn()
    assert member.id in member.conf_state.voters
    assert len(member.conf_state.voters) == 2
