"""The clock for leases, which does not stop while the machine is suspended.

A server goes on counting while the client's laptop sleeps or its virtual machine is paused.
`time.monotonic` stands still meanwhile, so a client that used it would rely on a lease long after
another client has taken over.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any


def choose_boot_clock(clocks: Any = time) -> Callable[[], float]:
    """Return CLOCK_BOOTTIME if the system has it, otherwise the best clock available.

    `clocks` has the interface of the module `time`; a simulation passes clocks of its own.
    """
    # On systems without CLOCK_BOOTTIME, such as macOS, CLOCK_MONOTONIC counts suspended time.
    number = getattr(clocks, "CLOCK_BOOTTIME", getattr(clocks, "CLOCK_MONOTONIC", None))
    try:
        if number is not None:
            clocks.clock_gettime(number)
            return partial(clocks.clock_gettime, number)
    except OSError:
        # Some sandboxes refuse the call.
        pass
    return clocks.monotonic  # type: ignore[no-any-return]
