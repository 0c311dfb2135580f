"""Measure what it costs two members to exchange appends: the transport, the dialer and the edge.

A leader in one process sends appends to a follower in another, which acknowledges each; raft, log
and store take no part. The output has messages and entries per second, and each member's processor
time per append: its loop's, and the rest, which is the edge's own thread's. On a shared machine
rounds differ much; the best one is the nearest to the code's own cost. Run it as `make bench-peer`;
`--profile` shows where the leader's loop spends its time, `--tls` encrypts.
"""

import argparse
import asyncio
import cProfile
import gc
import logging
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from kvorum.network.dialer.dialer import HttpDialer
from kvorum.network.edge import EdgeEventKind, TlsSettings, edge_name, open_edge
from kvorum.network.tls.certificates import self_signed
from kvorum.network.tls.credentials import DialSettings, TlsCredentials
from kvorum.raft.entries import Entry, EntryType
from kvorum.raft.messages import Message, MessageType
from kvorum.server.peer.transport.headers import READ_HEADERS, Identity
from kvorum.server.peer.transport.settings import TransportSettings
from kvorum.server.peer.transport.transport import Transport

LEADER, FOLLOWER, CLUSTER = 1, 2, 3
PAYLOAD = bytes(300)
LOADS = {
    "one append at a time": (1, 1),
    "64 appends on their way": (64, 1),
    "64 appends of 50 entries": (64, 50),
}


class Spent(NamedTuple):
    """Processor time, in seconds."""

    loop: float
    rest: float

    @classmethod
    def now(cls) -> "Spent":
        """Return the processor time spent so far."""
        loop = time.thread_time()
        return cls(loop, time.process_time() - loop)


class Member:
    """A node behind a real edge and a real dialer; it passes messages to `receive`."""

    def __init__(self, local: int, tls: TlsSettings | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._edge = open_edge([], http_headers=READ_HEADERS)
        _, address = self._edge.listen("127.0.0.1:0", tls, http1_only=True)
        self.url = f"{'https' if tls else 'http'}://{address}"
        self._dialer = HttpDialer(
            self._loop,
            TlsCredentials(DialSettings(insecure=True), print),
            connect_seconds_max=5.0,
            wake=self.wake,
        )
        identity = Identity(local, CLUSTER, (self.url,), "3.7.1")
        settings = TransportSettings(None, 1.0, time.time)
        logger = logging.getLogger("bench.peer")
        logger.setLevel(logging.ERROR)
        self.transport = Transport(self, self._edge, self._dialer, identity, settings, logger)
        self.receive: Callable[[Message], None]
        self.speak: Callable[[], list[Message]]
        self.streams = 0
        """How many streams the other node reads."""
        self.is_connected = False
        self._is_scheduled = self._is_stopped = False
        self._wake_at = 0.0
        self._timer = self._loop.call_later(0, self.wake)
        self._loop.add_reader(self._edge.fileno(), self.wake)

    def wake(self) -> None:
        """Schedule a turn soon."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_scheduled = False
        if self._is_stopped:
            return
        edge, transport = self._edge, self.transport
        now = time.monotonic()
        edge.awake()
        for event in self._dialer.poll():
            transport.handle_answer(event, now)
        _, events = edge.poll(1000, 4 << 20)
        for kind, call, detail in events:
            if kind == EdgeEventKind.HTTP_OPENED:
                _, method, target, headers = detail
                transport.open_request(call, method, target, headers, now)
                self.streams += target.startswith("/raft/stream/")
            else:
                transport.handle(kind, call, detail, now)
        if messages := self.speak():
            transport.send(messages, now)
        wake_at = transport.pass_time(now)
        if wake_at != self._wake_at:
            self._wake_at = wake_at
            self._timer.cancel()
            self._timer = self._loop.call_at(wake_at, self.wake)
        if not edge.announce_sleep():
            self.wake()

    def stop(self) -> None:
        """Close the edge, the dialer and the transport."""
        self._timer.cancel()
        self._is_stopped = True
        self._loop.remove_reader(self._edge.fileno())
        self.transport.stop()
        self._dialer.stop()
        self._edge.stop()

    # Reports of the transport.

    def report_unreachable(self, peer: int) -> None:
        """Accept the loss of a message, which may happen only before the streams are open."""

    def note_connected(self, peer: int, now: float) -> None:
        """Note that the other node has connected."""
        del peer, now
        self.is_connected = True

    def note_disconnected(self, peer: int) -> None:
        """Ignore that the other node has disconnected."""

    def note_absent(self, peer: int) -> None:
        """Ignore that the other node's process has ended."""

    def note_present(self, peer: int) -> None:
        """Ignore that the other node's host answers."""

    def is_removed(self, peer: int) -> bool:
        """Return True for any node but these two."""
        return peer not in (LEADER, FOLLOWER)

    def note_removed(self) -> None:
        """Do nothing: neither node is ever removed."""

    def report_snapshot(self, transfer: Any, *, failed: bool) -> None:
        """Do nothing: the nodes send no snapshots."""

    def submit(self, work: Any, done: Any, failed: Any) -> None:
        """Do nothing: the nodes have no blocking work."""


async def follow(leader: str, tls: TlsSettings | None) -> None:
    """Acknowledge every append; for each line of input print the processor time used so far."""
    member = Member(FOLLOWER, tls)
    answers: list[Message] = []

    def receive(message: Message) -> None:
        if message.type == MessageType.APP:
            index = message.index + len(message.entries)
            answers.append(Message(MessageType.APP_RESP, LEADER, FOLLOWER, 1, index=index))

    def speak() -> list[Message]:
        said, answers[:] = answers[:], []
        return said

    member.receive, member.speak = receive, speak
    member.transport.add_peer(LEADER, [leader], time.monotonic())
    print(member.url, flush=True)
    member.wake()
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin.fileno(), asked.set)
    while True:
        await asked.wait()
        asked.clear()
        if not sys.stdin.readline():
            break
        print(*Spent.now(), flush=True)
    member.stop()


