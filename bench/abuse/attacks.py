"""All attacks, in the order of the table."""

import time

from bench.abuse import (
    call_attacks,
    frame_attacks,
    http_attacks,
    json_attacks,
    member_attacks,
    slow_call_attacks,
)
from bench.abuse.target import Attack, Seen, Target


def nobody(target: Target, count: int, deadline: float) -> Seen:
    """Do nothing for `count` seconds, as the baseline for all attacks."""
    del target
    time.sleep(max(0.0, min(count, deadline - time.monotonic())))
    return Seen("nothing was done")


ATTACKS = (
    Attack("nobody attacks", nobody, 5, 0),
    *http_attacks.ATTACKS,
    *member_attacks.ATTACKS,
    *call_attacks.ATTACKS,
    *slow_call_attacks.ATTACKS,
    *frame_attacks.ATTACKS,
    *json_attacks.ATTACKS,
)
