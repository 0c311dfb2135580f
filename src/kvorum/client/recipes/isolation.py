"""One attempt of a software transaction: its reads, its writes, and the request that commits."""

from collections.abc import Iterable, Sequence

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client.keys import KeyRange, Text, as_bytes
from kvorum.client.operations import range_request
from kvorum.client.recipes.levels import Isolation
from kvorum.client.transactions import Condition, Step, delete, get, mod_revision, put
from kvorum.client.values import KeyValue, RangeResult, TxnResult


class Attempt:
    """The reads and writes of one run of a transaction's function."""

    def __init__(self, isolation: Isolation) -> None:
        self._isolation = isolation
        self._known: dict[bytes, KeyValue | None] = {}
        """The keys that were fetched, including those that a failed earlier attempt returned."""
        self._read: set[bytes] = set()
        self._writes: dict[bytes, Step] = {}
        self._written: dict[bytes, bytes | None] = {}
        self._revision = 0
        """The revision of all reads under snapshot isolation; 0 before the first."""

    # Reads.

    def is_known(self, key: bytes) -> bool:
        """Return whether a read of a key needs no call."""
        return key in self._written or key in self._known

    def value(self, key: bytes) -> bytes | None:
        """Return the value of a known key, which counts as read unless it was written here."""
        if key in self._written:
            return self._written[key]
        found = self._seen(key)
        return None if found is None else found.value

    def mod_revision(self, key: bytes) -> int:
        """Return the mod revision of a fetched key, or 0; from now on the key counts as read."""
        found = self._seen(key)
        return 0 if found is None else found.mod_revision

    def is_fetched(self, key: bytes) -> bool:
        """Return whether a key was fetched from the store."""
        return key in self._known

    def _seen(self, key: bytes) -> KeyValue | None:
        self._read.add(key)
        return self._known[key]

    def read_request(self, keys: Iterable[bytes]) -> pb.TxnRequest:
        """Return the request that reads keys.

        Under snapshot isolation the reads are linearizable: a lagging member may not have the
        revision yet.
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
        """Store the keys that a read returned."""
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
        """The keys that were read, in the order in which a failed commit returns them."""
        return sorted(self._read)

    def commit_request(self) -> pb.TxnRequest | None:
        """Return the request that commits; None if there is nothing to commit or to check.

        If its conditions fail, the response has the keys that were read. These reads also make a
        commit without writes linearizable: for a transaction without operations, servers compare
        with their own state, however old.
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
        """Return the next attempt after a failed commit, with the keys that the commit returned."""
        attempt = Attempt(self._isolation)
        attempt.take(self.keys_read, result)
        return attempt
