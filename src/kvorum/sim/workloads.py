"""What the clients of a run do, drawn from its seed."""

from dataclasses import dataclass, replace
from random import Random

ETCD = "etcd"
"""Puts, gets, deletions, ranges, transactions over several keys, leases, compaction."""
KUBERNETES = "kubernetes"
"""Objects that are created, updated and deleted by their revision, and listed in pages."""
READER = "reader"
"""Only reads, always at the same member, and with little patience."""
STREAMER = "streamer"
"""Writes many keys, and reads all of them in pieces."""
CACHED = "cached"
"""Reads the same few keys from wherever that is fastest, again and again, and writes them."""

KEY_PREFIX = b"k/"
KEY_PREFIX_END = b"k0"
OBJECT_PREFIX = b"/registry/pods/"
OBJECT_PREFIX_END = b"/registry/pods0"
STREAM_PREFIX = b"s/"
STREAM_PREFIX_END = b"s0"
LOCK_NAME = b"lock"
ELECTION_NAME = b"election"


@dataclass(slots=True, frozen=True, kw_only=True)
class Workload:
    """What the clients of a run do."""

    shapes: tuple[str, ...]
    """What each client's requests are like."""
    keys: int
    requests: int
    """How many requests each client makes at most."""
    think: float
    """Average time between an answer and the next request; half of the time there is none."""
    patience: tuple[float, float]
    value_bytes_max: int
    weights: tuple[tuple[str, float], ...]
    """How often clients of etcd's shape make which request."""
    watchers: int
    reflectors: int
    """Clients that list objects and watch them from there, as caches of Kubernetes do."""
    sessions: int
    """Clients that want a lock, or to be elected."""
    lease_seconds: tuple[int, int]
    leaseholders: int = 0
    """Clients that renew a lease until they have to wait for it, and rely on it then."""
    observers: int = 0
    """Clients that want to know who is elected."""
    inspectors: int = 0
    """Clients that ask members how they are, for hashes and for snapshots."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """Requests that are left out, as client and number; for the shrinker."""


def draw_workload(random: Random, seconds: float) -> Workload:
    """Return what the clients of a run do, so that it lasts about so long."""
    clients = random.randint(2, 8)
    requests = max(8, random.randint(40, 260) // clients)
    of_kubernetes = random.choice([0.0, 0.0, 0.5, 1.0])
    writers = [KUBERNETES if random.random() < of_kubernetes else ETCD for _ in range(clients)]
    shapes = (*writers, *[READER] * random.choice([0, 1, 3]))
    weights = [
        ("put", random.uniform(1.0, 4.0)),
        ("get", random.choice([1.0, 3.0, 8.0])),
        ("list", random.uniform(0.0, 0.7)),
        ("past", random.uniform(0.0, 0.5)),
        ("delete", random.uniform(0.2, 1.0)),
        ("clear", random.choice([0.0, 0.1, 0.3])),
        ("set", random.uniform(0.3, 2.0)),
        ("move", random.uniform(0.0, 1.0)),
        ("pair", random.uniform(0.0, 0.7)),
        ("compact", random.choice([0.0, 0.0, 0.1, 0.3])),
        ("grant", random.choice([0.0, 0.2, 0.5])),
        ("revoke", random.uniform(0.0, 0.3)),
        ("keep", random.choice([0.0, 0.5, 1.5])),
    ]
    return Workload(
        shapes=shapes,
        keys=random.choice([1, 3, 6, 12]),
        requests=requests,
        # Half of the pauses are zero, and answers take time.
        think=seconds / requests,
        patience=random.choice([(0.5, 2.0), (2.0, 9.0)]),
        value_bytes_max=random.choice([16, 16, 400, 4000]),
        weights=tuple(weights),
        watchers=random.randint(0, 4),
        reflectors=random.randint(1, 2) if KUBERNETES in shapes else 0,
        sessions=random.choice([0, 0, 2, 4]),
        lease_seconds=random.choice([(1, 3), (2, 8)]),
    )


def draw_more_clients(random: Random, workload: Workload) -> Workload:
    """Return what clients do, with some in about a third of the runs that make rarer calls."""
    streamers = random.choice([0, 0, 0, 1, 2])
    observers = random.choice([0, 0, 0, 1, 2])
    return replace(
        workload,
        shapes=(*workload.shapes, *[STREAMER] * streamers),
        observers=observers,
        # Somebody has to stand for election.
        sessions=max(workload.sessions, 3) if observers else workload.sessions,
        inspectors=random.choice([0, 0, 1]),
    )


def is_clients_key(key: bytes) -> bool:
    """Return whether a key is one that clients write; others belong to locks and probes."""
    return (
        KEY_PREFIX <= key < KEY_PREFIX_END
        or OBJECT_PREFIX <= key < OBJECT_PREFIX_END
        or STREAM_PREFIX <= key < STREAM_PREFIX_END
    )
