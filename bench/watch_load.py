"""Measure the cost of watching: puts beside few and many watchers, fan-out, and catching up.

Everything runs on a real store over LMDB, without network, Raft and log. Times are processor time.
Run it as `python -m bench.watch_load`.
"""

import gc
import statistics
import time

from bench.storage import ROUNDS, VALUE, Storage, say, shown, storage

PUTS = 20_000
FEW, MANY = 10, 100_000
WATCHERS_PER_STREAM = 1_000
TURN_PUTS = 200
HISTORY_ROWS = 20_000
CATCHING_UP = 1_000


def key_of(number: int) -> bytes:
    """Return the key of a watcher."""
    return b"/watched/%010d" % number


def watch(made: Storage, keys: list[bytes]) -> None:
    """Create a watcher of each key, a thousand to a stream."""
    for first in range(0, len(keys), WATCHERS_PER_STREAM):
        stream = made.hub.open_stream(first)
        for key in keys[first : first + WATCHERS_PER_STREAM]:
            stream.create(key)
    made.hub.take_outgoing()


def put_all(made: Storage, keys: list[bytes]) -> float:
    """Put keys in turns of `TURN_PUTS`; return the rate."""
    start = time.process_time()
    put, take = made.store.put, made.hub.take_outgoing
    for first in range(0, len(keys), TURN_PUTS):
        for key in keys[first : first + TURN_PUTS]:
            put(key, VALUE, 0)
        take()
    return len(keys) / (time.process_time() - start)


def puts() -> None:
    """Compare puts beside few and many watchers, which must take the same time.

    Both use the same keys, because other keys would change the index, and the rounds alternate.
    """
    with storage() as few, storage() as many:
        watch(few, [key_of(number) for number in range(0, MANY, MANY // FEW)])
        watch(many, [key_of(number) for number in range(MANY)])
        others = [b"/other/%010d" % number for number in range(PUTS)]
        watched = [key_of(number % FEW * (MANY // FEW)) for number in range(PUTS)]
        for name, keys in (("other", others), ("watched", watched)):
            rounds = [(put_all(few, keys), put_all(many, keys)) for _ in range(ROUNDS)]
            for count, found in zip((FEW, MANY), zip(*rounds, strict=True), strict=True):
                say(f"put of {name} keys, {count:,} watchers", shown(sorted(found, reverse=True)))
            ratio = statistics.median(after / before for before, after in rounds)
            say("  median of the ratios", f"{ratio:.2f}", "goal 0.90")


def steps(made: Storage) -> tuple[float, float]:
    """Let the hub finish its work; return the total seconds and the longest step's."""
    total = longest = 0.0
    while made.hub.has_work:
        start = time.process_time()
        made.hub.step()
        seconds = time.process_time() - start
        total += seconds
        longest = max(longest, seconds)
        made.hub.take_outgoing()
    return total, longest


def fan_out() -> None:
    """Measure one put that all watchers receive."""
    with storage() as made:
        watch(made, [b"hot"] * MANY)
        start = time.process_time()
        made.store.put(b"hot", VALUE, 0)
        first = time.process_time() - start
        total, longest = steps(made)
        rate = MANY / (first + total)
        say(f"one put, {MANY:,} watchers of it", f"{rate:,.0f} responses/s")
        say("  longest step", f"{max(first, longest) * 1e3:.1f} ms")


def large_transaction() -> None:
    """Measure the publication of a transaction that deletes every watched key."""
    with storage() as made:
        for number in range(MANY):
            made.store.put(key_of(number), b"", 0)
        watch(made, [key_of(number) for number in range(MANY)])
        transaction = made.store.begin()
        transaction.delete_range(b"/watched/", b"/watched0")
        start = time.process_time()
        transaction.commit()
        first = time.process_time() - start
        total, longest = steps(made)
        say(f"{MANY:,} deletions in one transaction", f"{MANY / (first + total):,.0f} events/s")
        say("  longest step", f"{max(first, longest) * 1e3:.1f} ms")


def catching_up() -> None:
    """Measure watchers of one prefix that read the whole history."""
    with storage() as made:
        first = made.store.revision + 1
        for number in range(HISTORY_ROWS):
            made.store.put(key_of(number % 1_000), VALUE, 0)
        made.flush()
        for number in range(CATCHING_UP):
            made.hub.open_stream(number).create(b"/watched/", b"/watched0", first)
        total, longest = steps(made)
        rate = HISTORY_ROWS * CATCHING_UP / total
        say(
            f"{CATCHING_UP:,} watchers catch up, {HISTORY_ROWS:,} rows", f"{rate:,.0f} events/s", ""
        )
        say("  longest step", f"{longest * 1e3:.1f} ms")


def main() -> None:
    """Run all measurements with the garbage collector off, as in a member."""
    gc.disable()
    puts()
    fan_out()
    large_transaction()
    catching_up()


if __name__ == "__main__":
    main()
