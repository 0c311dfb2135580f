"""What is replicated: keys and values, and which nodes there are. It only changes by `apply`."""

import json
from typing import NamedTuple


class Put(NamedTuple):
    """A change of a key, as it is in the log. The number identifies the call that waits for it."""

    number: int
    key: str
    value: str

    def encode(self) -> bytes:
        """Return the data of the entry."""
        return json.dumps(self).encode()


def decode_put(data: bytes) -> Put:
    """Read the data of an entry."""
    return Put(*json.loads(data))


class Store:
    """Every node that applied the same entries has the same store."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}
        self.nodes: dict[int, str] = {}
        self.removed: set[int] = set()

    def apply(self, put: Put) -> None:
        """Take a change."""
        self.values[put.key] = put.value

    def add_node(self, node: int, url: str) -> None:
        """Note where a node can be reached."""
        self.nodes[node] = url

    def remove_node(self, node: int) -> None:
        """Note that a node no longer belongs to the group."""
        self.nodes.pop(node, None)
        self.removed.add(node)

    def snapshot(self) -> bytes:
        """Return everything, to be read by `restore`."""
        nodes = sorted(self.nodes.items())
        return json.dumps([self.values, nodes, sorted(self.removed)]).encode()

    def restore(self, snapshot: bytes) -> None:
        """Become the store that made the snapshot."""
        self.values, nodes, removed = json.loads(snapshot)
        self.nodes, self.removed = dict(nodes), set(removed)
