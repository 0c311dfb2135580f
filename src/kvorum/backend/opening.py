"""Opening the database of a member."""

from kvorum.backend.backend import Backend, Limits
from kvorum.backend.directory import (
    Current,
    database_path,
    read_current,
    remove_leftovers,
    take_lock,
    write_current,
)
from kvorum.backend.environment import Environments
from kvorum.backend.errors import BackendError
from kvorum.backend.quota import reserved_bytes
from kvorum.files import Files


def open_backend(
    files: Files,
    environments: Environments,
    directory: str,
    *,
    quota_bytes: int = 0,
    limits: Limits | None = None,
) -> Backend:
    """Open the database in a directory, which exists; make it if there is none."""
    lock = take_lock(files, directory)
    try:
        current = read_current(files, directory)
        remove_leftovers(files, directory, current)
        map_bytes = reserved_bytes(quota_bytes)
        if current is None:
            current = Current(number=1)
            environment = environments.open(database_path(directory, 1), map_bytes)
            write_current(files, directory, current)
        else:
            path = database_path(directory, current.number)
            if not files.exists(path):
                raise BackendError(
                    f"{path} is missing, but CURRENT names it. What to do: put the file back, or "
                    f"remove the member from the cluster and add it anew with an empty directory"
                )
            environment = environments.open(path, map_bytes)
        return Backend(
            files, environments, environment, directory, current.number, lock, limits or Limits()
        )
    except BaseException:
        files.close(lock)
        raise
