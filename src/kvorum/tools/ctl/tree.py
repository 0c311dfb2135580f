"""`tree`: show keys by the parts of their names, with counts and sizes."""

from collections.abc import Iterator

from kvorum.client.keys import key_range
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.output import ResultOutput
from kvorum.tools.cli.progress import ProgressLine, human_count
from kvorum.tools.cli.terminal import painted
from kvorum.tools.cli.text import human_bytes, printable
from kvorum.tools.ctl.invocation import CtlInvocation
from kvorum.tools.ctl.keys import as_bytes
from kvorum.tools.ctl.lines import field
from kvorum.tools.ctl.pages import extent, keys_at

SEPARATOR = b"/"


class TreeNode:
    """A key, or a group of keys, whose name is their common part and ends with the separator."""

    __slots__ = ("children", "hidden", "keys", "name", "size")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.keys = 0
        self.size = 0
        """Bytes of keys and values."""
        self.children: dict[bytes, TreeNode] = {}
        self.hidden: TreeNode | None = None
        """The sum of all children beyond the limit, which get no rows."""

    def child(self, name: bytes, limit: int) -> "TreeNode":
        """Return the child of this name; beyond the limit, return `hidden`."""
        found = self.children.get(name)
        if found is None:
            if limit and len(self.children) >= limit:
                if self.hidden is None:
                    self.hidden = TreeNode(b"")
                return self.hidden
            found = self.children[name] = TreeNode(name)
        return found

    def count(self, size: int) -> None:
        """Count a key."""
        self.keys += 1
        self.size += size


def tree(invocation: CtlInvocation) -> None:
    """Show keys by the parts of their names."""
    if len(invocation.arguments) > 1:
        raise CommandError("tree command takes one argument as prefix", BAD_ARGUMENTS)
    depth, limit = invocation.number("depth"), invocation.number("limit")
    if min(depth, limit) < 0:
        raise CommandError("--depth and --limit must not be negative", BAD_ARGUMENTS)
    prefix = as_bytes(invocation.arguments[0]) if invocation.arguments else b""
    keys = key_range(prefix=prefix)
    root = TreeNode(prefix)
    with invocation.client() as client:
        invocation.output.check("simple", "json")
        revision = invocation.number("rev")
        found = extent(invocation, client, keys, revision)
        with ProgressLine("reading", found.keys, human_count) as progress:
            for kv in keys_at(invocation, client, keys, revision or found.revision):
                add(root, kv.key[len(prefix) :], len(kv.key) + len(kv.value), depth, limit)
                progress.add(1)
    output = invocation.output
    output.show(root, lambda _: _show(output, root), json=as_json, has_protobuf=False)


def add(root: TreeNode, key: bytes, size: int, depth: int = 0, limit: int = 0) -> None:
    """Count a key in a node, and in the nodes of its parts up to a depth."""
    root.count(size)
    node = root
    parts = key.split(SEPARATOR)
    names = [*(part + SEPARATOR for part in parts[:-1]), *filter(None, parts[-1:])]
    for name in names[: depth or None]:
        above, node = node, node.child(name, limit)
        node.count(size)
        if node is above.hidden:
            return


def as_json(node: TreeNode) -> dict[str, object]:
    """Return a node and its descendants for JSON."""
    hidden = node.hidden
    return {
        **field("name", node.name),
        "keys": node.keys,
        "bytes": node.size,
        **({"children": list(map(as_json, node.children.values()))} if node.children else {}),
        **({"more": {"keys": hidden.keys, "bytes": hidden.size}} if hidden else {}),
    }


def _show(output: ResultOutput, root: TreeNode) -> None:
    rows = list(_rows(root, ""))
    width = max(len(branch) + len(name) for branch, name, _ in rows)
    for branch, name, node in rows:
        is_many = bool(node.children) or node is root or name.endswith("/") or not node.name
        keys = f"{node.keys:,} key{'s' * (node.keys != 1)}" if is_many else ""
        shown = painted(name, "cyan") if is_many else name
        blanks = " " * (width - len(branch) - len(name))
        output.styled_line(f"{branch}{shown}{blanks}  {human_bytes(node.size):>7}  {keys}".rstrip())


def _rows(root: TreeNode, indent: str) -> Iterator[tuple[str, str, TreeNode]]:
    yield "", printable(root.name) or ".", root
    yield from _rows_below(root, indent)


def _rows_below(node: TreeNode, indent: str) -> Iterator[tuple[str, str, TreeNode]]:
    below = [*node.children.values(), *([node.hidden] if node.hidden else [])]
    for at, each in enumerate(below):
        is_last = at == len(below) - 1
        name = printable(each.name) if each.name else "…"
        yield f"{indent}{'└── ' if is_last else '├── '}", name, each
        yield from _rows_below(each, f"{indent}{'    ' if is_last else '│   '}")
