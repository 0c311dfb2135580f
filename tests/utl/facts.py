"""What a stopped etcd's database says about its cluster, changed by hand."""

from collections.abc import Callable
from pathlib import Path

from kvorum.backend.bbolt import open_image, write_image
from kvorum.backend.images import checked_content
from kvorum.files import Opening
from kvorum.files.real import RealFiles
from kvorum.offline.facts import Facts

Change = Callable[[Facts], None]


def change_database(data: Path, change: Change) -> None:
    """Write the database of a stopped etcd anew, with other facts."""
    files, database = RealFiles(), data / "member" / "snap" / "db"
    image = open_image(files, str(database))
    facts = Facts(image)
    image.close()
    change(facts)
    image = open_image(files, str(database))
    descriptor = files.open(f"{database}.new", Opening.CREATE)
    write_image(files, descriptor, facts.content(checked_content(image)))
    files.close(descriptor)
    image.close()
    Path(f"{database}.new").rename(database)
