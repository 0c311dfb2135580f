"""Members as real processes, ours or a real etcd's, and the clusters they make.

Every cluster has loopback addresses of its own, so that a member that comes back finds its ports
free. Members reach each other only through a `Network`.
"""

import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.message import Message

from kvorum.api import errors
from kvorum.api.errors import Code, Status
from kvorum.api.pb import etcdserverpb as pb
from tests.cluster.client import Client, Metadata, Talk
from tests.cluster.network import Network, Node
from tests.cluster.processes import Process, start, start_changed
from tests.server.rpc.oracle import status_of
from tests.waiting import WAIT_SECONDS_MAX, until

T = TypeVar("T")
MAKES = ("kvorum", "etcd")
HEARTBEAT_SECONDS = 0.025
ELECTION_SECONDS = 0.5
CLIENT_PORT, PEER_PORT, ADVERTISED_PORT = 2379, 2380, 2381
TIMING = (
    f"--heartbeat-interval={HEARTBEAT_SECONDS * 1000:.0f}",
    f"--election-timeout={ELECTION_SECONDS * 1000:.0f}",
)
PATIENT = "--election-timeout=20000"
"""Far above the time for which a busy machine lets a process stand still."""
PASSING = frozenset(
    {
        errors.LEADER_CHANGED,
        errors.NO_LEADER,
        errors.TIMEOUT,
        errors.TIMEOUT_DUE_TO_CONNECTION_LOST,
        errors.TIMEOUT_DUE_TO_LEADER_FAIL,
        errors.TIMEOUT_WAIT_APPLIED_INDEX,
        errors.CONTEXT_DEADLINE_EXCEEDED,
        # Our own time limit, in grpc's words: the member stood still.
        Status(Code.DEADLINE_EXCEEDED, "Deadline Exceeded"),
    }
)
"""Errors that an election in between may cause, as happens whenever a busy machine starves a
leader; whether the request took effect is not known then."""
SAVED_SNAPSHOT = re.compile(rb'"msg":"saved snapshot[^"]*".*"snapshot-index":(\d+)')
_PREFIXES = 60_000
_prefixes = count()
_leases = count(1000)
LEASE_SECONDS = 600
"""Time to live of a lease that is not to end in a test."""


