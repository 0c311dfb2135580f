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
    "AllAlpha": Gate("ALPHA", False, "Every alpha gate that is not named."),
    "AllBeta": Gate("BETA", False, "Every beta gate that is not named."),
    "CompactHashCheck": Gate(
        "ALPHA",
        True,
        "The leader compares the hashes of compactions every --compact-hash-check-time.",
    ),
    "FastLeaseKeepAlive": Gate(
        "BETA", True, "A lease is renewed before everything committed is applied."
    ),
    "InitialCorruptCheck": Gate(
        "ALPHA", False, "Before it serves, a restarted member compares its keys with the others'."
    ),
    "LeaseCheckpoint": Gate(
        "ALPHA", False, "The leader tells the others how much of each lease is left."
    ),
    "LeaseCheckpointPersist": Gate(
        "ALPHA", False, "Changes nothing here: what was told is always kept. Needs LeaseCheckpoint."
    ),
    "PriorityRequest": Gate(
        "ALPHA", False, "An overloaded member takes revokes of leases for longer than the rest."
    ),
    "SetMemberLocalAddr": Gate(
        "ALPHA", False, "Members are dialed from the first IP of --initial-advertise-peer-urls."
    ),
    "StopGRPCServiceOnDefrag": Gate(
        "ALPHA", False, "The gRPC health service says NOT_SERVING during a defragmentation."
    ),
    "TxnModeWriteWithSharedBuffer": Gate(
        "BETA", True, "Changes nothing here: there is no such buffer."
    ),
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
