# Written by `make client` from kvorum/client/aio; change that.
"""Transactions of a client, written step by step."""

from typing import TYPE_CHECKING, Self

from kvorum.client.operations import txn_operation
from kvorum.client.transactions import Condition, Step, TxnParts
from kvorum.client.values import TxnResult

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class Txn:
    """A transaction of a client, until it is committed."""

    def __init__(self, client: "Client") -> None:
        self._client = client
        self._parts = TxnParts()

    def when(self, *conditions: Condition) -> Self:
        """Set the conditions."""
        self._parts.add_conditions(conditions)
        return self

    def then(self, *steps: Step) -> Self:
        """Set the steps for the case that all conditions hold."""
        self._parts.add_success(steps)
        return self

    def otherwise(self, *steps: Step) -> Self:
        """Set the steps for the case that a condition does not hold."""
        self._parts.add_failure(steps)
        return self

    def commit(self, timeout: float | None = None) -> TxnResult:
        """Commit the transaction, in one revision."""
        return self._client.run(txn_operation(self._parts.request), timeout)
