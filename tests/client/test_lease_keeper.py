"""Leases that are kept alive: never believed to live longer than the server lets them."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvorum.api.errors import Code
from kvorum.api.pb.etcdserverpb import LeaseKeepAliveRequest, LeaseKeepAliveResponse
from kvorum.client.core import Core, CoreSettings
from kvorum.client.endpoints import parse_endpoint
from kvorum.client.errors import ClosedError, LeaseLostError
from kvorum.client.grpc.wire import End, Metadata
from kvorum.client.lease_keeper import KeptLease, LeaseKeeper

TTL = 9
STEP_SECONDS_MAX = 1.0


class Leases(RuleBasedStateMachine):
    """One client, one server, and requests and answers that are under way for as long as it takes.

    It is its own transport: what is sent is written down until the server reads it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.is_connected = self.is_connecting = False
        self.stream: int | None = None
        self.requests: list[int] = []
        self.answers: list[LeaseKeepAliveResponse] = []
        self.expiry: dict[int, float] = {}
        """When the server ends each lease."""
        self.kept: list[KeptLease] = []
        self.changes: dict[int, int] = {}

    @initialize()
    def begin(self) -> None:
        self.core = Core([parse_endpoint("127.0.0.1:1")], CoreSettings())
        self.core.transport = self
        self.keeping = LeaseKeeper(self.core)

    # What the core asks of sockets.

    def connect(self, endpoint: int) -> None:  # noqa: ARG002
        assert not self.is_connecting
        self.is_connecting = True

    def disconnect(self, endpoint: int) -> None:  # noqa: ARG002
        self.is_connected = False
        self._end(End(Code.UNAVAILABLE, "the connection was closed"))

    def start(
        self,
        call: int,
        endpoint: int,  # noqa: ARG002
        path: str,  # noqa: ARG002
        metadata: Metadata,  # noqa: ARG002
        message: bytes,
        ends: bool,
    ) -> None:
        assert not ends
        assert self.stream is None, "all leases share a stream"
        self.stream, self.requests, self.answers = call, [], []
        self.send(call, message)

    def send(self, call: int, message: bytes) -> None:
        assert call == self.stream
        self.requests.append(LeaseKeepAliveRequest.FromString(message).ID)

    def cancel(self, call: int) -> None:
        if call == self.stream:
            self.stream = None

    def _end(self, end: End) -> None:
        if self.stream is not None:
            number, self.stream = self.stream, None
            self.core.take_end(number, end)

    # What happens.

    @precondition(lambda self: len(self.kept) < 3)
    @rule(waited=st.sampled_from([0.0, 0.5, 3.0]))
    def keep(self, waited: float) -> None:
        """Grant a lease: the server counts from some moment between the question and the answer."""
        lease = len(self.changes) + 1
        asked_at = self.core.now - waited
        self.expiry[lease] = self.core.now + TTL
        self.changes[lease] = 0

        def changed() -> None:
            self.changes[lease] += 1

        self.kept.append(self.keeping.keep(lease, TTL, asked_at, changed))

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        kept = self.kept.pop(data.draw(st.integers(0, len(self.kept) - 1)))
        self.keeping.release(kept)
        assert kept.error is not None

    @precondition(lambda self: self.kept)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        """Somebody else ends the lease."""
        kept = data.draw(st.sampled_from(self.kept))
        kept_until = self.expiry.pop(kept.id, None)
        if kept_until is not None:
            self.kept.remove(kept)
            self.revoked = kept

    @precondition(lambda self: self.is_connecting)
    @rule(succeeds=st.booleans())
    def connected(self, succeeds: bool) -> None:
        self.is_connecting, self.is_connected = False, succeeds
        if succeeds:
            self.core.note_connected(0)
        else:
            self.core.note_disconnected(0, "connection refused")

    @precondition(lambda self: self.is_connected)
    @rule()
    def lose(self) -> None:
        self.is_connected = False
        self.core.note_disconnected(0, "lost")
        self._end(End(Code.UNAVAILABLE, "lost"))

    @precondition(lambda self: self.stream is not None)
    @rule(end=st.sampled_from([End(Code.UNAVAILABLE, "etcdserver: no leader"), End(Code.OK, "")]))
    def end_stream(self, end: End) -> None:
        self._end(end)

    @precondition(lambda self: self.stream is not None and self.requests)
    @rule()
    def read(self) -> None:
        """Renew a lease; the answer is under way from now on."""
        lease = self.requests.pop(0)
        lives = self.expiry.get(lease, 0.0) > self.core.now
        if lives:
            self.expiry[lease] = self.core.now + TTL
        self.answers.append(LeaseKeepAliveResponse(ID=lease, TTL=TTL if lives else 0))

    @precondition(lambda self: self.stream is not None and self.answers)
    @rule()
    def answer(self) -> None:
        assert self.stream is not None
        self.core.take_message(self.stream, self.answers.pop(0).SerializeToString())

    @rule(seconds=st.sampled_from([0.01, 0.3, STEP_SECONDS_MAX]))
    def pass_time(self, seconds: float) -> None:
        now = self.core.now + seconds
        self.core.pass_time(now)
        self.keeping.pass_time(now)

    @precondition(lambda self: any(self._lives(each) for each in self.kept))
    @rule(data=st.data())
    def release_and_keep_again(self, data: st.DataObject) -> None:
        """What was asked before may be answered afterwards, and must not count as newer."""
        before = data.draw(st.sampled_from([each for each in self.kept if self._lives(each)]))
        self.keeping.release(before)
        self.kept.remove(before)

        def changed() -> None:
            self.changes[before.id] += 1

        granted_at = self.expiry[before.id] - TTL
        self.kept.append(self.keeping.keep(before.id, TTL, granted_at, changed))

    def _lives(self, kept: KeptLease) -> bool:
        return kept.error is None and self.expiry.get(kept.id, 0.0) > self.core.now

    @rule(seconds=st.sampled_from([0.3, 3.0, TTL / 2, TTL + 0.5]), arrives=st.booleans())
    def suspend(self, seconds: float, arrives: bool) -> None:
        """Nothing runs for a while; the clock answers the first questions after that."""
        now = self.core.now = self.core.now + seconds
        lost = [each for each in self.kept if each.find_loss(now) is not None]
        for kept in self.kept:
            assert kept in lost or now < self.expiry[kept.id]
        while arrives and self.stream is not None and self.answers:
            self.answer()
        assert all(each.find_loss(now) is not None for each in lost), "one that was lost is back"
        self.pass_time(0.0)

    @rule(seconds=st.sampled_from([0.01, STEP_SECONDS_MAX]))
    def renew(self, seconds: float) -> None:
        """Do all that is to be done; the answers take that long."""
        if self.is_connecting:
            self.connected(True)
        while self.stream is not None and self.requests:
            self.read()
        self.pass_time(seconds)
        while self.stream is not None and self.answers:
            self.answer()

    # What holds always.

    @invariant()
    def a_lease_is_not_believed_to_live_longer_than_it_does(self) -> None:
        for kept in self.kept:
            if kept.error is None:
                assert kept.lives_until <= self.expiry[kept.id]
                assert self.core.now < kept.lives_until
            else:
                assert self.changes[kept.id], "it is lost, and nobody was told"
                assert isinstance(kept.error, LeaseLostError)

    def teardown(self) -> None:
        """With a server that answers, what lives goes on living; at the end nothing is left."""
        if not hasattr(self, "core"):
            return
        for _ in range(100):
            self._serve()
        living = [each for each in self.kept if each.error is None]
        for _ in range(40):
            self._serve()
            self.pass_time(0.5)
        assert all(each.error is None for each in living)
        self.core.close()
        self.keeping.close()
        assert all(each.error is not None for each in self.kept)
        assert not self.keeping._kept
        assert self.keeping.wake_at() == float("inf")

    def _serve(self) -> None:
        self.renew(0.01)
        self.pass_time(0.05)


TestLeases = Leases.TestCase
TestLeases.settings = settings(max_examples=80, stateful_step_count=40)


def test_a_lease_that_waits_for_a_connection_ends_when_the_client_closes() -> None:
    machine = Leases()
    machine.begin()
    machine.keep(0.0)
    (kept,) = machine.kept
    machine.core.close()
    machine.keeping.close()
    assert isinstance(kept.error, LeaseLostError)
    assert isinstance(kept.error.__cause__, ClosedError)
    assert machine.changes[kept.id] == 1
