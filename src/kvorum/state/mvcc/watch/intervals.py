"""Finds the intervals that contain a key, in a balanced tree augmented with the greatest end.

Rules: nodes are ordered by (begin, end), and no two are equal. Every node stores the greatest end
of its subtree, so a search skips subtrees that end before the key. An empty end means "no end".
Insertions and removals build new nodes along their path and never touch the others, so a tree does
not change while a caller iterates over it.
"""

from typing import Generic, TypeVar

T = TypeVar("T")


class Branch(Generic[T]):
    """One interval, its item, and the subtrees on both sides."""

    __slots__ = ("begin", "end", "greatest_end", "height", "item", "left", "right")

    def __init__(
        self, begin: bytes, end: bytes, item: T, left: "Tree[T]" = None, right: "Tree[T]" = None
    ) -> None:
        self.begin = begin
        self.end = end
        self.item = item
        self.left = left
        self.right = right
        self.height = 1 + max(_height(left), _height(right))
        self.greatest_end: bytes = end
        for side in (left, right):
            if side is not None:
                self.greatest_end = _later_end(self.greatest_end, side.greatest_end)


Tree = Branch[T] | None


def insert(tree: Tree[T], begin: bytes, end: bytes, item: T) -> Branch[T]:
    """Return the tree with this interval added; the tree must not have it yet."""
    if tree is None:
        return Branch(begin, end, item)
    assert (begin, end) != (tree.begin, tree.end), f"[{begin!r}, {end!r}) is in the tree already"
    if (begin, end) < (tree.begin, tree.end):
        return _join(tree, insert(tree.left, begin, end, item), tree.right)
    return _join(tree, tree.left, insert(tree.right, begin, end, item))


def remove(tree: Tree[T], begin: bytes, end: bytes) -> Tree[T]:
    """Return the tree without this interval; the tree must have it."""
    assert tree is not None, f"[{begin!r}, {end!r}) is not in the tree"
    if (begin, end) < (tree.begin, tree.end):
        return _join(tree, remove(tree.left, begin, end), tree.right)
    if (begin, end) > (tree.begin, tree.end):
        return _join(tree, tree.left, remove(tree.right, begin, end))
    if tree.right is None:
        return tree.left
    successor = tree.right
    while successor.left is not None:
        successor = successor.left
    return _join(successor, tree.left, remove(tree.right, successor.begin, successor.end))


def find(tree: Tree[T], begin: bytes, end: bytes) -> T | None:
    """Return the item of exactly this interval, None if the tree lacks it."""
    while tree is not None:
        if (begin, end) == (tree.begin, tree.end):
            return tree.item
        tree = tree.left if (begin, end) < (tree.begin, tree.end) else tree.right
    return None


def holding(tree: Tree[T], key: bytes, found: list[T]) -> None:
    """Append to `found` the items of the intervals that contain a key, in interval order."""
    while tree is not None and (not tree.greatest_end or key < tree.greatest_end):
        if key < tree.begin:
            tree = tree.left
            continue
        holding(tree.left, key, found)
        if not tree.end or key < tree.end:
            found.append(tree.item)
        tree = tree.right


def _join(node: Branch[T], left: Tree[T], right: Tree[T]) -> Branch[T]:
    """Make a balanced tree of a node's interval and two trees that differ by at most two."""
    balance = _height(left) - _height(right)
    if balance > 1:
        assert left is not None
        if _height(left.left) < _height(left.right):
            middle = left.right
            assert middle is not None
            return _copy(
                middle, _copy(left, left.left, middle.left), _copy(node, middle.right, right)
            )
        return _copy(left, left.left, _copy(node, left.right, right))
    if balance < -1:
        assert right is not None
        if _height(right.right) < _height(right.left):
            middle = right.left
            assert middle is not None
            return _copy(
                middle, _copy(node, left, middle.left), _copy(right, middle.right, right.right)
            )
        return _copy(right, _copy(node, left, right.left), right.right)
    return _copy(node, left, right)


def _copy(node: Branch[T], left: Tree[T], right: Tree[T]) -> Branch[T]:
    return Branch(node.begin, node.end, node.item, left, right)


def _height(tree: Tree[T]) -> int:
    return 0 if tree is None else tree.height


def _later_end(one: bytes, other: bytes) -> bytes:
    return max(one, other) if one and other else b""
