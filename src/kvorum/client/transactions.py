"""Transactions, written as they are read: when conditions hold, then do this, otherwise that.

client.txn().when(version("job") == 0).then(put("job", "mine")).otherwise(get("job")).commit()
"""

from typing import TypeAlias

from kvorum.api.pb import etcdserverpb as pb
from kvorum.client import operations
from kvorum.client.keys import Text, as_bytes, key_range
from kvorum.client.operations import range_request

Condition: TypeAlias = pb.Compare
Step: TypeAlias = pb.RequestOp
"""One operation of a transaction."""


class Facet:
    """A property of a key, or of all keys up to an end, that a transaction may depend on."""

    __slots__ = ("_end", "_key", "_name")

    def __init__(self, name: str, key: Text, end: Text | None) -> None:
        self._name = name
        self._key = as_bytes(key)
        self._end = b"" if end is None else as_bytes(end, "end")

    def _compare(self, result: "pb.Compare.CompareResult", value: int | Text) -> Condition:
        if self._name == "value":
            if isinstance(value, int):
                raise TypeError(f"a value is compared with bytes or text, not with {value!r}")
            value = as_bytes(value, "value")
        elif not isinstance(value, int):
            raise TypeError(f"{self._name} is compared with a number, not with {value!r}")
        compared = pb.Compare(
            result=result, target=_TARGETS[self._name], key=self._key, range_end=self._end
        )
        setattr(compared, self._name, value)
        return compared

    def __eq__(self, value: object) -> Condition:  # type: ignore[override]
        assert isinstance(value, int | bytes | str), f"cannot be compared with {value!r}"
        return self._compare(pb.Compare.EQUAL, value)

    def __ne__(self, value: object) -> Condition:  # type: ignore[override]
        assert isinstance(value, int | bytes | str), f"cannot be compared with {value!r}"
        return self._compare(pb.Compare.NOT_EQUAL, value)

    def __lt__(self, value: int | Text) -> Condition:
        return self._compare(pb.Compare.LESS, value)

    def __gt__(self, value: int | Text) -> Condition:
        return self._compare(pb.Compare.GREATER, value)

    __hash__: None = None  # type: ignore[assignment]


_TARGETS = {
    "version": pb.Compare.VERSION,
    "create_revision": pb.Compare.CREATE,
    "mod_revision": pb.Compare.MOD,
    "value": pb.Compare.VALUE,
    "lease": pb.Compare.LEASE,
}


def version(key: Text, end: Text | None = None) -> Facet:
    """Return a key's version, to be compared: 0 if it does not exist."""
    return Facet("version", key, end)


def create_revision(key: Text, end: Text | None = None) -> Facet:
    """Return the revision at which a key was created, to be compared: 0 if it does not exist."""
    return Facet("create_revision", key, end)


def mod_revision(key: Text, end: Text | None = None) -> Facet:
    """Return the revision at which a key was changed last, to be compared."""
    return Facet("mod_revision", key, end)


def value(key: Text, end: Text | None = None) -> Facet:
    """Return a key's value, to be compared."""
    return Facet("value", key, end)


def lease(key: Text, end: Text | None = None) -> Facet:
    """Return the lease that a key is attached to, to be compared: 0 if it has none."""
    return Facet("lease", key, end)


def put(
    key: Text,
    value: Text = b"",
    *,
    lease: int = 0,
    previous: bool = False,
    keep_value: bool = False,
    keep_lease: bool = False,
) -> Step:
    """Return the step that sets a key."""
    request = operations.put(
        key, value, lease, previous=previous, keep_value=keep_value, keep_lease=keep_lease
    )
    return pb.RequestOp(request_put=pb.PutRequest.FromString(request))


def get(
    key: Text | None = None,
    *,
    prefix: Text | None = None,
    end: Text | None = None,
    from_key: Text | None = None,
    limit: int = 0,
    revision: int = 0,
    order: str = "",
    by: str = "key",
    keys_only: bool = False,
    count_only: bool = False,
) -> Step:
    """Return the step that reads a key or a range."""
    keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
    request = range_request(
        keys,
        limit=limit,
        revision=revision,
        order=order,
        by=by,
        keys_only=keys_only,
        count_only=count_only,
    )
    return pb.RequestOp(request_range=pb.RangeRequest.FromString(request))


def delete(
    key: Text | None = None,
    *,
    prefix: Text | None = None,
    end: Text | None = None,
    from_key: Text | None = None,
    previous: bool = False,
) -> Step:
    """Return the step that deletes a key or a range."""
    keys = key_range(key, prefix=prefix, end=end, from_key=from_key)
    request = pb.DeleteRangeRequest(key=keys.key, range_end=keys.end, prev_kv=previous)
    return pb.RequestOp(request_delete_range=request)


class TxnParts:
    """The parts of a transaction, each given once and in order."""

    __slots__ = ("_given", "request")

    def __init__(self) -> None:
        self.request: pb.TxnRequest = pb.TxnRequest()
        self._given = ""

    def add_conditions(self, conditions: tuple[Condition, ...]) -> None:
        """Add the conditions of the transaction."""
        self._once("when")
        self.request.compare.extend(conditions)

    def add_success(self, steps: tuple[Step, ...]) -> None:
        """Add the steps for the case that all conditions hold."""
        self._once("then")
        self.request.success.extend(steps)

    def add_failure(self, steps: tuple[Step, ...]) -> None:
        """Add the steps for the case that a condition does not hold."""
        self._once("otherwise")
        self.request.failure.extend(steps)

    def _once(self, part: str) -> None:
        order = ("when", "then", "otherwise")
        if self._given and order.index(part) <= order.index(self._given):
            raise ValueError(f"{part} was called after {self._given}; expected each once, in order")
        self._given = part
