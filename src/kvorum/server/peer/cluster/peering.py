"""Connect a member to the transport, and exchange all other requests with the other members.

Before the member's turn, the server hands in the events of the peer port and of the dialer; after
it, the server calls `deliver`. The transport follows the membership: it dials added members and
ignores messages of removed ones. Until this member knows the cluster from its own log, peering uses
the member list from the join.

An unforeseen error over a request of another member, or over an answer to one of ours, ends only
that request (see `kvorum.api.boundary`). Raft messages go to the member, which stops if one of
them raises an error.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from math import inf

from kvorum.api.errors import INTERNAL
from kvorum.member import peer_requests
from kvorum.member.member import Member
from kvorum.member.outbox import Question
from kvorum.network.dialer.interface import Dialer, DialEvent
from kvorum.network.edge.interface import Headers
from kvorum.raft.logger import Logger
from kvorum.raft.messages import NONE
from kvorum.server.peer.cluster.answers import CLUSTER_ID, VERSION_PATH, PeerAnswers
from kvorum.server.peer.cluster.exchanges import Answer, Done, Exchanges
from kvorum.server.peer.cluster.polling import VersionPolling
from kvorum.server.peer.interface import PeerOutput
from kvorum.server.peer.transport import Identity, Transport, TransportSettings
from kvorum.state.membership.documents import MemberDocument as Peer
from kvorum.storage.backend.copies import COPY_FORMAT

CLUSTER_VERSION_MIN = "3.0.0"
CHECK_SECONDS = 0.5
"""The longest time between two checks of the timeouts of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeeringSettings:
    """The options of peering."""

    peer_urls: tuple[str, ...]
    """The URLs at which others reach this member."""
    known: Sequence[Peer] = ()
    """The members known before the log names them, for instance those of a joined cluster."""
    read_seconds_max: float = 5.0
    """How long a stream of another member may be silent."""
    write_seconds_max: float = 5.0
    """How long another member may leave its stream unread."""


