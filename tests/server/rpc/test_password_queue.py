"""Whose password is next, and which process hashes it: by counts and an injected clock."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kvorum.api.limits import PRODUCTION
from kvorum.member.jobs import ExecutorKind
from kvorum.server.rpc.password_queue import (
    PASSWORDS_WAITING_MAX,
    PROMPT_SHARE,
    PasswordQueue,
    QueuedPassword,
)

USUAL = 0.05
PROMPT, IDLE = ExecutorKind.PASSWORDS, ExecutorKind.PASSWORDS_IDLE


class World:
    """A queue, its clock, and the turns that have come."""

    def __init__(self) -> None:
        self.queue = PasswordQueue(PRODUCTION.password_prompt_seconds_max)
        self.now = 100.0
        self.came: list[QueuedPassword] = []
        self.refused: list[QueuedPassword] = []

    def join(self, connection: str, seconds: float = USUAL) -> QueuedPassword | None:
        turn = self.queue.join(connection, seconds, self.now)
        if turn is not None:

            def woken(turn: QueuedPassword = turn) -> None:
                (self.refused if turn.is_refused else self.came).append(turn)

            turn.wake_by(woken)
            if turn.executor is not None:
                woken()
        return turn

    def end(self, place: ExecutorKind) -> None:
        """End the job of a process."""
        self.queue.release(place, self.now)

    def use_up(self) -> None:
        """Use the budget up, and leave both processes free."""
        while (turn := self.join("0.0.0.0:1")) is not None and turn.executor is PROMPT:
            self.end(PROMPT)
        self.end(IDLE)
        self.came.clear()


def test_a_login_now_and_then_never_gives_way() -> None:
    world = World()
    for _ in range(50):
        turn = world.join("1.1.1.1:1")
        assert turn is not None and turn.executor is PROMPT
        world.end(PROMPT)
        world.now += USUAL / PROMPT_SHARE


def test_a_flood_takes_no_more_than_the_budget_at_the_servers_priority() -> None:
    world = World()
    begun = world.now
    for number in range(PASSWORDS_WAITING_MAX):
        world.join(f"1.1.1.1:{number}")
    prompt = 0.0
    while world.now < begun + 60:
        for turn in world.came:
            prompt += turn.seconds * (turn.executor is PROMPT)
        busy = {turn.executor for turn in world.came}
        world.came.clear()
        for number in range(len(busy)):
            world.join(f"1.1.1.1:{number}")
        world.now += USUAL
        for place in busy:
            assert place is not None
            world.end(place)
    passed = world.now - begun
    # At most the one that used the budget up goes beyond it.
    share = passed * PROMPT_SHARE
    assert share <= prompt <= PRODUCTION.password_prompt_seconds_max + share + USUAL


def test_a_prompt_process_that_is_busy_is_waited_for() -> None:
    world = World()
    first, second = world.join("1.1.1.1:1"), world.join("1.1.1.1:2")
    assert first is not None and second is not None
    # Only a flood has another process started.
    assert (first.executor, second.executor) == (PROMPT, None)
    world.end(PROMPT)
    assert second.executor is PROMPT


def test_both_processes_work_after_the_budget_has_grown() -> None:
    world = World()
    world.use_up()
    idle, waiting = world.join("1.1.1.1:1"), world.join("1.1.1.1:1")
    assert idle is not None and idle.executor is IDLE
    assert waiting is not None and waiting.executor is None
    world.now += USUAL / PROMPT_SHARE
    world.queue.advance(world.now)
    assert waiting.executor is PROMPT and world.came == [idle, waiting]


def test_a_flood_on_one_connection_neither_delays_nor_displaces_others() -> None:
    world = World()
    flood = [world.join("1.1.1.1:1") for _ in range(PASSWORDS_WAITING_MAX + 1)]
    assert flood[0] is not None and flood[0].executor is PROMPT and all(flood)
    assert world.join("1.1.1.1:1") is None
    other, neighbour = world.join("2.2.2.2:1"), world.join("1.1.1.1:2")
    # The newest of the flood make room.
    assert world.refused == [flood[-1], flood[-2]]
    came = []
    for _ in range(4):
        world.end(PROMPT)
        came.append(world.came[-1])
    assert came == [flood[1], other, neighbour, flood[2]]


def test_who_left_has_no_turn_and_gives_its_budget_back() -> None:
    world = World()
    world.use_up()
    first, second, third = (world.join(f"1.1.1.1:{number}") for number in range(3))
    assert first is not None and second is not None and third is not None
    world.queue.leave(second, world.now)
    assert third.executor is None
    world.queue.leave(first, world.now)
    assert second.executor is None and third.executor is IDLE
    world.end(IDLE)
    world.now += USUAL / PROMPT_SHARE
    again = world.join("1.1.1.1:1")
    assert again is not None and again.executor is PROMPT
    world.queue.leave(again, world.now)
    again = world.join("1.1.1.1:1")
    assert again is not None and again.executor is PROMPT


CLIENTS = [f"{host}.1.1.1:{port}" for host in "123" for port in "12"] + ["", "@"]
STEPS = st.lists(
    st.tuples(st.sampled_from(["join", "join", "join", "end", "leave"]), st.integers(0, 99))
)


@given(STEPS)
def test_nobody_is_lost_and_nobody_waits_for_nothing(steps: list[tuple[str, int]]) -> None:
    world = World()
    joined: list[QueuedPassword] = []
    under_way: Counter[ExecutorKind] = Counter()
    ended: set[int] = set()
    for action, choice in steps:
        world.now += choice / 100
        open_turns = [each for each in joined if each.number not in ended and not each.is_refused]
        begun = [each for each in open_turns if each.executor is not None]
        if action == "join":
            turn = world.join(CLIENTS[choice % len(CLIENTS)], choice / 1000)
            assert turn is not None
            joined.append(turn)
        elif action == "leave" and open_turns:
            turn = open_turns[choice % len(open_turns)]
            world.queue.leave(turn, world.now)
            ended.add(turn.number)
        elif action == "end" and begun:
            turn = begun[choice % len(begun)]
            assert turn.executor is not None
            world.end(turn.executor)
            ended.add(turn.number)
        left = [each for each in joined if each.number not in ended]
        under_way = Counter(each.executor for each in left if each.executor is not None)
        assert all(count == 1 for count in under_way.values())
        assert under_way or not left, "a password waits although nothing is hashed"
    # Each turn that came was told once.
    assert len(set(world.came)) == len(world.came)
    assert not world.refused
