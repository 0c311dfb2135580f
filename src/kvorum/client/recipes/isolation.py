"""One attempt of a software transaction: what it has read and written, and when it may commit."""

from collections.abc import Iterable, Sequence

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client.keys import KeyRange, Text, as_bytes
from kvorum.client.operations import range_request
from kvorum.client.recipes.levels import Isolation
from kvorum.client.transactions import Condition, Step, delete, get, mod_revision, put
from kvorum.client.values import KeyValue, RangeResult, TxnResult


class Attempt:
    """What one run of a transaction's function has read and written."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._known: dict[bytes, KeyValue | None] = {}
        """What was fetched, also by an attempt before that has failed."""
        self._read: set[bytes] = set()
        self._writes: dict[bytes, Step] = {}
        self._written: dict[bytes, bytes | None] = {}
        self._revision = 0
        """The revision of all reads, once there was one."""

    # Reads.

    def is_known(self, key: bytes) -> bool:
        """Return whether a read of a key needs no call."""
        return key in self._written or key in self._known

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a key that is known; from now on it counts as read."""
        if key in self._written:
            return self._written[key]
        found = self._seen(key)
        return None if found is None else found.value

    def mod_revision(self, key: bytes) -> int:
        """Return the revision of a key that was fetched, or 0; from now on it counts as read."""
        found = self._seen(key)
        return 0 if found is None else found.mod_revision

    def is_fetched(self, key: bytes) -> bool:
        """Return whether the store was asked for a key."""
        return key in self._known

    def _seen(self, key: bytes) -> KeyValue | None:
        self._read.add(key)
        return self._known[key]

    def read_request(self, keys: Iterable[bytes]) -> pb.TxnRequest:
        """Return the request that reads keys.

        Reads of one revision ask the leader: a member that lags behind may not have it yet.
        """
        request = pb.TxnRequest()
        for key in keys:
            found = range_request(
                KeyRange(key, b""),
                revision=self._revision,
                serializable=not self._isolation.is_snapshot,
            )
            step = pb.RequestOp(request_range=pb.RangeRequest.FromString(found))
            request.success.append(step)
        return request

    def take(self, keys: Sequence[bytes], result: TxnResult) -> None:
        """Take what the store has of keys."""
        if self._isolation.is_snapshot and not self._revision:
            self._revision = result.revision
        for key, found in zip(keys, result.responses, strict=True):
            assert isinstance(found, RangeResult)
            self._known.setdefault(key, found.kvs[0] if found.kvs else None)

    # Writes.

    def put(self, key: bytes, value: Text, lease: int) -> None:
        """Set a key, if the transaction commits."""
        self._written[key] = as_bytes(value, "value")
        self._writes[key] = put(key, value, lease=lease)

    def delete(self, key: bytes) -> None:
        """Delete a key, if the transaction commits."""
        self._written[key] = None
        self._writes[key] = delete(key)

    # The end.

    @property
    def keys_read(self) -> list[bytes]:
        """The keys that were read, in the order in which a failed commit answers them."""
        return sorted(self._read)

    def commit_request(self) -> pb.TxnRequest | None:
        """Return the request that commits; None if there is nothing to commit or to check.

        If it fails it answers the keys that were read. One that writes nothing reads at the
        leader: the server answers mere comparisons from whatever it has.
        """
        if self._isolation is Isolation.READ_COMMITTED:
            conditions: list[Condition] = []
        else:
            conditions = [
                mod_revision(key) == (found.mod_revision if found is not None else 0)
                for key in self.keys_read
                for found in (self._known[key],)
            ]
            if self._isolation is Isolation.SERIALIZABLE_SNAPSHOT and self._read:
                conditions += [
                    mod_revision(key) < self._revision + 1
                    for key in self._writes
                    if key not in self._read
                ]
        if not conditions and not self._writes:
            return None
        reads = [get(key) for key in self.keys_read] if conditions else []
        return pb.TxnRequest(compare=conditions, success=list(self._writes.values()), failure=reads)

    def next(self, result: TxnResult) -> "Attempt":
        """Return the attempt after one whose commit failed: it knows what has changed."""
        attempt = Attempt(self._isolation)
        attempt.take(self.keys_read, result)
        return attempt
