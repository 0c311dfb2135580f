"""Watch streams to two servers that get the same requests: what they are told is the same."""

from kvorum.api import errors
from kvorum.api.pb import etcdserverpb as pb
from kvorum.api.pb.mvccpb import Event
from tests.etcd import is_target
from tests.server.rpc.calls import Call
from tests.server.rpc.harness import Harness
from tests.server.rpc.pair import Pair
from tests.server.rpc.watching import OracleStream, OwnStream, Seen, Watching


class Comparison:
    """One stream to each server, and calls in between."""

    def __init__(self, pair: Pair) -> None:
        assert isinstance(pair.ours, Harness)
        self._pair = pair
        self._store = pair.ours.member.state.store
        self._ours = OwnStream(pair.ours)
        self._theirs = OracleStream(pair.oracle)
        self._live: set[int] = set()
        self._compactions: set[int] = set()

    def run(self, sequence: list[Call | Watching]) -> None:
        try:
            for step in sequence:
                if isinstance(step, Watching):
                    self._watch(step)
                else:
                    self._pair.check(step)
                    self._compactions.add(self._store.compacted_revision)
                    self._ours.look()
                self._catch_up()
            self._compare()
        finally:
            self._ours.close()
            self._theirs.close()

    def _watch(self, step: Watching) -> None:
        revision = self._pair.revision
        request = step.request(revision)
        progress = len(self._ours.seen.progress)
        known = set(self._ours.seen.responses)
        self._ours.send(request)
        if step.kind == "progress":
            # etcd 3.5.1 answers too often, and with revisions whose events it has not sent.
            for response in self._ours.seen.progress[progress:]:
                assert response.header.revision == revision
            return
        start = request.create_request.start_revision
        if step.kind == "create" and start < 0 and not is_target():
            # For etcd 3.5.1 this would be a watcher like any other.
            refusal = self._ours.seen.responses[-1].pop()
            assert (refusal.created, refusal.canceled) == (True, True)
            assert refusal.cancel_reason == errors.COMPACTED.text
            return
        self._theirs.send(request)
        if start == 0 or start > revision:
            self._live |= set(self._ours.seen.responses) - known
        else:
            # A compaction before the watcher has caught up would end it.
            self._catch_up()
            self._pair.oracle.wait_for_watchers()

    def _catch_up(self) -> None:
        """Wait until etcd has sent as much as we have, so that both go on from there."""
        wanted = self._counts(self._ours.seen)
        # Fails at the first disagreement: every further wait would last until its timeout.
        assert self._theirs.wait(lambda seen: self._counts(seen) == wanted), (
            f"ours {wanted}, theirs {self._theirs.ask(self._counts)}"
        )

    def _counts(self, seen: Seen) -> dict[int, tuple[int, int]]:
        return _comparable_counts(seen, self._compactions)

    def _compare(self) -> None:
        ours, theirs = self._ours.seen.responses, self._theirs.seen.responses
        assert {each for each, found in ours.items() if found} == set(theirs)
        for watch_id, expected in theirs.items():
            found = ours[watch_id]
            if watch_id in self._live:
                assert list(map(self.masked, found)) == list(map(self.masked, expected)), watch_id
            else:
                # Servers may group history as they like.
                assert self._controls(found) == self._controls(expected), watch_id
                assert self._events(found) == self._events(expected), watch_id
                _check_groups(found)

    def masked(self, response: pb.WatchResponse) -> pb.WatchResponse:
        """Return a response without what two servers never have in common."""
        found = pb.WatchResponse()
        found.CopyFrom(response)
        found.header.raft_term = 0
        return found

    def _controls(self, responses: list[pb.WatchResponse]) -> list[pb.WatchResponse]:
        return [self.masked(response) for response in responses if not response.events]

    def _events(self, responses: list[pb.WatchResponse]) -> list[Event]:
        """Return all events but those of deletions at compacted revisions, which 3.7 keeps."""
        return [
            event
            for response in responses
            for event in response.events
            if not (event.type == Event.DELETE and event.kv.mod_revision in self._compactions)
        ]


def _comparable_counts(seen: Seen, compactions: set[int]) -> dict[int, tuple[int, int]]:
    counts = {}
    for watch_id, responses in seen.responses.items():
        events = [event for response in responses for event in response.events]
        kept = [
            event
            for event in events
            if not (event.type == Event.DELETE and event.kv.mod_revision in compactions)
        ]
        controls = sum(1 for response in responses if not response.events)
        if controls or kept:
            counts[watch_id] = (controls, len(kept))
    return counts


def _check_groups(responses: list[pb.WatchResponse]) -> None:
    """All events of a revision are in one response, and revisions only grow."""
    last = 0
    for response in responses:
        revisions = [event.kv.mod_revision for event in response.events]
        if revisions:
            assert revisions == sorted(revisions)
            assert revisions[0] > last
            last = revisions[-1]
            assert response.header.revision >= last
