"""`snapshot status`: read and check a whole snapshot file, and describe its content.

etcd's tool accepts files with rows that no member would write, as long as the tree is undamaged and
the values can be decoded. A file that our check refuses is checked again by those rules.
"""

import sys
from pathlib import Path

from google.protobuf.message import DecodeError
from google_crc32c import extend

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.network.edge import native_rows
from kvorum.state.membership.versions import parse_version
from kvorum.storage.backend.bbolt import Image, ImageError
from kvorum.storage.backend.buckets import KEY, META, STORAGE_VERSION
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import BAD_ARGUMENTS, CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.cli.text import human_bytes, quoted
from kvorum.tools.offline.locks import etcd_lock
from kvorum.tools.offline.snapshots import HashCheck, SnapshotStatus, open_snapshot, status_of
from kvorum.tools.utl.output import Column, print_row

_REVISION_BYTES = 17
_SEPARATOR = b"_"
_TOMBSTONE = b"t"
_SIGN = 0x80


def run(invocation: Invocation) -> None:
    """Print the status of a snapshot file."""
    if len(invocation.arguments) != 1:
        raise CommandError("snapshot status requires exactly one argument", BAD_ARGUMENTS)
    path = invocation.arguments[0]
    if not Path(path).exists():
        raise CommandError(f"stat {path}: no such file or directory")
    output = invocation.output
    if Path(path).is_file():
        with etcd_lock(Path(path), invocation.seconds("timeout"), is_shared=True):
            found = _status(path)
    else:
        found = _status(path)
    columns = [
        Column("hash", "Hash", "hash", found.hash, f"{found.hash:x}"),
        Column("revision", "Revision", "revision", found.revision, str(found.revision)),
        Column("total keys", "Keys", "totalKey", found.total_key, str(found.total_key)),
        Column("total size", "Size", "totalSize", found.total_size, human_bytes(found.total_size)),
        Column("version", "Version", "version", found.version, found.version),
    ]
    print_row(output, columns)


def _status(path: str) -> SnapshotStatus:
    files = RealFiles()
    refusal = ""
    try:
        found = status_of(files, path, native_rows())
    except CommandError as error:
        if not isinstance(error.__cause__, ImageError) or error.__cause__.words:
            raise
        refusal = str(error)
    with open_snapshot(files, path, HashCheck.SKIPPED) as image:
        try:
            if refusal:
                found = tolerant_status(image)
            image.check_meta_pages()
        except ImageError as error:
            raise CommandError(
                f"snapshot file integrity check failed. 1 errors found.\n{error.problem}",
                hint=str(error),
            ) from error
    if refusal:
        sys.stderr.write(f"Warning: no member starts from it: {refusal}\n")
    return found


def tolerant_status(image: Image) -> SnapshotStatus:
    """Return the status that etcd's tool reports; raise CommandError where that tool refuses."""
    value, revision, version = 0, 0, ""
    live: set[bytes] = set()
    for bucket in image.buckets():
        value = extend(value, bucket)
        for name, content in image.items(bucket):
            value = extend(extend(value, name), content)
            if bucket == KEY:
                key = _key_of(name, content)
                revision = int.from_bytes(name[:8], "big")
                if name[_REVISION_BYTES:] == _TOMBSTONE:
                    live.discard(key)
                else:
                    live.add(key)
            elif bucket == META and name == STORAGE_VERSION:
                version = _version(content)
    return SnapshotStatus(value, revision, len(live), image.size, version)


def _key_of(name: bytes, content: bytes) -> bytes:
    """Return the key of a row, whose name must be a revision."""
    problem = ""
    if len(name) not in (_REVISION_BYTES, _REVISION_BYTES + 1):
        problem = f"invalid revision length: {len(name)}"
    elif name[8:9] != _SEPARATOR:
        problem = f"invalid separator in bucket key: {name[8:9]!r}"
    elif name[0] & _SIGN or name[9] & _SIGN:
        problem = "negative revision"
    if problem:
        problem = f"cannot parse revision key: {quoted(name)} err: {problem}"
    else:
        try:
            return KeyValue.FromString(content).key
        except DecodeError as error:
            problem = f"cannot unmarshal value, key: {quoted(name)} err: {error}"
    raise CommandError(f'error during bucket key iteration, name: "key" err: {problem}')


def _version(content: bytes) -> str:
    try:
        return str(parse_version(content.decode()))
    except ValueError:
        return ""
