"""Requests of clients that write many keys and read them in pieces."""

from random import Random

from kvorum.api.pb.etcdserverpb import (
    CompactionRequest,
    DeleteRangeRequest,
    PutRequest,
    RangeRequest,
    RequestOp,
    TxnRequest,
)
from kvorum.sim.calls import PlannedRequest
from kvorum.sim.history import History, Record
from kvorum.sim.workloads import STREAM_PREFIX, STREAM_PREFIX_END, Workload

KEYS = 60
VALUE_BYTES_MAX = 200
PUTS_AT_ONCE = (5, 20)
FIRST_PUTS = 2
"""How many requests fill the range before the first read."""
STALL_CHANCE = 0.25
STALL_SECONDS = (0.05, 1.0)


class StreamShape:
    """The requests of one client."""

    __slots__ = ("_asked", "_history", "_number", "_random", "_revision", "_value_bytes", "_values")

    def __init__(self, random: Random, history: History, workload: Workload, number: int) -> None:
        self._random = random
        self._history = history
        self._number = number
        self._value_bytes = min(VALUE_BYTES_MAX, workload.value_bytes_max)
        self._asked = 0
        self._values = 0
        self._revision = 0

    def next(self) -> PlannedRequest:
        """Return the next request."""
        random = self._random
        self._asked += 1
        choice = random.random()
        if self._asked <= FIRST_PUTS or choice < 0.1:
            return self._fill()
        if choice < 0.6:
            return self._stream()
        if choice < 0.65:
            return PlannedRequest(
                "list", RangeRequest(key=STREAM_PREFIX, range_end=STREAM_PREFIX_END)
            )
        if choice < 0.8:
            return PlannedRequest("put", self._put(self._key()))
        if choice < 0.9:
            return PlannedRequest("delete", DeleteRangeRequest(key=self._key(), prev_kv=True))
        if choice < 0.95 or self._history.revision < KEYS:
            first = self._key()
            clear = DeleteRangeRequest(key=first, range_end=first + b"~", prev_kv=True)
            return PlannedRequest("clear", clear)
        revision = self._history.revision - random.choice([0, 0, 5, 20])
        return PlannedRequest("compact", CompactionRequest(revision=revision))

    def _key(self) -> bytes:
        return STREAM_PREFIX + b"%02d" % self._random.randrange(KEYS)

    def _put(self, key: bytes) -> PutRequest:
        self._values += 1
        value = b"%d.%d" % (self._number, self._values)
        length = self._random.randint(0, self._value_bytes)
        return PutRequest(key=key, value=value + b"." * max(0, length - len(value)))

    def _fill(self) -> PlannedRequest:
        """Write many keys at once."""
        random = self._random
        keys = sorted(random.sample(range(KEYS), random.randint(*PUTS_AT_ONCE)))
        puts = [self._put(STREAM_PREFIX + b"%02d" % key) for key in keys]
        return PlannedRequest(
            "fill", TxnRequest(success=[RequestOp(request_put=put) for put in puts])
        )

    def _stream(self) -> PlannedRequest:
        random = self._random
        serializable = random.random() < 0.3
        revision = 0
        if self._revision and random.random() < 0.3:
            revision = max(1, self._revision - random.choice([0, 1, 3, 10]))
        first = STREAM_PREFIX if random.random() < 0.7 else self._key()
        request = RangeRequest(
            key=first,
            range_end=STREAM_PREFIX_END,
            revision=revision,
            serializable=serializable,
            limit=random.choice([0, 0, 0, 3, 15, 40]),
            count_only=random.random() < 0.05,
            keys_only=random.random() < 0.1,
        )
        stalled = 0.0
        if random.random() < STALL_CHANCE:
            stalled = random.uniform(*STALL_SECONDS)
        return PlannedRequest("stream", request, (), not serializable, True, stalled)

    def learn(self, record: Record) -> None:
        """Remember the newest revision."""
        self._revision = max(self._revision, record.response.header.revision)
