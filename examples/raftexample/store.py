"""The replicated state: keys and values, and the nodes. Only applied entries change it."""

import json
from typing import NamedTuple


class Put(NamedTuple):
    """A change of a key as stored in the log; the number identifies the call waiting for it."""

    number: int
    key: str
    value: str

    def encode(self) -> bytes:
        """Return the data of the entry."""
        return json.dumps(self).encode()


def decode_put(data: bytes) -> Put:
    """Decode the data of an entry."""
    return Put(*json.loads(data))


class Store:
    """The replicated state; nodes that applied the same entries have equal stores."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.nodes: dict[int, str] = {}
        self.removed: set[int] = set()

    def apply(self, put: Put) -> None:
        """Apply a change."""
        self.values[put.key] = put.value

    def add_node(self, node: int, url: str) -> None:
        """Record a node's address."""
        self.nodes[node] = url

    def remove_node(self, node: int) -> None:
        """Record that a node no longer belongs to the group."""
        self.nodes.pop(node, None)
        self.removed.add(node)

    def snapshot(self) -> bytes:
        """Return the whole state for `restore`."""
        nodes = sorted(self.nodes.items())
        return json.dumps([self.values, nodes, sorted(self.removed)]).encode()

    def restore(self, snapshot: bytes) -> None:
        """Replace the state with a snapshot's."""
        self.values, nodes, removed = json.loads(snapshot)
        self.nodes, self.removed = dict(nodes), set(removed)
