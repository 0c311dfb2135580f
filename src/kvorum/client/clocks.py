"""The clock that leases are judged by: one that does not stop while the machine is suspended.

A server goes on counting while a laptop sleeps or a virtual machine is paused. `time.monotonic`
stands still meanwhile, so a client that asked it would take a lease for its own long after another
client has got it.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any


def lasting_clock(clocks: Any = time) -> Callable[[], float]:
    """Return CLOCK_BOOTTIME where there is one, otherwise the best clock that there is.

    `clocks` has what the module `time` has; a simulation passes those of a machine of its own.
    """
    # Where the first is missing, as on macOS, the second counts the time of a suspend.
    number = getattr(clocks, "CLOCK_BOOTTIME", getattr(clocks, "CLOCK_MONOTONIC", None))
    try:
        if number is not None:
            clocks.clock_gettime(number)
            return partial(clocks.clock_gettime, number)
    except OSError:
        # Some sandboxes refuse it.
        pass
    return clocks.monotonic  # type: ignore[no-any-return]
