"""Leases that the client keeps alive: it renews them in time, or reports why they are lost.

A lease surely lives until its TTL has passed since the client *sent* the last request that was
answered, because the server started to count later. The client renews it after a third of the TTL.
"""

from collections.abc import Callable
from typing import Final

from kvorum.api.errors import Code
from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import rpcs
from kvorum.client.backoff import BackOff
from kvorum.client.core import HAS_LEADER, ClientStreamCall, Core
from kvorum.client.errors import CallError, ClosedError, KvorumError, LeaseLostError

BACK_OFF_SECONDS: Final = 0.05
BACK_OFF_SECONDS_MAX: Final = 1.0
ANSWER_SECONDS_MAX: Final = 5.0
"""How long an answer may take before the client closes the stream as dead."""


class KeptLease:
    """A lease that is kept alive."""

    __slots__ = ("answer", "asked_at", "error", "id", "lives_until", "on_change", "renew_at", "ttl")

    def __init__(self, lease: int, ttl: int, now: float, on_change: Callable[[], None]) -> None:
        self.id: int = lease
        self.ttl: int = ttl
        self.lives_until: float = now + ttl
        """The lease lives at least until this moment."""
        self.renew_at: float = now
        self.asked_at: float | None = None
        """When the client sent the request that is not answered yet."""
        self.answer: pb.LeaseKeepAliveResponse | None = None
        """The server's last answer."""
        self.on_change: Callable[[], None] = on_change
        """Called when the lease is renewed, lost or released."""
        self.error: KvorumError | None = None
        """Why the lease is no longer kept alive."""

    def find_loss(self, now: float) -> KvorumError | None:
        """Return why the lease must count as ended at a moment; None while it surely lives.

        The clock decides, not the last event: after a suspend, no event has reported the loss yet.
        A lease that was once reported lost stays lost, even if a late answer renews it.
        """
        if self.error is None and self.lives_until <= now:
            self.error = LeaseLostError(f"lease {self.id} was not renewed within {self.ttl} s")
        return self.error


class LeaseKeeper:
    """The leases that one client keeps alive, on one stream."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._stream: ClientStreamCall | None = None
        self._kept: dict[int, KeptLease] = {}
        self._unwanted: dict[int, int] = {}
        """Outstanding answers of this stream that belong to former `KeptLease`s, by lease id."""
        self._back_off = BackOff(BACK_OFF_SECONDS, BACK_OFF_SECONDS_MAX)

    def keep(
        self, lease: int, ttl: int, granted_at: float, on_change: Callable[[], None]
    ) -> KeptLease:
        """Keep a lease alive that was requested at `granted_at`, or keep a lost one again."""
        if lease in self._kept:
            before = self._kept[lease]
            assert before.error is not None, f"lease {lease} is kept already"
            self._lose(before, before.error)
        kept = self._kept[lease] = KeptLease(lease, ttl, granted_at, on_change)
        self._renew_due()
        return kept

    def release(self, kept: KeptLease) -> None:
        """Stop keeping a lease alive; it lives on until its TTL is over."""
        if self._kept.get(kept.id) is kept:
            self._lose(kept, kept.error or ClosedError("the lease is not kept alive any more"))

    def close(self) -> None:
        """Stop keeping all leases alive, because the client is closed."""
        self._lose_all(ClosedError("the client is closed"))

    @property
    def is_busy(self) -> bool:
        """Whether any lease is kept alive."""
        return bool(self._kept)

    # Time.

    def wake_at(self) -> float:
        """Return when to call `pass_time` next if nothing happens before."""
        if not self._kept:
            return float("inf")
        moments = [
            min(
                each.lives_until,
                max(each.renew_at, self._back_off.until if self._stream is None else 0.0)
                if each.asked_at is None
                else each.asked_at + ANSWER_SECONDS_MAX,
            )
            for each in self._kept.values()
        ]
        return min(moments)

    def pass_time(self, now: float) -> None:
        """Renew leases that are due, and report those as lost that were not renewed in time."""
        if not self._kept:
            return
        for kept in list(self._kept.values()):
            if (lost := kept.find_loss(now)) is not None:
                self._lose(kept, lost)
        silent = any(
            each.asked_at is not None and each.asked_at + ANSWER_SECONDS_MAX <= now
            for each in self._kept.values()
        )
        if silent and self._stream is not None:
            stream, self._stream = self._stream, None
            self._core.close_stream(stream)
            self._core.endpoints.avoid(stream.endpoint, now)
            self._forget_requests()
        self._renew_due()

    # Renewing.

    def _renew_due(self) -> None:
        now = self._core.now
        due = [e for e in self._kept.values() if e.renew_at <= now and e.asked_at is None]
        if not due:
            return
        if self._stream is None and (now < self._back_off.until or not self._open(due.pop(0))):
            return
        for kept in due:
            assert self._stream is not None
            kept.asked_at = now
            self._core.send(self._stream, _request(kept))

    def _open(self, first: KeptLease) -> bool:
        self._stream = self._core.open_stream(
            rpcs.LEASE_KEEP_ALIVE,
            _request(first),
            self._take_message,
            self._take_end,
            (HAS_LEADER,),
        )
        if self._stream is None:
            self._back_off.note_failure(self._core.now)
            return False
        first.asked_at = self._core.now
        return True

    def _take_message(self, message: bytes) -> None:
        self._back_off.note_success()
        response = pb.LeaseKeepAliveResponse.FromString(message)
        if response.ID in self._unwanted:
            # This answers an earlier `KeptLease` of the lease, not the request sent since.
            self._unwanted[response.ID] -= 1
            if not self._unwanted[response.ID]:
                del self._unwanted[response.ID]
            return
        kept = self._kept.get(response.ID)
        if kept is None or kept.asked_at is None:
            return
        asked, kept.asked_at = kept.asked_at, None
        if kept.error is not None:
            self._lose(kept, kept.error)
            return
        if response.TTL <= 0:
            self._lose(kept, LeaseLostError(f"lease {kept.id} has ended, or was revoked"))
            return
        kept.answer = response
        kept.ttl = response.TTL
        kept.lives_until = asked + response.TTL
        kept.renew_at = asked + response.TTL / 3
        kept.on_change()

    def _take_end(self, error: KvorumError | None) -> None:
        self._stream = None
        self._forget_requests()
        lasting = (
            isinstance(error, CallError)
            and not self._core.is_fixed_by_login(error)
            and error.code in (Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.INVALID_ARGUMENT)
        )
        if error is not None and (lasting or isinstance(error, ClosedError)):
            self._lose_all(error)
        self._back_off.note_failure(self._core.now)

    def _lose_all(self, error: KvorumError) -> None:
        for kept in list(self._kept.values()):
            lost = LeaseLostError(f"lease {kept.id} cannot be renewed: {error}")
            lost.__cause__ = error
            self._lose(kept, lost)

    def _forget_requests(self) -> None:
        self._unwanted.clear()
        for kept in self._kept.values():
            kept.asked_at = None

    def _lose(self, kept: KeptLease, error: KvorumError) -> None:
        del self._kept[kept.id]
        if kept.asked_at is not None:
            self._unwanted[kept.id] = self._unwanted.get(kept.id, 0) + 1
        kept.error = error
        self._close_unused()
        kept.on_change()

    def _close_unused(self) -> None:
        if not self._kept and self._stream is not None:
            self._core.close_stream(self._stream)
            self._stream = None
            self._unwanted.clear()


def _request(kept: KeptLease) -> bytes:
    return pb.LeaseKeepAliveRequest(ID=kept.id).SerializeToString()
