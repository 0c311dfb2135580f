"""`dump snap`: show the small files that replace a log up to an index, even damaged ones.

Beside term, index and members, they hold etcd's store of version 2, which once kept the membership:
its leaves are shown, with their paths.
"""

import json
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from google_crc32c import value as crc32c

from kvorum.api.pb import raftpb, snappb
from kvorum.storage.files import Files
from kvorum.storage.files.interface import read_file
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.utl.dumps.lines import DumpOutput, warn
from kvorum.tools.utl.dumps.members import conf_state_object, nodes_text

_ENDING = ".snap"


def dump_snapshots(files: Files, lines: DumpOutput, argument: str) -> None:
    """Show one file, or all of a data directory; then raise CommandError if any is damaged."""
    path = Path(argument)
    if path.is_file():
        paths = [path]
    else:
        directory = path / "member" / "snap"
        if not directory.is_dir():
            raise CommandError(f'"{directory}" does not exist')
        names = files.list(str(directory))
        paths = [directory / name for name in names if name.endswith(_ENDING)]
        if not paths:
            warn(f"There are no snapshots in {directory}.")
    bad = [each for each in paths if not _dump(files, lines, each, is_first=each == paths[0])]
    if bad:
        raise CommandError(f"not whole: {', '.join(map(str, bad))}")


def _dump(files: Files, lines: DumpOutput, path: Path, *, is_first: bool) -> bool:
    """Show one file; return whether it is undamaged."""
    content = read_file(files, str(path))
    shown: dict[str, Any] = {"file": path.name, "bytes": len(content)}
    texts = [f"file={path.name} bytes={len(content)}"]
    problem = "empty" if not content else ""
    try:
        stored = snappb.snapshot.FromString(content)
        checksum = crc32c(stored.data)
        is_right = checksum == stored.crc
        shown |= {"crc": stored.crc, "crc_right": is_right}
        words = "right" if is_right else f"wrong, the content has {checksum:08x}"
        texts.append(f"crc={stored.crc:08x} ({words})")
        problem = problem or ("" if is_right else "the checksum is wrong")
        snapshot = raftpb.Snapshot.FromString(stored.data)
        metadata = snapshot.metadata
        members = conf_state_object(metadata.conf_state)
        shown |= {"term": metadata.term, "index": metadata.index, "conf_state": members}
        texts.append(
            f"term={metadata.term} index={metadata.index} "
            f"nodes={nodes_text(metadata.conf_state.voters)} "
            f"confstate={json.dumps(members, separators=(',', ':'))}"
        )
        document = _document(snapshot.data)
        shown["document"] = document
        texts += [f"{name}={value}" for name, value in document.items()]
    except (DecodeError, ValueError, RecursionError) as error:
        problem = problem or f"this cannot be read: {error}"
    if lines.is_json:
        lines.object(shown | {"problem": problem or None})
    else:
        if not is_first:
            lines.text()
        for text in texts:
            lines.text(text)
        if problem:
            lines.text(f"problem={problem}")
    return not problem


def _document(data: bytes) -> dict[str, str]:
    """Return the leaves of the membership, a tree of etcd's version 2, by their paths."""
    found: dict[str, str] = {}
    waiting = [json.loads(data).get("Root")] if data else []
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict):
            children = node.get("Children")
            if isinstance(children, dict):
                waiting += [child for _, child in sorted(children.items(), reverse=True)]
            else:
                found[str(node.get("Path"))] = str(node.get("Value"))
    return found
