"""Jobs around the image of a backend, which a follower gets when the log cannot catch it up.

An image is a bbolt file, as etcd's members exchange it. The sender writes it from the newest commit
while the member continues, and the follower loads it into a database that replaces its own. Members
with the same database format exchange a copy of the file, which replaces the follower's directly.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, Self

from kvorum.api.limits import WorkLimits
from kvorum.state.membership.v2_store import MEMBERSHIP_BUCKETS
from kvorum.state.mvcc.restore import RowIndex, note_slices
from kvorum.state.mvcc.slices import Slices
from kvorum.storage.backend import open_view
from kvorum.storage.backend.bbolt import ImageError, open_image, write_image
from kvorum.storage.backend.buckets import CONF_STATE, META
from kvorum.storage.backend.copies import Copying, check_received, is_copy
from kvorum.storage.backend.environment import Environments
from kvorum.storage.backend.images import image_rows, sealed_content
from kvorum.storage.backend.transfer import adopt, dump_image, install_sealed
from kvorum.storage.backend.view import View
from kvorum.storage.files import Files, Opening


class Digest(Protocol):
    """A hash that grows piece by piece."""

    def update(self, data: bytes, /) -> None:
        """Add the next piece."""


@dataclass(slots=True, frozen=True)
class ImageFacts:
    """The last entry whose effects an image holds, and the membership at that index."""

    index: int
    term: int
    conf_state: bytes
    membership: dict[bytes, dict[bytes, bytes]]
    """The stored rows by bucket."""
    length: int


def read_image_facts(view: View, length: int) -> ImageFacts:
    """Return the facts about an image of this view with this length."""
    index, term = view.applied()
    conf_state = view.get(META, CONF_STATE) or b""
    membership = {bucket: dict(view.items(bucket)) for bucket in MEMBERSHIP_BUCKETS}
    return ImageFacts(index, term, conf_state, membership, length)


@dataclass(slots=True, frozen=True)
class CopyImage:
    """A job of the pool: copy a commit's database to a new file, with LMDB's own copy function."""

    copying: Copying
    path: str

    def run(self, files: Files) -> ImageFacts:
        """Return the copy's facts. The copy need not be durable here."""
        length = self.copying.write(files, self.path)
        return read_image_facts(self.copying.view, length)


@dataclass(slots=True, frozen=True)
class BuildImage:
    """A job of the helper: write the backend's newest commit to a new file."""

    directory: str
    path: str
    piece_entries: int
    scan_entries: int

    @classmethod
    def of(cls, directory: str, path: str, limits: WorkLimits) -> Self:
        """Make the job for a backend's directory and a new file."""
        return cls(directory, path, limits.image_piece_entries, limits.view_scan_entries)

    def run(self, files: Files, environments: Environments) -> ImageFacts:
        """Return the image's facts. The image need not be durable here."""
        if files.exists(self.path):
            files.unlink(self.path)
        descriptor = files.open(self.path, Opening.CREATE)
        try:
            with open_view(
                files, environments, self.directory, scan_entries=self.scan_entries, checks=False
            ) as view:
                length = write_image(files, descriptor, dump_image(view, self.piece_entries))
                return read_image_facts(view, length)
        finally:
            files.close(descriptor)


@dataclass(slots=True, frozen=True)
class InstallImage:
    """A job: make a received image the member's database; the helper runs it, unless for a copy.

    No process has the database open meanwhile. A crash leaves either the old one or the new one.
    """

    path: str
    directory: str
    quota_bytes: int
    commit_entries: int
    is_checked: bool = False
    """Whether this process already checked a copy on its arrival."""

    def run(self, files: Files, environments: Environments) -> None:
        """Load the image; raises ImageError or CopyError if it is damaged."""
        if is_copy(files, self.path):
            if not self.is_checked:
                check_received(files, self.path, environments.native)
            adopt(files, environments, self.directory, self.path)
            return
        image = open_image(files, self.path)
        try:
            content = sealed_content(image, environments.native)
            install_sealed(
                files,
                environments,
                self.directory,
                content,
                quota_bytes=self.quota_bytes,
                commit_entries=self.commit_entries,
            )
        finally:
            image.close()


def note_image(
    files: Files, environments: Environments, path: str, limits: WorkLimits
) -> Slices[RowIndex | None]:
    """Index the rows of a received image, in slices of the loop while the helper loads it.

    Returns None for an unreadable image: the helper reports the problem.
    """
    native = environments.native
    try:
        image = open_image(files, path)
    except (ImageError, OSError):
        return None
    noted: RowIndex | None = None
    with suppress(ImageError, OSError):
        noted = yield from note_slices(image_rows(image, native), native, limits)
    # An abandoned generator skips this: that happens only at the process's end, which closes it.
    image.close()
    return noted


@dataclass(slots=True, frozen=True)
class ReadImage:
    """A job of the pool: read and hash the next piece of an image."""

    path: str
    offset: int
    length: int
    digest: Digest

    def run(self, files: Files) -> bytes:
        """Return the piece; shorter only where the file ends."""
        descriptor = files.open(self.path, Opening.READ)
        try:
            piece = files.pread(descriptor, self.offset, self.length)
        finally:
            files.close(descriptor)
        self.digest.update(piece)
        return piece


@dataclass(slots=True, frozen=True)
class RemoveImage:
    """A job of the pool, or of the helper after its BuildImage: remove an image."""

    path: str

    def run(self, files: Files, environments: Environments | None = None) -> None:  # noqa: ARG002
        """Remove the file, if there is one."""
        if files.exists(self.path):
            files.unlink(self.path)
