"""`lock` and `elect` from their first moment: an interruption before they wait is told as well.

`concurrency` takes as long to import as etcdctl takes to be in the queue, where an interruption
has an answer; so this module imports it where an interruption is caught.
"""

from __future__ import annotations

from kvorum.cli.errors import CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.ctl.invocation import Invocation

CANCELED = "context canceled"


def lock(invocation: Invocation) -> None:
    """Hold a lock until a signal comes, or while a command runs."""
    try:
        from kvorum.ctl import concurrency

        concurrency.lock(invocation)
    except KeyboardInterrupt:
        raise CommandError(CANCELED) from None


def elect(invocation: Invocation) -> None:
    """Lead until a signal comes, or show who leads."""
    try:
        from kvorum.ctl import concurrency

        concurrency.elect(invocation)
    except KeyboardInterrupt:
        if invocation.switch("listen"):
            raise
        raise CommandError(CANCELED) from None
