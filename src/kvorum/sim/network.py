"""The network between members, which delays, loses, doubles and cuts off frames.

Frames are bytes; nothing else passes from one member to another. A cut applies both when a frame is
sent and when it would arrive.
"""

from collections.abc import Callable, Sequence
from random import Random
from typing import NamedTuple

from kvorum.raft.messages import Message, MessageType
from kvorum.raft.wire import encode_message
from kvorum.sim.faults import Faults
from kvorum.sim.moments import Kind
from kvorum.sim.trace import describe
from kvorum.sim.world import World

_LATE_SECONDS_MAX = 10.0

Deliver = Callable[[int, int, bytes], None]
"""Takes sender, receiver and frame."""


class Kept(NamedTuple):
    """An append that the network holds for its receiver."""

    sender: int
    frame: bytes
    last: int
    """The index of the last entry that the receiver has after this append."""
    commit: int
    """The highest index that the receiver may commit after this append."""


class Network:
    """Carries raft messages between the numbered members, and delivers them."""

    __slots__ = (
        "_cut",
        "_deliver",
        "_held_back",
        "_kept",
        "_random",
        "_world",
        "dropped",
        "faults",
        "sent",
    )

    def __init__(self, world: World, faults: Faults, deliver: Deliver) -> None:
        self.faults = faults
        self.sent = 0
        self.dropped = 0
        self._world = world
        self._random: Random = world.stream("network")
        self._deliver = deliver
        # (sender, receiver) pairs that are cut off.
        self._cut: set[tuple[int, int]] = set()
        # Until when, and by how much, the frames that a member sends take longer; frames to that
        # member take longer by twice as much.
        self._held_back: dict[int, tuple[float, float]] = {}
        # Appends to a member that are held until they are released.
        self._kept: dict[int, list[Kept]] = {}

    def send(self, sender: int, to: int, message: Message) -> None:
        """Send a message; it may not arrive."""
        frame = encode_message(message)
        self.sent += 1
        faults, random, world = self.faults, self._random, self._world
        if (sender, to) in self._cut or random.random() < faults.drop_chance:
            self.dropped += 1
            if world.trace is not None:
                world.trace.line(world.now, f"m{sender}", f"x m{to} {describe(message)}")
            return
        if world.trace is not None:
            world.trace.line(world.now, f"m{sender}", f"> m{to} {describe(message)}")
        if to in self._kept and message.type == MessageType.APP:
            last = message.index + len(message.entries)
            self._kept[to].append(Kept(sender, frame, last, min(message.commit, last)))
            return
        self._carry(sender, to, frame)
        # A transport sends a forwarded proposal once: two arrivals would be two proposals.
        if random.random() < faults.duplicate_chance and message.type != MessageType.PROP:
            self._carry(sender, to, frame)

    def _carry(self, sender: int, to: int, frame: bytes) -> None:
        draw, faults = self._random.random, self.faults
        if draw() < faults.delay_chance:
            self._world.after(draw() * _LATE_SECONDS_MAX, self._arrive_late, sender, to, frame)
        else:
            least, most = faults.link_delay
            delay = least + draw() * (most - least)
            for member, times in ((sender, 1), (to, 2)):
                until, longer = self._held_back.get(member, (0.0, 0.0))
                delay += times * longer if self._world.now < until else 0.0
            self._world.after(delay, self._arrive, sender, to, frame)

    def _arrive_late(self, sender: int, to: int, frame: bytes) -> None:
        """Deliver a late message; drop it if faults have ended."""
        if self.faults.delay_chance:
            self._arrive(sender, to, frame)
        else:
            self.dropped += 1

    def _arrive(self, sender: int, to: int, frame: bytes) -> None:
        if (sender, to) in self._cut:
            self.dropped += 1
        else:
            self._deliver(sender, to, frame)

    def hold_back(self, member: int, until: float, longer: float) -> None:
        """Until a moment, delay frames that a member sends, and frames to it by twice as much."""
        self._held_back[member] = until, longer

    def keep_appends(self, member: int) -> None:
        """Hold appends to a member until they are released; other messages arrive."""
        self._kept[member] = []

    def kept(self, member: int) -> Sequence[Kept]:
        """Return the held appends to a member, in the order in which they were sent."""
        return self._kept.get(member, ())

    def release_appends(self, member: int, count: int) -> None:
        """Deliver the first held appends to a member, even if it is cut off."""
        kept = self._kept.get(member, [])
        for each in kept[:count]:
            delay = self.faults.link_delay[0]
            self._world.after(delay, self._deliver, each.sender, member, each.frame)
        del kept[:count]

    def end_keeping(self, member: int) -> None:
        """Release all held appends to a member, and hold no more."""
        self.release_appends(member, len(self.kept(member)))
        self._kept.pop(member, None)

    def is_cut(self, sender: int, to: int) -> bool:
        """Return whether the link from one member to another is cut."""
        return (sender, to) in self._cut

    def partition(self, members: list[int], chosen: int, random: Random) -> None:
        """Cut one member and some others off from the rest, in one or both directions."""
        rest = [member for member in members if member != chosen]
        count = random.randint(0, max(0, len(members) // 2 - 1))
        side = sorted([chosen, *random.sample(rest, count)])
        others = [member for member in members if member not in side]
        ways = 2
        if random.random() < self.faults.one_way_chance:
            ways = random.randint(0, 1)
        for one in side:
            for other in others:
                if ways != 0:
                    self._cut.add((one, other))
                if ways != 1:
                    self._cut.add((other, one))
        self._tell(side, ("<-x-", "-x->", "-x-")[ways])

    def divide(self, side: list[int], others: list[int]) -> None:
        """Cut some members off from others, and heal all other links."""
        self._cut = {
            pair for one in side for other in others for pair in ((one, other), (other, one))
        }
        self._tell(side, "-x-")

    def _tell(self, side: list[int], arrow: str) -> None:
        if self._world.trace is not None:
            names = tuple(f"m{member}" for member in side)
            what = f"cut {' '.join(names)} {arrow} others"
            self._world.trace.line(self._world.now, "net", what, Kind.PARTITIONED, about=names)

    def cut_off(self, chosen: int, members: Sequence[int]) -> None:
        """Cut one member off from all others, and heal all other links."""
        self.divide([chosen], [member for member in members if member != chosen])

    def heal(self) -> None:
        """Heal all links."""
        if self._cut and self._world.trace is not None:
            self._world.trace.line(self._world.now, "net", "healed", Kind.HEALED)
        self._cut.clear()
