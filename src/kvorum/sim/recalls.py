"""Starts removed members again when a remaining member waits for their votes.

Of two members the removed one may be gone before the other knows: the other has the change, but
not its commit, and no member can lead. etcd has no other way out either, except for forcing a new
cluster. A removed member that is started runs for a second, which is enough.
"""

from collections.abc import Mapping

from kvorum.sim.machine import Machine

RECALL_SECONDS = 5.0
"""How long after the faults removed members may be started again, if no member leads."""


def recall(machines: Mapping[int, Machine], ids: Mapping[int, int]) -> int:
    """Start removed members that others still count as voters, if no member leads; return how many.

    `ids` maps the ids of members to the numbers of their machines.
    """
    running = [each.member for each in machines.values() if each.member is not None]
    if any(member.is_leader for member in running):
        return 0
    needed = {voter for member in running for voter in member.conf_state.voters}
    gone = [machines[number] for member_id, number in ids.items() if member_id in needed]
    recalled = [each for each in gone if each.has_left and each.is_dead and not each.is_wiped]
    for machine in recalled:
        machine.has_left = False
        machine.start()
    return len(recalled)
