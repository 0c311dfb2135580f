"""What a stopped etcd's database says about its cluster, changed by hand."""

from collections.abc import Callable
from pathlib import Path

from kvorum.storage.backend.bbolt import open_image, write_image
from kvorum.storage.backend.images import checked_content
from kvorum.storage.files import Opening
from kvorum.storage.files.real import RealFiles
from kvorum.tools.offline.facts import ClusterBuckets

Change = Callable[[ClusterBuckets], None]


def change_database(data: Path, change: Change) -> None:
    """Write the database of a stopped etcd anew, with other facts."""
    files, database = RealFiles(), data / "member" / "snap" / "db"
    image = open_image(files, str(database))
    facts = ClusterBuckets(image)
    image.close()
    change(facts)
    image = open_image(files, str(database))
    descriptor = files.open(f"{database}.new", Opening.CREATE)
    write_image(files, descriptor, facts.content(checked_content(image)))
    files.close(descriptor)
    image.close()
    Path(f"{database}.new").rename(database)
