"""A node of ours, over real sockets, beside a real etcd: its learner, its peer, its leader.

Raft and transport are ours; what is in an entry is nobody's concern here. The node reads the
leader's streams, acknowledges what it has, and takes a snapshot when the log does not reach back.
Then it leads, and the etcd reads our streams, which it would not survive if one byte were wrong.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.message import DecodeError

from kvorum.api.pb.etcdserverpb import InternalRaftRequest
from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.edge import EdgeEventKind, open_edge
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.raft import (
    Config,
    EntryType,
    MemoryStorage,
    Message,
    MessageType,
    RaftError,
    RawNode,
    Role,
    Snapshot,
)
from kvorum.raft.wire import decode_conf_change
from kvorum.server.peer.transport import Identity, Transport, TransportSettings
from kvorum.server.peer.transport.headers import READ_HEADERS
from kvorum.storage.backend.bbolt import open_image
from kvorum.storage.files.real import RealFiles
from kvorum.storage.snap import database_path
from tests.etcd import chosen
from tests.server.peer.transport.etcds import Member, running_members
from tests.waiting import WAIT_SECONDS_MAX

TICK_SECONDS = 0.1
# So patient are both that a busy machine makes neither campaign before it is told to.
ELECTION_TICKS = 50
LOGGER = logging.getLogger("learner")


class Learner:
    """Raft without an application, and the world that it needs."""

    def __init__(self, member: Member, directory: Path) -> None:
        self._loop = asyncio.get_running_loop()
        self.files = RealFiles()
        self.directory = str(directory)
        self.puts: dict[bytes, bytes] = {}
        self.snapshots: list[Snapshot] = []
        self.received: set[int] = set()
        self.progress = asyncio.Event()
        self._is_closed = False
        self._failure: Exception | None = None
        self._tick_at = time.monotonic()
        self._edge = open_edge([], http_headers=READ_HEADERS)
        _, address = self._edge.listen("127.0.0.1:0")
        url = f"http://{address}"
        added = member.etcd.ask("cluster/member/add", peerURLs=[url], isLearner=True)
        self.id = int(added["member"]["ID"])
        leader_id, cluster_id = (
            int(added["header"]["member_id"]),
            int(added["header"]["cluster_id"]),
        )
        self.storage = MemoryStorage()
        self.raft = RawNode(
            Config(
                id=self.id,
                storage=self.storage,
                logger=LOGGER,
                random_below=random.Random(1).randrange,
                election_ticks=ELECTION_TICKS,
                heartbeat_ticks=1,
                message_size_max=1 << 20,
            )
        )
        self._dialer = HttpDialer(
            self._loop,
            TlsCredentials(DialSettings(), LOGGER.warning),
            connect_seconds_max=1.0,
            wake=self._wake,
        )
        self.transport = Transport(
            self,
            self._edge,
            self._dialer,
            Identity(self.id, cluster_id, (url,), str(chosen())),
            TransportSettings(
                snap_directory=self.directory,
                election_seconds=ELECTION_TICKS * TICK_SECONDS,
                unix_seconds=time.time,
            ),
            LOGGER,
        )
        self.transport.add_peer(leader_id, [member.peer_url], time.monotonic())
        self._loop.add_reader(self._edge.fileno(), self._wake)
        self._wake()

    def _wake(self) -> None:
        self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        if self._is_closed:
            return
        try:
            self._take_turn()
        except Exception as error:
            self._failure = error
            self._is_closed = True
        self.progress.set()

    def _take_turn(self) -> None:
        self._edge.awake()
        now = time.monotonic()
        for kind, call, detail in self._edge.poll(256, 1 << 20)[1]:
            if kind != EdgeEventKind.HTTP_OPENED:
                self.transport.handle(kind, call, detail, now)
            elif self.transport.serves(detail[1], detail[2]):
                _, method, target, headers = detail
                self.transport.open_request(call, method, target, headers, now)
            else:
                self._edge.respond(call, 404, (), b"")
        for event in self._dialer.poll():
            self.transport.handle_answer(event, now)
        if now >= self._tick_at:
            # One only: while this process stands still, so does its time.
            self._tick_at = now + TICK_SECONDS
            self.raft.tick()
        while self.raft.has_ready():
            self._do_ready(now)
        wake_at = self.transport.pass_time(now)
        self._loop.call_later(min(0.1, max(0.0, wake_at - now)), self._wake)
        if not self._edge.announce_sleep():
            self._wake()

    def _do_ready(self, now: float) -> None:
        ready = self.raft.ready()
        if ready.snapshot is not None:
            self.storage.apply_snapshot(ready.snapshot)
            self.snapshots.append(ready.snapshot)
        if ready.hard_state is not None:
            self.storage.set_hard_state(ready.hard_state)
        self.storage.append(ready.entries)
        self.transport.send(ready.messages, now)
        for entry in ready.committed_entries:
            if entry.type == EntryType.CONF_CHANGE:
                self.raft.apply_conf_change(decode_conf_change(entry))
            elif entry.data:
                try:
                    request = InternalRaftRequest.FromString(entry.data)
                except DecodeError:
                    continue  # a request of the second version of the API
                if request.HasField("put"):
                    self.puts[request.put.key] = request.put.value
        self.raft.advance()

    async def wait(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_SECONDS_MAX):
            while not holds():
                if self._failure is not None:
                    raise self._failure
                self.progress.clear()
                await self.progress.wait()

    def close(self) -> None:
        self._loop.remove_reader(self._edge.fileno())
        self.transport.stop()
        self._dialer.stop()
        self._edge.stop()
        self._is_closed = True

    # What the transport tells.

    def receive(self, message: Message) -> None:
        self.received.add(message.type)
        try:
            self.raft.step(message)
        except RaftError as error:
            LOGGER.debug(str(error))

    def report_unreachable(self, peer: int) -> None:
        self.raft.report_unreachable(peer)

    def report_snapshot(self, transfer: Any, *, failed: bool) -> None:
        self.raft.report_snapshot(transfer.message.to, failed=failed)

    def note_connected(self, peer: int, now: float) -> None: ...

    def note_disconnected(self, peer: int) -> None: ...
    def note_absent(self, peer: int) -> None: ...
    def note_present(self, peer: int) -> None: ...

    def is_removed(self, peer: int) -> bool:
        return peer == self.id

    def note_removed(self) -> None:
        raise AssertionError("the leader says that this node was removed")

    def submit(
        self, work: Any, done: Callable[[Any], None], failed: Callable[[Exception], None]
    ) -> None:
        future = self._loop.run_in_executor(None, work.run, self.files)

        def take(future: "asyncio.Future[Any]") -> None:
            error = future.exception()
            if isinstance(error, Exception):
                failed(error)
            else:
                done(future.result())
            self._wake()

        future.add_done_callback(take)


@pytest.mark.parametrize("is_behind", [False, True], ids=["by the log", "by a snapshot"])
def test_a_real_etcd_leads_a_node_of_ours_and_follows_it(tmp_path: Path, is_behind: bool) -> None:
    (tmp_path / "snap").mkdir()
    # From its hundredth entry on a leader of 3.7 has forgotten the first, which a new node needs;
    # one of 3.5 from its first snapshot on.
    before = 200 if is_behind else 50

    async def run(member: Member) -> None:
        for number in range(before):
            member.etcd.put(b"key%d" % number, b"value%d" % number)
        learner = Learner(member, tmp_path / "snap")
        try:
            if is_behind:
                await learner.wait(lambda: bool(learner.snapshots))
                check_image(learner)
            else:
                await learner.wait(lambda: len(learner.puts) == before)
            for number in range(200, 300):
                member.etcd.put(b"key%d" % number, b"value%d" % number)
            await learner.wait(lambda: b"key299" in learner.puts)
            assert learner.puts[b"key299"] == b"value299"
            await promote(learner, member)
            # From now on nothing is committed without us.
            await asyncio.to_thread(member.etcd.put, b"together", b"x")
            await learner.wait(lambda: b"together" in learner.puts)
            await lead(learner, member)
        finally:
            learner.close()

    flags = [f"--election-timeout={ELECTION_TICKS * TICK_SECONDS * 1000:.0f}"]
    flags += ["--snapshot-count=50"] * is_behind
    with running_members(tmp_path, 1, *flags) as (member,):
        asyncio.run(run(member))


async def promote(learner: Learner, member: Member) -> None:
    """Make a voter of the learner, as soon as the leader has heard what it acknowledges."""
    async with asyncio.timeout(WAIT_SECONDS_MAX):
        while True:
            try:
                await asyncio.to_thread(
                    member.etcd.ask, "cluster/member/promote", ID=str(learner.id)
                )
            except AssertionError as error:
                if "which is in sync with leader" not in str(error):
                    raise
            else:
                return


async def lead(learner: Learner, member: Member) -> None:
    """Let the etcd hand over to the learner of before, and write and read through it."""
    await asyncio.to_thread(
        member.etcd.ask, "maintenance/transfer-leadership", targetID=str(learner.id)
    )
    await learner.wait(lambda: learner.raft.basic_status().soft_state.role == Role.LEADER)
    for number in range(50):
        await asyncio.to_thread(member.etcd.put, b"led%d" % number, b"value" * number + b".")
    # A linearizable read: the etcd asks its leader, which asks the etcd.
    assert await asyncio.to_thread(member.etcd.get, b"led49") == b"value" * 49 + b"."
    assert {MessageType.PROP, MessageType.READ_INDEX, MessageType.APP_RESP} <= learner.received
    assert learner.puts[b"led49"] == b"value" * 49 + b"."
    assert member.etcd.process.poll() is None


def check_image(learner: Learner) -> None:
    """The database that came with the snapshot is whole, and holds the keys."""
    snapshot = learner.snapshots[0]
    image = open_image(learner.files, database_path(learner.directory, snapshot.index))
    try:
        rows = [value for _, value in image.items(b"key")]
    finally:
        image.close()
    assert sum(b"value" in row for row in rows) >= 190
