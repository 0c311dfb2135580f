"""Feature gates: the names that `--feature-gates=Name=true,Other=false` accepts, and the parser.

`AllAlpha` and `AllBeta` decide every gate of their stage that the flag does not name. Names and
stages are etcd's.
"""

from typing import NamedTuple

from kvorum.process.settings.values import boolean


class Gate(NamedTuple):
    """A feature that can be enabled or disabled at the start."""

    stage: str
    default: bool
    help: str


GATES = {
    "AllAlpha": Gate("ALPHA", False, "All alpha gates that the flag does not name."),
    "AllBeta": Gate("BETA", False, "All beta gates that the flag does not name."),
    "CompactHashCheck": Gate(
        "ALPHA",
        True,
        "The leader compares the members' compaction hashes every --compact-hash-check-time.",
    ),
    "FastLeaseKeepAlive": Gate(
        "BETA",
        True,
        "The leader renews a lease without waiting for committed entries to be applied.",
    ),
    "InitialCorruptCheck": Gate(
        "ALPHA",
        False,
        "A restarted member compares its keys with the other members' before it serves.",
    ),
    "LeaseCheckpoint": Gate(
        "ALPHA", False, "The leader sends the remaining time of each lease to the other members."
    ),
    "LeaseCheckpointPersist": Gate(
        "ALPHA",
        False,
        "No effect: members always keep checkpointed times. Requires LeaseCheckpoint.",
    ),
    "PriorityRequest": Gate(
        "ALPHA", False, "An overloaded member refuses lease revokes later than other requests."
    ),
    "SetMemberLocalAddr": Gate(
        "ALPHA",
        False,
        "This member dials others from the first IP in --initial-advertise-peer-urls.",
    ),
    "StopGRPCServiceOnDefrag": Gate(
        "ALPHA", False, "The gRPC health service reports NOT_SERVING during a defragmentation."
    ),
    "TxnModeWriteWithSharedBuffer": Gate("BETA", True, "No effect: Kvorum has no such buffer."),
}
"""Names, stages and defaults are etcd's, except that etcd disables CompactHashCheck by default."""


def gates(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse the flag; return the gates that it decides, by name, and whether each is enabled."""
    given: dict[str, bool] = {}
    for part in filter(None, text.split(",")):
        name, equals, value = (word.strip() for word in part.partition("="))
        if not equals:
            raise ValueError(f"missing bool value for {name}")
        try:
            given[name] = boolean(value)
        except ValueError:
            raise ValueError(
                f"invalid value of {name}={value}, "
                f'err: strconv.ParseBool: parsing "{value}": invalid syntax'
            ) from None
    for name in given:
        if name not in GATES:
            raise ValueError(f"unrecognized feature gate: {name}")
    for meta, stage in (("AllAlpha", "ALPHA"), ("AllBeta", "BETA")):
        if meta in given:
            of_stage = {name: given[meta] for name, gate in GATES.items() if gate.stage == stage}
            given = of_stage | given
    return tuple(sorted(given.items()))
