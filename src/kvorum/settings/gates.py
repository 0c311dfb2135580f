"""Feature gates: what `--feature-gates=Name=true,Other=false` may name, and what it means.

`AllAlpha` and `AllBeta` decide for every gate of their stage that the flag does not name. Names
and stages are etcd's.
"""

from typing import NamedTuple

from kvorum.settings.values import boolean


class Gate(NamedTuple):
    """A feature that can be switched on or off at the start."""

    stage: str
    default: bool


GATES = {
    "AllAlpha": Gate("ALPHA", False),
    "AllBeta": Gate("BETA", False),
    "CompactHashCheck": Gate("ALPHA", True),
    "FastLeaseKeepAlive": Gate("BETA", True),
    "InitialCorruptCheck": Gate("ALPHA", False),
    "LeaseCheckpoint": Gate("ALPHA", False),
    "LeaseCheckpointPersist": Gate("ALPHA", False),
    "PriorityRequest": Gate("ALPHA", False),
    "SetMemberLocalAddr": Gate("ALPHA", False),
    "StopGRPCServiceOnDefrag": Gate("ALPHA", False),
    "TxnModeWriteWithSharedBuffer": Gate("BETA", True),
}


def gates(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse the flag; return the gates that it decides on and whether they are open, by name."""
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