class Measured(NamedTuple):
    """The leader's result of one round."""

    appends: int
    seconds: float
    leader: Spent
    follower: Spent


class Leading:
    """The leader's side, which also runs the follower's process."""

    def __init__(self, tls: TlsSettings | None) -> None:
        self.member = Member(LEADER, tls)
        self._index = self._acknowledged = 0
        self._window, self._size = 0, 1
        self._idle = asyncio.Event()
        self.member.receive, self.member.speak = self._receive, self._speak
        command = [sys.executable, "-m", "bench.peer", "--follow", self.member.url]
        if tls is not None:
            command += ["--files", tls.cert_file, tls.key_file]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._input, self._output = self._process.stdin, self._process.stdout
        url = self._output.readline().strip()
        self.member.transport.add_peer(FOLLOWER, [url], time.monotonic())
        self.member.wake()

    def _receive(self, message: Message) -> None:
        if message.type == MessageType.APP_RESP:
            self._acknowledged = message.index
            if self._acknowledged == self._index:
                self._idle.set()

    def _speak(self) -> list[Message]:
        said = []
        room = self._window - (self._index - self._acknowledged) // self._size
        for _ in range(room):
            first = self._index + 1
            entries = [
                Entry(EntryType.NORMAL, 1, first + place, PAYLOAD) for place in range(self._size)
            ]
            before, commit = self._index, self._acknowledged
            said.append(Message(MessageType.APP, FOLLOWER, LEADER, 1, 1, before, entries, commit))
            self._index += self._size
        return said

    async def ready(self) -> None:
        """Wait until streams are open in both directions."""
        while not (self.member.is_connected and self.member.streams == 2):
            await asyncio.sleep(0.01)

    async def run(self, window: int, size: int, seconds: float) -> Measured:
        """Send for a while; return the result up to the last acknowledgement."""
        theirs, ours, began = self._theirs(), Spent.now(), time.monotonic()
        before = self._index
        self._window, self._size = window, size
        self.member.wake()
        await asyncio.sleep(seconds)
        self._window = 0
        self._idle.clear()
        if self._acknowledged != self._index:
            await asyncio.wait_for(self._idle.wait(), 10)
        took, now = time.monotonic() - began, Spent.now()
        after = self._theirs()
        return Measured(
            (self._index - before) // size,
            took,
            Spent(now.loop - ours.loop, now.rest - ours.rest),
            Spent(after.loop - theirs.loop, after.rest - theirs.rest),
        )

    def _theirs(self) -> Spent:
        self._input.write("\n")
        self._input.flush()
        loop, rest = map(float, self._output.readline().split())
        return Spent(loop, rest)

    def stop(self) -> None:
        """End both nodes."""
        self.member.stop()
        self._input.close()
        self._process.wait(10)


async def lead(rounds: int, seconds: float, tls: TlsSettings | None, profile: str) -> None:
    """Measure every load, and print the best round of each."""
    leading = Leading(tls)
    await asyncio.wait_for(leading.ready(), 20)
    print(f"{edge_name()} edge, {'with TLS' if tls else 'in plain text'}")
    for name, (window, size) in LOADS.items():
        found = [await leading.run(window, size, seconds) for _ in range(rounds)]
        best = max(found, key=lambda one: one.appends / one.seconds)
        rate = best.appends / best.seconds
        print(f"{name}: {rate:,.0f} appends/s, {rate * size:,.0f} entries/s")
        for who, spent in (("leader", best.leader), ("follower", best.follower)):
            print(
                f"  {who:<8}  loop {spent.loop / best.appends * 1e6:6.1f} us, "
                f"rest {spent.rest / best.appends * 1e6:6.1f} us per append",
                flush=True,
            )
    if profile:
        profiler = cProfile.Profile()
        profiler.enable()
        await leading.run(*LOADS[profile], seconds)
        profiler.disable()
        pstats.Stats(profiler).sort_stats("tottime").print_stats(25)
    leading.stop()


def main() -> None:
    """Run the measurement, or the follower."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--follow", metavar="URL", help="only follow the leader at this address")
    parser.add_argument("--files", nargs=2, metavar=("CERT", "KEY"), help="what to encrypt with")
    parser.add_argument("--tls", action="store_true", help="encrypt what is exchanged")
    parser.add_argument("--profile", choices=LOADS, help="profile the leader under a load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one measurement")
    arguments = parser.parse_args()
    gc.disable()
    with tempfile.TemporaryDirectory() as name:
        tls = TlsSettings(*arguments.files) if arguments.files else None
        if arguments.tls:
            cert_file, key_file = self_signed(Path(name), ["127.0.0.1"], 1)
            tls = TlsSettings(str(cert_file), str(key_file))
        if arguments.follow:
            uvloop.run(follow(arguments.follow, tls))
        else:
            uvloop.run(lead(arguments.rounds, arguments.seconds, tls, arguments.profile))


if __name__ == "__main__":
    main()
