"""The faults of members and programs in a run of a user's scenario, by kind and seed.

As in all runs, the seed draws some of the allowed kinds, each with a rate of its own. All of these
faults can happen to well-run clusters; disks that lose data are not included.
"""

from dataclasses import replace
from random import Random

from kvorum.sim.faults import Faults, draw, draw_more, without_faults

PROCESSES = "processes"
KINDS: dict[str, tuple[str, ...]] = {
    "kill": (
        "crash_gap",
        "terminate_gap",
        "down_time",
        "power_cut_chance",
        "amid_chance",
        "all_crash_chance",
        "leader_chance",
    ),
    "pause": ("pause_gap", "pause_time", "leader_chance"),
    "partition": (
        "partition_gap",
        "partition_time",
        "one_way_chance",
        "moving_chance",
        "leader_chance",
    ),
    "network": (
        "frames",
        "reset_gap",
        "link_delay",
        "delay_chance",
        "drop_chance",
        "duplicate_chance",
        "connection_chance",
    ),
    "disk": ("log_time", "flush_time", "disk_stall_gap", "disk_stall_time"),
    PROCESSES: (),
}
"""The kinds that a user can name, with their faults."""

GAPS = 4.0
"""Factor on the gaps between members' faults: scenarios last longer than other runs."""
GAP_SECONDS = (3.0, 8.0, 20.0)
"""Average times between two faults of a program; the seed chooses one."""
TROUBLED_CHANCE = 0.8


def checked_kinds(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the named kinds; raises ValueError for an unknown name."""
    for name in names:
        if name not in KINDS:
            raise ValueError(f"{name!r} is no kind of fault; there are {', '.join(KINDS)}")
    return names


def draw_faults(seed: int, members: int, kinds: tuple[str, ...]) -> Faults:
    """Return the faults of members, limited to these kinds."""
    drawn = draw(Random(f"{seed}/scenario faults"), members)
    drawn = draw_more(Random(f"{seed}/more scenario faults"), drawn, members)
    fields = {name: getattr(drawn, name) for kind in kinds for name in KINDS[kind]}
    gaps = {name: GAPS * gap for name, gap in fields.items() if name.endswith("_gap")}
    return replace(without_faults(), **fields | gaps)


def draw_gap(random: Random, kinds: tuple[str, ...]) -> float:
    """Return the average time between two faults of a program; 0 if it has none."""
    if PROCESSES not in kinds or random.random() >= TROUBLED_CHANCE:
        return 0.0
    return random.choice(GAP_SECONDS)
