"""Databases of stopped members whose content is changed, and which are whole afterwards."""

from collections.abc import Callable
from pathlib import Path

from kvorum.storage.backend import dump, install, open_view
from kvorum.storage.backend.bbolt import open_image, write_image
from kvorum.storage.backend.images import checked_content
from kvorum.storage.backend.real import LmdbEnvironments
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles

Content = dict[bytes, list[tuple[bytes, bytes]]]


def is_ours(data: Path) -> bool:
    return (data / "member" / "backend").exists()


def rewrite_database(data: Path, change: Callable[[Content], None]) -> None:
    """Change the content of a database, in which everything is whole afterwards."""
    files, environments = RealFiles(), LmdbEnvironments()
    if is_ours(data):
        directory = str(data / "member" / "backend")
        with open_view(files, environments, directory) as view:
            content = {bucket: list(entries) for bucket, entries in dump(view)}
        change(content)
        install(files, environments, directory, content.items())
        return
    path = data / "member" / "snap" / "db"
    image = open_image(files, str(path))
    content = {bucket: list(entries) for bucket, entries in checked_content(image)}
    image.close()
    change(content)
    path.unlink()
    descriptor = files.open(str(path), Opening.CREATE)
    write_image(files, descriptor, sorted(content.items()))
    files.close(descriptor)
