"""The namespace of a proxy: members see its prefix before every key, and clients do not.

Covered are the calls for keys, and the keys of a lease, as in etcd; locks and elections run at the
members, by the names that they were given. What is not covered passes as it is.
"""

from typing import Final

from google.protobuf.message import DecodeError

from kvorum.api import errors
from kvorum.api.errors import Status
from kvorum.client import rpcs
from kvorum.client.errors import KeyEmptyError
from kvorum.client.namespacing import answer_from, request_into

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
"""The unary calls whose messages are changed."""


class Namespace:
    """A prefix, possibly empty."""

    __slots__ = ("prefix",)

    def __init__(self, prefix: bytes) -> None:
        self.prefix = prefix

    def request(self, path: str, message: bytes) -> bytes | Status:
        """Return a request as a member is to get it, or why it is refused."""
        if not self.prefix:
            return message
        try:
            return request_into(self.prefix, path, message)
        except KeyEmptyError:
            return errors.EMPTY_KEY
        except DecodeError as error:
            return errors.unparsable_request(str(error))

    def answer(self, path: str, answer: bytes) -> bytes:
        """Return an answer as a client is to get it."""
        return answer_from(self.prefix, path, answer) if self.prefix else answer
