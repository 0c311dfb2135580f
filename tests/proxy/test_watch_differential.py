"""The same conversations at a member and through a proxy: clients see the same.

Every request is made on a stream to the member and on one through the proxy, on one of several
pairs of streams; in between the store changes, and connections between proxy and member break.
"""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import Event
from tests.proxy.standing import ADDRESS, Standing
from tests.server.rpc.calls import Call
from tests.server.rpc.harness import Harness
from tests.server.rpc.watching import Watching, sequences

PAIRS = 3
BREAK = "break"
SETTLED_SECONDS = 12.0
"""After so long a proxy knows that there is nothing for watches that had no events."""

Step = Call | Watching | str


@st.composite
def conversations(draw: st.DrawFn) -> list[tuple[int, Step]]:
    found: list[Step] = list(draw(sequences()))
    for _ in range(draw(st.integers(0, 2))):
        found.insert(draw(st.integers(0, len(found))), BREAK)
    return [(draw(st.integers(0, PAIRS - 1)), step) for step in found]


class Pair:
    """A stream to the member, and one through the proxy."""

    def __init__(self, standing: Standing, harness: Harness) -> None:
        self._direct = harness.open("Watch/Watch")
        self._proxied = standing.stream("/etcdserverpb.Watch/Watch")
        self._cancelled: set[int] = set()

    def send(self, request: pb.WatchRequest) -> None:
        self._direct.send(request)
        self._proxied.send(request)

    def compare(self, revision: int) -> None:
        """Compare what came since the last time."""
        expected, found = self._direct.received(), self._proxied.received()
        # A proxy answers for the member, and may not know its newest revision.
        for response in found:
            if response.canceled and not response.created and not response.compact_revision:
                assert response.header.revision <= revision
                response.header.revision = 0
        for response in expected:
            if response.canceled and not response.created:
                response.header.revision = 0
        ids = {response.watch_id for response in (*expected, *found)}
        for watch_id in ids:
            ours = [each for each in found if each.watch_id == watch_id]
            theirs = [each for each in expected if each.watch_id == watch_id]
            assert _controls(ours) == _controls(theirs), watch_id
            assert _events(ours) == _events(theirs), watch_id
            _check_groups(ours)
        # Answers to the client's requests come in their order.
        assert _controls(found) == _controls(expected)


def _controls(responses: list[pb.WatchResponse]) -> list[pb.WatchResponse]:
    return [each for each in responses if not each.events]


def _events(responses: list[pb.WatchResponse]) -> list[Event]:
    return [event for each in responses for event in each.events]


def _check_groups(responses: list[pb.WatchResponse]) -> None:
    last = 0
    for response in responses:
        revisions = [event.kv.mod_revision for event in response.events]
        assert revisions == sorted(revisions)
        if revisions:
            assert revisions[0] > last
            last = revisions[-1]
            assert response.header.revision >= last


@given(conversations())
@settings(
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
def test_conversations(conversation: list[tuple[int, Step]]) -> None:
    harness = Harness()
    standing = Standing({ADDRESS: harness}, cache_bytes_max=0)
    pairs = [Pair(standing, harness) for _ in range(PAIRS)]
    store = harness.member.state.store
    for index, step in conversation:
        if isinstance(step, Call):
            harness.ask(step.name, step.request(store.revision))
        elif isinstance(step, Watching):
            pairs[index].send(step.request(store.revision))
        else:
            standing.pass_time(SETTLED_SECONDS, 1.0)
            standing.upstream.lose_all()
            standing.pass_time(0.5)
        standing.settle()
        for pair in pairs:
            pair.compare(store.revision)
