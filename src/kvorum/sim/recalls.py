"""Removed members that are started again, because one that stays waits for their vote.

Of two members the one that was removed may be gone before the other knows: it has the change, but
not that it is committed, and nobody can lead. etcd has no other way out either, but for a new
cluster by force. A removed member that is started runs for a second, which is enough.
"""

from collections.abc import Mapping

from kvorum.sim.machine import Machine

RECALL_SECONDS = 5.0
"""How long nobody leads in peace before anyone is called back."""


def recall(machines: Mapping[int, Machine], ids: Mapping[int, int]) -> int:
    """Start removed members that others still count on, if nobody leads; return how many.

    `ids` has the number of the machine of each member.
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
