"""Sequences of steps, run on two servers at once: every answer and every auth revision agree."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Generic, TypeVar

import pytest

from kvorum.api.errors import Status
from kvorum.api.pb import etcdserverpb as pb
from tests.state.auth.exceptions import is_excepted
from tests.state.auth.servers import Both, Server
from tests.state.auth.steps import Step

T = TypeVar("T")
JANITOR = "janitor"
"""An administrator whom sequences do not know: cleans up behind them."""


class LockedOutError(Exception):
    """Nobody is left who may disable authentication."""


def run(both: Both, steps: Sequence[Step]) -> None:
    """Make the calls of a sequence, in an empty store, and leave one."""
    prepare(both)
    revision = both.ours.revision
    for step in steps:
        revision = check(both, step, revision)
    reset(both)


def check(both: Both, step: Step, revision: int) -> int:
    """Make a call at a revision to both, and compare; return the revision then."""
    request = step.call.request(revision)
    if isinstance(request, pb.CompactionRequest):
        request.physical = True
    if not is_excepted(step.call.name, request, step.caller.user):
        metadata = [step.caller.metadata(server.tokens) for server in both]
        answers = both.check(step.call.name, request, metadata, step.caller)
        for server, heard in zip(both, answers, strict=True):
            server.take(request, heard)
    ours, _ = both.check("Auth/AuthStatus", pb.AuthStatusRequest(), ((), ()), step)
    found: int = ours.messages[0].header.revision
    return found


def prepare(both: Both) -> None:
    """Make the one who cleans up."""
    for server in both:
        server.tokens.clear()
        if JANITOR not in server.answer("Auth/UserList", pb.AuthUserListRequest()).users:
            add = pb.AuthUserAddRequest(name=JANITOR, password=JANITOR)
            server.answer("Auth/UserAdd", add)
        grant = pb.AuthUserGrantRoleRequest(user=JANITOR, role="root")
        server.answer("Auth/UserGrantRole", grant)


def reset(both: Both) -> None:
    """Disable authentication and delete everything. Raises LockedOutError if nobody may."""
    for server in both:
        _disable(server)
        for lease in server.answer("Lease/LeaseLeases", pb.LeaseLeasesRequest()).leases:
            server.answer("Lease/LeaseRevoke", pb.LeaseRevokeRequest(ID=lease.ID))
        server.answer("KV/DeleteRange", pb.DeleteRangeRequest(key=b"\0", range_end=b"\0"))
        for user in server.answer("Auth/UserList", pb.AuthUserListRequest()).users:
            if user != JANITOR:
                server.answer("Auth/UserDelete", pb.AuthUserDeleteRequest(name=user))
        for role in server.answer("Auth/RoleList", pb.AuthRoleListRequest()).roles:
            server.answer("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=role))


def _disable(server: Server) -> None:
    if not server.answer("Auth/AuthStatus", pb.AuthStatusRequest()).enabled:
        return
    server.log_in(JANITOR, JANITOR)
    metadata = server.metadata_of(JANITOR)
    disabled = server.client.ask("Auth/AuthDisable", pb.AuthDisableRequest(), metadata=metadata)
    if isinstance(disabled, Status):
        raise LockedOutError


class Lender(Generic[T]):
    """Lends servers to sequence after sequence; new ones after a failure."""

    def __init__(
        self,
        running: Callable[[Path], AbstractContextManager[T]],
        factory: pytest.TempPathFactory,
    ) -> None:
        self._running = running
        self._factory = factory
        self._stack = ExitStack()
        self._lent: T | None = None

    @contextmanager
    def lent(self) -> Iterator[T]:
        if self._lent is None:
            directory = self._factory.mktemp("lent")
            self._lent = self._stack.enter_context(self._running(directory))
        try:
            yield self._lent
        except LockedOutError:
            self.close()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._lent = None
        self._stack.close()