class Peering:
    """Connects one member to the others: raft transport, requests and answers."""

    def __init__(
        self,
        member: Member,
        output: PeerOutput,
        dialer: Dialer,
        settings: PeeringSettings,
        logger: Logger,
    ) -> None:
        self._member = member
        self._output = output
        self._logger = logger
        identity = Identity(
            local_id=member.id,
            cluster_id=member.state.cluster.cluster_id,
            peer_urls=settings.peer_urls,
            server_version=member.config.server_version,
            min_cluster_version=CLUSTER_VERSION_MIN,
            copy_format=COPY_FORMAT if member.seams.environments.exports else "",
        )
        self.transport = Transport(
            member,
            output,
            dialer,
            identity,
            TransportSettings(
                snap_directory=member.replica.snap_directory,
                election_seconds=member.config.election_seconds,
                unix_seconds=member.unix_seconds,
                read_seconds_max=settings.read_seconds_max,
                write_seconds_max=settings.write_seconds_max,
                native_rows=member.seams.environments.native,
            ),
            logger,
        )
        member.replica.snapshots.takes_copies = self.transport.takes_copies
        self._answers = PeerAnswers(member, output)
        self._exchanges = Exchanges(dialer, member.config.limits.peer_requests_running_max)
        self._polling = VersionPolling(member, self._ask_version)
        self._seconds_max = member.config.request_seconds_max
        self._cluster_headers: Headers = ((CLUSTER_ID, f"{member.state.cluster.cluster_id:x}"),)
        self._generation = -1
        self._known = {each.id: each.peer_urls for each in settings.known}
        self._is_stopped = False
        self._check_at = 0.0
        self._now = member.now
        self._add(settings.known, member.now)
        self._update_peers(member.now)

    # Requests of other members, and events of the dialer.

    @property
    def open(self) -> Container[int]:
        """The open calls of the peer port."""
        return self

    @property
    def foreign_cluster(self) -> int:
        """A foreign cluster's id if every other member reports a foreign one; else 0."""
        reported = {peer.foreign_cluster for peer in self.transport.peers.values()}
        return min(reported, default=0)

    def __contains__(self, call: object) -> bool:
        return call in self._answers.open or call in self.transport.open

    def open_request(
        self, call: int, method: str, target: str, headers: Headers, now: float
    ) -> None:
        """Take a request from another member."""
        self._now = now
        try:
            if self.transport.serves(method, target):
                self.transport.open_request(call, method, target, headers, now)
            else:
                self._answers.open_request(call, method, target, headers, now)
        except Exception as error:
            self._fail_request(call, f"{method} {target} {headers}", error)

    def handle(self, kind: int, call: int, detail: object, now: float) -> None:
        """Take an event of an open request."""
        self._now = now
        try:
            if call in self._answers.open:
                self._answers.handle(kind, call, detail)
            else:
                self.transport.handle(kind, call, detail, now)
        except Exception as error:
            self._fail_request(call, detail if isinstance(detail, bytes) else "", error)

    def _fail_request(self, call: int, sent: bytes | str, error: Exception) -> None:
        """End a request of another member that raised an unforeseen error."""
        self._member.boundary.take(error, "peer", f"request {call} of another member", sent)
        self._answers.forget(call)
        if self.transport.abandon(call, self._now):
            self._output.finish(call, INTERNAL)
        else:
            self._output.respond(call, 500, (), b"Internal Server Error\n")

    def take_dialed(self, events: Iterable[DialEvent], now: float) -> None:
        """Take events of the dialer."""
        self._now = now
        transport, exchanges = self.transport, self._exchanges
        for event in events:
            try:
                if not transport.handle_answer(event, now):
                    exchanges.handle_answer(event)
            except Exception as error:
                self._fail_answer(event, error)

    def _fail_answer(self, event: DialEvent, error: Exception) -> None:
        """Fail a request of ours whose answer raised an unforeseen error."""
        sent = event.detail if isinstance(event.detail, bytes) else str(event.detail)
        self._member.boundary.take(error, "dial", f"request {event.number} to a member", sent)
        problem = f"its answer cannot be understood: {error}"
        self.transport.fail_request(event.number, problem, self._now)
        self._exchanges.abandon(event.number)

    # Messages and requests of this member.

    def deliver(self, now: float) -> None:
        """Send the member's messages and requests; called after each of the member's turns."""
        if self._is_stopped:
            return
        self._now = now
        member = self._member
        if member.state.cluster.generation != self._generation:
            self._update_peers(now)
        out = member.out
        if out.messages:
            self.transport.send(out.take_messages(), now)
        if out.snapshots:
            for transfer in out.take_snapshots():
                self.transport.send_snapshot(transfer, now)
        if out.probe_target:
            if self.transport.probe_host(out.probe_target):
                member.replica.succession.count_probe()
            out.probe_target = NONE
        if out.questions:
            for question in out.take_questions():
                self._ask(question, now)

    def pass_time(self, now: float) -> float:
        """Run the timers that are due; return when the next one is.

        The server calls this in every turn, after it has handed in the events.
        """
        if self._is_stopped:
            return inf
        self._now = now
        if now >= self._check_at or self._polling.is_leading != self._member.is_leader:
            self._check_at = min(
                now + CHECK_SECONDS,
                self._exchanges.pass_time(now),
                self._answers.pass_time(now),
                self._polling.pass_time(now),
            )
        return min(self.transport.pass_time(now), self._check_at)

    def stop(self) -> None:
        """End every stream and request, and discard what the member sends afterwards."""
        self._is_stopped = True
        self._exchanges.stop()
        self.transport.stop()

    # Membership.

    def _update_peers(self, now: float) -> None:
        """Update the transport's peers from the membership in the log."""
        cluster = self._member.state.cluster
        self._generation = cluster.generation
        self._add(cluster.members, now)
        for peer in list(self.transport.peers):
            if cluster.is_removed(peer):
                self._known.pop(peer, None)
                self.transport.remove_peer(peer)

    def _add(self, members: Iterable[Peer], now: float) -> None:
        for each in members:
            # The membership may hold a member without an address; skip it.
            if each.id == self._member.id or not each.peer_urls:
                continue
            if each.id not in self.transport.peers:
                self.transport.add_peer(each.id, each.peer_urls, now)
            elif self._known.get(each.id) != each.peer_urls:
                self.transport.update_peer(each.id, each.peer_urls)
            self._known[each.id] = each.peer_urls

    # Requests to other members.

    def _ask(self, question: Question, now: float) -> None:
        number, peer, method, path, body, headers = question

        def take(answer: Answer | None) -> None:
            interpreted = (
                None
                if answer is None
                else peer_requests.interpret_answer(path, answer.status, answer.body)
            )
            self._member.take_answer(number, interpreted)

        urls = self._known.get(peer)
        if not urls:
            take(None)
            return
        if path == peer_requests.HASH_KV_PATH:
            headers = (*headers, *self._cluster_headers)
        request = (method, path, headers, body)
        done = self._guard_callback(take)
        self._exchanges.send_request(peer, urls, request, now + self._seconds_max, done)

    def _ask_version(self, peer: Peer, done: Done) -> None:
        request = ("GET", VERSION_PATH, (), b"")
        deadline = self._now + 1.0 + self._member.config.election_seconds
        self._exchanges.send_request(
            peer.id, peer.peer_urls, request, deadline, self._guard_callback(done)
        )

    def _guard_callback(self, done: Done) -> Done:
        """Wrap `done`: if it raises an unforeseen error, call it again with no answer."""

        def take(answer: Answer | None) -> None:
            try:
                done(answer)
            except Exception as error:
                if answer is None:
                    raise
                self._member.boundary.take(error, "dial", "an answer of a member", answer.body)
                done(None)

        return take
