"""The work of the clients of a run, drawn from its seed."""

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
"""Reads the same few keys again and again, mostly serializably, and writes them."""

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
    """The work of the clients of a run."""

    shapes: tuple[str, ...]
    """The shape of each client's requests."""
    keys: int
    requests: int
    """How many requests each client makes at most; clients of shape `CACHED` make more."""
    think: float
    """Average time between an answer and the next request; half of the time there is none."""
    patience: tuple[float, float]
    value_bytes_max: int
    weights: tuple[tuple[str, float], ...]
    """The weights of the requests that clients of etcd's shape make."""
    watchers: int
    reflectors: int
    """Clients that list objects and watch them from there, as caches of Kubernetes do."""
    sessions: int
    """Clients that want a lock, or to be elected."""
    lease_seconds: tuple[int, int]
    leaseholders: int = 0
    """Clients that renew a lease until an answer is late, and then rely on the lease."""
    observers: int = 0
    """Clients that observe an election."""
    inspectors: int = 0
    """Clients that ask members for status, hashes and snapshots."""
    left_out: frozenset[tuple[int, int]] = frozenset()
    """Requests to leave out, as client and number; the shrinker sets them."""


def draw_workload(random: Random, seconds: float) -> Workload:
    """Return the work of the clients of a run, which takes about `seconds`."""
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
    """Return the workload with clients of rarer calls, each kind in about a third of the runs."""
    streamers = random.choice([0, 0, 0, 1, 2])
    observers = random.choice([0, 0, 0, 1, 2])
    return replace(
        workload,
        shapes=(*workload.shapes, *[STREAMER] * streamers),
        observers=observers,
        # Some sessions have to stand for election.
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
