"""A walk through everything that can happen to watchers, in the order a seed says."""

import random

from kvorum.api.limits import WorkLimits
from kvorum.api.ranges import prefix_end
from tests.state.mvcc.watch_world import Client, Operation, World, exact_fragments

KEYS = [b"a", b"a/1", b"a/2", b"a/3", b"b", b"b\xff", b"c", b"\xff\xff"]
VALUES = [b"", b"x", b"y" * 40, b"z" * 300]
WIDE = [(b"", b"\0"), (b"a", b"\0"), (b"a/2", b"\0"), (b"a", b"c"), (b"a/1", b"b")]
FILTERS: list[tuple[int, ...]] = [(), (), (0,), (1,), (0, 1), (9,)]


def random_limits(rng: random.Random) -> WorkLimits:
    return WorkLimits(
        watch_catch_up_watchers_max=rng.choice([1, 2, 3, 512]),
        watch_history_rows_max=rng.choice([1, 2, 5, 1000]),
        watch_history_bytes_max=rng.choice([1, 100, 1 << 20]),
        watch_changes_per_step=rng.choice([1, 3, 1000]),
        watch_deliveries_per_step=rng.choice([1, 1, 2, 1000]),
        watch_stream_unsent_bytes_max=rng.choice([100, 1 << 20]),
        watch_spread_bytes_max=rng.choice([0, 100, 1 << 20]),
        watch_unsent_bytes_max=rng.choice([300, 16 << 20]),
        watch_catch_up_bytes_per_step=rng.choice([1, 100, 4 << 20]),
        watchers_removed_per_step=rng.choice([1, 2, 1000]),
    )


class Walk:
    """One step after another; the seed decides what each does."""

    def __init__(self, rng: random.Random, world: World) -> None:
        self.rng = rng
        self.world = world
        self.popular = rng.choice([*WIDE, (b"a", b"")])
        self.steps = [
            *[self.write] * 6,
            *[self.create] * 4,
            *[self.step] * 4,
            *[self.pause] * 2,
            *[self.ask_progress] * 2,
            *[self.cancel] * 2,
            self.open_or_close,
            *[self.compact] * 2,
            *[self.clear_compacted] * 2,
            self.flush,
            self.tick,
            self.restore,
            world.drain,
        ]

    def client(self) -> Client:
        return self.rng.choice(list(self.world.clients.values()))

    def revision(self) -> int:
        current = self.world.model.revision
        if self.rng.random() < 0.5:
            return self.rng.randint(max(0, current - 3), current + 1)
        return self.rng.randint(-1, current + 3)

    def operations(self) -> list[Operation]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            return [(rng.choice(KEYS), rng.choice(VALUES))]
        if kind < 0.7:
            keys = rng.sample(KEYS, rng.randint(2, len(KEYS)))
            return [(key, rng.choice(VALUES)) for key in keys]
        return [(rng.choice(KEYS), rng.choice([b"", b"\0", rng.choice(KEYS)]), None)]

    def write(self) -> None:
        self.world.write(self.operations())

    def create(self) -> None:
        rng = self.rng
        key = rng.choice(KEYS)
        ranges = [(key, b""), (key, prefix_end(key)), (key, rng.choice(KEYS))]
        ranges += [rng.choice(WIDE), *[self.popular] * 4]
        self.client().create(
            *rng.choice(ranges),
            rng.choice([0, self.revision()]),
            rng.choice([0, 0, 0, 1, 2, 7, -5]),
            rng.choice(FILTERS),
            prev_kv=rng.random() < 0.5,
            fragment=rng.random() < 0.5,
            progress_notify=rng.random() < 0.5,
        )

    def cancel(self) -> None:
        client = self.client()
        for _ in range(self.rng.choice([1, 1, 5])):
            client.cancel(self.rng.choice([*client.used, 3]))

    def open_or_close(self) -> None:
        if len(self.world.clients) < 4:
            self.world.open()
        else:
            self.world.close(self.client())

    def pause(self) -> None:
        self.world.pause(self.client(), self.rng.random() < 0.5)

    def ask_progress(self) -> None:
        self.client().stream.request_progress()

    def step(self) -> None:
        self.world.hub.step()

    def compact(self) -> None:
        self.world.compact(self.revision())

    def clear_compacted(self) -> None:
        for _ in range(self.rng.randint(1, 6)):
            self.world.clear_compacted()

    def flush(self) -> None:
        self.world.flush()

    def tick(self) -> None:
        self.world.tick(self.rng.choice([0.1, 5.0, 11.0]))

    def restore(self) -> None:
        batches = [self.operations() for _ in range(self.rng.randint(0, 3))]
        compacted = self.revision() if self.rng.random() < 0.3 else -1
        self.world.restore(batches, compacted)


def walk(seed: int, steps: int = 80) -> World:
    """Take so many steps, then check that nothing is missing."""
    rng = random.Random(seed)
    limits, fragment_bytes = random_limits(rng), rng.choice([60, 500])
    with exact_fragments():
        world = World(limits, fragment_bytes, seed)
        world.open()
        walk = Walk(rng, world)
        for _ in range(steps):
            rng.choice(walk.steps)()
        world.settle()
    return world
