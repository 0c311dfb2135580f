"""The namespace of a proxy: members see its prefix before every key, clients do not.

As in etcd, the namespace covers the calls for keys, and the keys of a lease. Locks and elections
run at the members under the names that clients give. All other calls pass unchanged.
"""

from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.client import rpcs
from kvorum.client.errors import KeyEmptyError
from kvorum.client.namespacing import prefix_request, strip_answer

COVERED: Final = frozenset(
    each.path
    for each in (
        rpcs.RANGE,
        rpcs.PUT,
        rpcs.DELETE_RANGE,
        rpcs.TXN,
        rpcs.LEASE_TIME_TO_LIVE,
    )
)
"""The unary calls whose keys the namespace changes."""


class Namespace:
    """Adds a prefix, possibly empty, to keys in requests and removes it from answers."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix

    def request(self, path: str, message: bytes) -> bytes | Status:
        """Return the request for the member, or the status that refuses it."""
        if not self.prefix:
            return message
        try:
            return prefix_request(self.prefix, path, message)
        except KeyEmptyError:
            return errors.EMPTY_KEY
        except DecodeError as error:
            return errors.unparsable_request(str(error))

    def answer(self, path: str, answer: bytes) -> bytes:
        """Return the answer for the client."""
        return strip_answer(self.prefix, path, answer) if self.prefix else answer
