"""`defrag`: rewrite the database of a stopped member, without its free pages.

The new database is written beside the old one and replaces it when it is complete and durable. A
member of either kind removes the leftovers of a killed attempt.
"""

import os
import sys
from pathlib import Path

from kvorum.network.edge import native_rows
from kvorum.storage.backend import BackendError, Environments, open_backend, rewrite
from kvorum.storage.backend.bbolt import ImageError, open_image, write_image
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Files, Opening
from kvorum.storage.files.real import RealFiles
from kvorum.tools.cli.errors import CommandError
from kvorum.tools.cli.invocation import Invocation
from kvorum.tools.offline.directories import DataDirectory, require_free
from kvorum.tools.offline.locks import IN_USE
from kvorum.tools.offline.members import backend_of, database_of, is_ours, require_stopped
from kvorum.tools.offline.progress import ByteProgress

TEMPORARY_NAME = "tmp.defrag"


def run(invocation: Invocation) -> None:
    """Defragment the database of a stopped member."""
    invocation.require_flags("data-dir")
    data = invocation.text("data-dir")
    directory = DataDirectory(Path(data))
    try:
        defragment(
            RealFiles(), LmdbEnvironments(native_rows()), directory, invocation.seconds("timeout")
        )
    except (CommandError, BackendError, ImageError) as error:
        code, hint = 1, ""
        if isinstance(error, CommandError):
            code, hint = error.code, error.hint
        if code == IN_USE:
            raise
        text = f"Failed to defragment etcd data[{data}] ({error})"
        raise CommandError(text, code, hint) from error
    sys.stderr.write(f"finished defragmenting directory {data}\n")


def defragment(
    files: Files, environments: Environments, directory: DataDirectory, seconds: float
) -> None:
    """Replace the database by one without free pages; wait this long for a running member."""
    with require_stopped(files, directory, seconds):
        if not is_ours(directory):
            rewrite_image(files, database_of(directory))
            return
        # Without a quota, because the existing data must fit, whatever was configured.
        path = str(backend_of(directory))
        backend = open_backend(files, environments, path, quota_bytes=-1)
        try:
            require_free(Path(path), backend.size_in_use_bytes)
            rewrite(backend, files, environments)
        finally:
            backend.close()


def rewrite_image(files: Files, database: Path) -> None:
    """Replace a file of etcd's by one with the same buckets; keep owner and mode."""
    temporary = database.with_name(TEMPORARY_NAME)
    temporary.unlink(missing_ok=True)
    image = open_image(files, str(database))
    try:
        descriptor = files.open(str(temporary), Opening.CREATE)
        try:
            with ByteProgress("defragmenting", image.size) as progress:
                content = ((bucket, image.items(bucket)) for bucket in image.buckets())
                write_image(files, descriptor, progress.count_content(content))
            files.fdatasync(descriptor)
        finally:
            files.close(descriptor)
        before = database.stat()
        temporary.chmod(before.st_mode & 0o7777)
        if os.geteuid() == 0:
            # Otherwise etcd's user could not open the file any more.
            os.chown(temporary, before.st_uid, before.st_gid)
        files.rename(str(temporary), str(database))
        files.sync_directory(str(database.parent))
    finally:
        image.close()
        temporary.unlink(missing_ok=True)