class Member:
    """One member's place: addresses, data, log; and its process while it runs."""

    def __init__(self, cluster: "Cluster", name: str, host: str, node: Node) -> None:
        self._cluster = cluster
        self.name = name
        self.host = host
        self.node = node
        self.address = f"{host}:{CLIENT_PORT}"
        self.peer_url = f"{cluster.peer_scheme}://{host}:{ADVERTISED_PORT}"
        self.listen_peer_url = f"{cluster.peer_scheme}://{host}:{PEER_PORT}"
        self.make = cluster.make
        self.data = cluster.directory / name
        self.log = cluster.directory / f"{name}.log"
        self.client = Client(self.address)
        self.flags: tuple[str, ...] = ()
        """Flags of its own, beside those of all members."""
        self.process: Process | None = None
        self.is_paused = False
        self.id = 0
        """Its id in the cluster, once it has served."""

    def __repr__(self) -> str:
        return self.name

    # The process.

    def start(
        self, *, state: str = "new", among: Sequence["Member"] = (), change: str = ""
    ) -> None:
        """Start it; it may not serve yet. `among` are the members it is told of: all, if none.

        Lines of Python may change its process before, if it is ours.
        """
        assert self.process is None, f"{self} runs"
        initial = ",".join(f"{each.name}={each.peer_url}" for each in among or self._cluster)
        arguments = [
            f"--name={self.name}",
            f"--data-dir={self.data}",
            f"--listen-client-urls=http://{self.address}",
            f"--advertise-client-urls=http://{self.address}",
            f"--listen-peer-urls={self.listen_peer_url}",
            f"--initial-advertise-peer-urls={self.peer_url}",
            f"--initial-cluster={initial}",
            f"--initial-cluster-state={state}",
            "--log-format=json" if self.make == "kvorum" else "--logger=zap",
            *TIMING,
            *self._cluster.flags,
            *self.flags,
        ]
        network = self._cluster.network
        with network.starting():
            self.process = (
                start_changed(change, arguments, self.log)
                if change
                else start(self.make, arguments, self.log)
            )
            network.started(self.node, self.process.pid)

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send_signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it as a power cut of its machine would."""
        self.send_signal(signal.SIGKILL)
        self.is_paused = False
        assert self.wait() == -signal.SIGKILL

    def terminate(self) -> int:
        """Ask it to end; return its exit code."""
        self.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self, seconds: float = WAIT_SECONDS_MAX) -> int:
        """Wait for its end; return its exit code."""
        assert self.process is not None
        code = self.process.wait(seconds)
        self._cluster.network.ended(self.process.pid)
        self.process = None
        return code

    def pause(self) -> None:
        """Suspend it: it neither receives nor sends, and nobody is told."""
        self.send_signal(signal.SIGSTOP)
        self.is_paused = True
        assert self.process is not None
        threads = Path(f"/proc/{self.process.pid}/task")

        def stands_still() -> bool:
            """Return whether each of its threads does: they do not stop all at once."""
            states = set()
            with suppress(OSError):  # of a thread that has ended
                for each in threads.glob("*/stat"):
                    states.add(each.read_text().rpartition(")")[2].split()[0])
                return states == {"T"}
            return False

        until(f"{self} stands still", stands_still)

    def resume(self) -> None:
        self.send_signal(signal.SIGCONT)
        self.is_paused = False

    # What it answers.

    def logged(self, text: str, since: int = 0) -> int:
        """Count the lines of its log with a text, from an offset on."""
        with self.log.open("rb") as log:
            log.seek(since)
            return sum(text.encode() in line for line in log)

    def saved_snapshot(self) -> int:
        """Return the index of its newest snapshot; it keeps few entries of those before."""
        found = SAVED_SNAPSHOT.findall(self.log.read_bytes())
        return int(found[-1]) if found else 0

    def log_size(self) -> int:
        return self.log.stat().st_size

    def log_tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join(lines[-40:])

    def ask(self, name: str, request: Message, **options: Any) -> Any:
        """Make a unary call; return the response or the status."""
        return self.client.ask(name, request, **options)

    def settled(self, name: str, request: Message, **options: Any) -> Any:
        """Make a unary call, again if an election comes in between.

        Return the response or the status. The call may have taken effect before.
        """

        def found() -> Any:
            answer = self.client.ask(name, request, **options)
            return None if isinstance(answer, Status) and answer in PASSING else answer

        return until(f"{self} answers {name} {request!s:.200}", found)

    def answer(
        self, name: str, request: Message, *, done: Status | None = None, **options: Any
    ) -> Any:
        """Make a unary call that succeeds, again if an election comes in between.

        The answer is the error `done` where a call before, which nobody answered, took effect.
        """
        answer = self.settled(name, request, **options)
        is_error = isinstance(answer, Status) and answer != done
        assert not is_error, f"{self}: {name} {request}: {answer}"
        return answer

    def answers(self, name: str, requests: Sequence[Message]) -> list[Any]:
        """Make calls that succeed, all at once; repeat those interrupted by an election."""
        calls = [(request, self.client.begin(name, request)) for request in requests]
        return [self.outcome(call, name, request) for request, call in calls]

    def outcome(self, call: Any, name: str, request: Message) -> Any:
        """Return the answer to a call that was begun and succeeds, asking again as `answer`
        does."""
        error = call.exception()
        if error is None:
            return call.result()
        assert status_of(error) in PASSING, f"{self}: {name} {request}: {error}"
        return self.answer(name, request)

    def talk(self, name: str, first: Message, metadata: Metadata | None = None) -> tuple[Talk, Any]:
        """Open a stream and send a message; again if an election comes in between.

        Return the stream and the answer.
        """

        def opened() -> tuple[Talk, Any] | None:
            talk = self.client.talk(name, metadata)
            talk.say(first)
            try:
                return talk, talk.hear()
            except grpc.RpcError as error:
                talk.close()
                if status_of(error) not in PASSING:
                    raise
                return None

        return until(f"{self} answers {name}", opened)

    def status(self) -> Any:
        """Return its status, or None while it does not answer."""
        if not self.is_running or self.is_paused:
            return None
        answer = self.client.ask("Maintenance/Status", pb.StatusRequest(), timeout=1.0)
        if isinstance(answer, Status):
            return None
        self.id = answer.header.member_id
        return answer

    def state(self) -> Any:
        """Return its status, as soon as it answers."""
        return until(f"{self} answers", self.status)

    def term(self) -> int:
        term: int = self.state().raftTerm
        return term

    def put(self, key: bytes, value: bytes = b"", lease: int = 0) -> Any:
        return self.answer("KV/Put", pb.PutRequest(key=key, value=value, lease=lease))

    def put_together(self, count: int, value: bytes) -> None:
        """Write so many keys at once."""
        self.answers(
            "KV/Put", [pb.PutRequest(key=b"%d" % each, value=value) for each in range(count)]
        )

    def get(self, key: bytes, *, serializable: bool = False) -> bytes | None:
        request = pb.RangeRequest(key=key, serializable=serializable)
        found = self.answer("KV/Range", request).kvs
        return found[0].value if found else None

    def revision(self) -> int:
        """Return the revision it has reached."""
        request = pb.RangeRequest(key=b"\0", serializable=True)
        found: int = self.answer("KV/Range", request).header.revision
        return found

    def members(self, *, linearizable: bool = True) -> Any:
        request = pb.MemberListRequest(linearizable=linearizable)
        return self.answer("Cluster/MemberList", request).members


class Cluster:
    """Members that belong together; iterates over them in the order they came."""

    def __init__(
        self,
        directory: Path,
        network: Network,
        make: str = "kvorum",
        size: int = 3,
        *flags: str,
        peer_scheme: str = "http",
        like: "Cluster | None" = None,
    ) -> None:
        """With `like`, the members advertise the same peer URLs as those of another cluster."""
        self.directory = directory
        self.directory.mkdir(parents=True, exist_ok=True)
        self.network = network
        self.make = make
        self.flags = flags
        self.peer_scheme = peer_scheme
        self._like = like
        self._prefix, self._reserved = reserved_prefix()
        self._members: list[Member] = []
        for _ in range(size):
            self.add()

    def __iter__(self) -> Iterator[Member]:
        return iter(list(self._members))

    def __len__(self) -> int:
        return len(self._members)

    def __getitem__(self, place: int) -> Member:
        return self._members[place]

    def add(self) -> Member:
        """Make a place for one more member."""
        number = len(self._members) + 1
        while any(each.name == f"m{number}" for each in self._members):
            number += 1
        host = f"{self._prefix}.{number}"
        advertised = (host, ADVERTISED_PORT)
        if self._like is not None:
            advertised = self._like[number - 1].node.advertised
        node = Node(self._prefix, f"m{number}", advertised, (host, PEER_PORT))
        self.network.add(node)
        member = Member(self, node.name, host, node)
        if self._like is not None:
            member.peer_url = self._like[number - 1].peer_url
        self._members.append(member)
        return member

    def forget(self, member: Member) -> None:
        """Give up a member that no longer belongs to the cluster."""
        self._members.remove(member)
        member.client.close()

    def start(self) -> None:
        for member in self:
            member.start()
        self.settle()

    def settle(self) -> Member:
        """Mend everything, and wait until all members serve and follow one leader; return it."""
        self.network.mend()
        for member in self:
            if member.is_paused:
                member.resume()
            if member.process is None:
                member.start()
        leader = until("all members follow one leader", self._led)
        until("all members have told their names", self._published)
        return leader

    def be_patient(self) -> None:
        """Let members follow their leader however long a busy machine lets it stand still.

        From now on only those elections happen that someone causes. They are restarted one after
        the other, and a leader that ends hands over: with so long a timeout from the beginning,
        nobody would campaign for the first time until it is over.
        """
        self.flags = (*self.flags, PATIENT)
        leader = self.settle()
        for member in (*self.others(leader), leader):
            member.terminate()
            member.start()
            self.settle()

    def _led(self) -> Member | None:
        for member in self:
            assert member.is_running, f"{member} has ended:\n{member.log_tail()}"
        statuses = [member.status() for member in self]
        leaders = {status.leader for status in statuses if status}
        if None in statuses or len(leaders) != 1 or 0 in leaders:
            return None
        return next((each for each in self if each.id in leaders), None)

    def _published(self) -> bool:
        for member in self:
            listed = member.ask("Cluster/MemberList", pb.MemberListRequest(linearizable=True))
            if isinstance(listed, Status):
                return False
            if not all(each.clientURLs for each in listed.members):
                return False
        return True

    def leader(self, among: Sequence[Member] = ()) -> Member:
        """Wait until one of these members (any, if none) leads, and the majority knows it."""
        members = list(among) or list(self)

        def find() -> Member | None:
            statuses = [(each, each.status()) for each in members]
            leaders = [status.leader for _, status in statuses if status and status.leader]
            for member, status in statuses:
                is_leader = status and status.leader == member.id
                if is_leader and leaders.count(member.id) > len(self) // 2:
                    return member
            return None

        return until(f"a leader among {members}", find)

    def others(self, member: Member) -> list[Member]:
        return [each for each in self if each is not member]

    def followers(self) -> list[Member]:
        return self.others(self.leader())

    def outgrow_logs(self, members: Sequence[Member], keys: int, value: bytes) -> None:
        """Write so many keys at once, and wait until these members keep no entry from before.

        One that was away then is sent a snapshot when it comes back. Flags have to make snapshots
        frequent, and half of the keys more than the entries that are kept.
        """
        leader = self.leader(members)
        index = leader.state().raftAppliedIndex + keys // 2
        leader.put_together(keys, value)
        self.await_snapshots(members, index)

    def await_snapshots(self, members: Sequence[Member], index: int) -> None:
        """Wait until each of these members has made a snapshot behind this index."""
        for each in members:
            until(f"{each} makes a snapshot", lambda each=each: each.saved_snapshot() > index)  # type: ignore[misc]

    def lead(self, member: Member) -> None:
        """Make a member the leader."""
        move = pb.MoveLeaderRequest(targetID=member.id)

        def leads() -> bool:
            leader = self.leader()
            if leader is not member:
                # It may be refused: another member leads by now.
                leader.ask("Maintenance/MoveLeader", move)
            return self._led() is member

        until(f"{member} leads", leads)

    def catch_up(self) -> int:
        """Wait until all members are at the revision that the leader is at now; return it."""
        found = self.leader().answer("KV/Range", pb.RangeRequest(key=b"\0"))
        revision: int = found.header.revision
        for member in self:
            until(
                f"{member} is at revision {revision}",
                lambda member=member: member.revision() >= revision,  # type: ignore[misc]
            )
        return revision

    def check_agreement(self) -> None:
        """Check that all members have, or reach, the same keys, leases, members, alarms and
        hashes."""
        revision = self.catch_up()
        # At this revision: a call that was given up may still change something.
        everything = pb.RangeRequest(
            key=b"\0", range_end=b"\0", revision=revision, serializable=True
        )
        views = []
        for member in self:
            keys = member.answer("KV/Range", everything)
            hashed = member.answer("Maintenance/HashKV", pb.HashKVRequest(revision=revision))
            leases = member.answer("Lease/LeaseLeases", pb.LeaseLeasesRequest()).leases
            alarms = member.answer("Maintenance/Alarm", pb.AlarmRequest()).alarms
            views.append(
                (
                    [each.SerializeToString() for each in keys.kvs],
                    (hashed.hash, hashed.compact_revision),
                    sorted(each.ID for each in leases),
                    [each.SerializeToString() for each in member.members()],
                    sorted(each.SerializeToString() for each in alarms),
                )
            )
        for member, view in zip(self, views, strict=True):
            assert view == views[0], f"{member} differs from {self[0]}"

    def print_logs(self) -> None:
        """Print what the members logged last, to explain a failure."""
        for member in self:
            print(f"--- {member} ({member.process}):\n{member.log_tail()}")  # noqa: T201

    def stop(self) -> None:
        for member in self:
            member.client.close()
            if member.is_running:
                member.kill()
        self._reserved.close()


def reserved_prefix() -> tuple[str, socket.socket]:
    """Return the first three numbers of loopback addresses that no other cluster uses.

    They are reserved for as long as the socket is open.
    """
    for _ in range(_PREFIXES):
        number = 256 + (os.getpid() * 16 + next(_prefixes)) % _PREFIXES
        prefix = f"127.{number // 256}.{number % 256}"
        taken = socket.socket()
        try:
            taken.bind((f"{prefix}.254", ADVERTISED_PORT))
        except OSError:
            taken.close()
        else:
            return prefix, taken
    raise AssertionError(f"port {ADVERTISED_PORT} is in use at every loopback address")


@contextmanager
def new_cluster(
    directory: Path, make: str = "kvorum", size: int = 3, *flags: str, peer_scheme: str = "http"
) -> Iterator[Cluster]:
    """Make a cluster that is not started yet, with a network of its own; end it with the block."""
    network = Network()
    cluster = Cluster(directory, network, make, size, *flags, peer_scheme=peer_scheme)
    try:
        yield cluster
    finally:
        cluster.stop()
        network.stop()


@contextmanager
def running_cluster(
    directory: Path, make: str = "kvorum", size: int = 3, *flags: str
) -> Iterator[Cluster]:
    """Run a cluster for as long as the block takes."""
    with new_cluster(directory, make, size, *flags) as cluster:
        try:
            cluster.start()
            yield cluster
        except BaseException:
            cluster.print_logs()
            raise


def is_done(answer: object) -> bool:
    """Return whether a member is removed, by this call or by an earlier one without an answer."""
    return not isinstance(answer, Status) or answer == errors.MEMBER_NOT_FOUND


def grant(member: Member, ttl: int = LEASE_SECONDS) -> int:
    lease = next(_leases)
    answer = member.settled("Lease/LeaseGrant", pb.LeaseGrantRequest(ID=lease, TTL=ttl))
    # It exists already if an earlier call without an answer has granted it.
    assert not isinstance(answer, Status) or answer == errors.LEASE_EXIST, answer
    return lease
