"""`lock` and `elect`, with interruptions reported from the first moment on.

Importing `concurrency` takes as long as etcdctl takes to join the queue, from where on etcdctl
reports interruptions. So this module imports `concurrency` inside the `try` that catches them.
"""

from __future__ import annotations

from kvorum.tools.cli.errors import CommandError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.tools.ctl.invocation import CtlInvocation

CANCELED = "context canceled"


def lock(invocation: CtlInvocation) -> None:
    """Hold a lock until a signal arrives, or while a command runs."""
    try:
        from kvorum.tools.ctl import concurrency

        concurrency.lock(invocation)
    except KeyboardInterrupt:
        raise CommandError(CANCELED) from None


def elect(invocation: CtlInvocation) -> None:
    """Lead until a signal arrives, or show the leaders."""
    try:
        from kvorum.tools.ctl import concurrency

        concurrency.elect(invocation)
    except KeyboardInterrupt:
        if invocation.switch("listen"):
            raise
        raise CommandError(CANCELED) from None
