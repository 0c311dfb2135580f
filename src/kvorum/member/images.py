"""Jobs around the image of a backend, which a follower gets when the log no longer helps it.

An image is a bbolt file, as etcd's members send and take it. It is made from the newest commit
while the member goes on, and loaded into a database that replaces the follower's. Between members
that keep their databases alike it is a copy of the file, which replaces the follower's as it is.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from kvorum.backend import open_view
from kvorum.backend.bbolt import ImageError, open_image, write_image
from kvorum.backend.buckets import CONF_STATE, META
from kvorum.backend.copies import Copying, check_received, is_copy
from kvorum.backend.environment import Environments
from kvorum.backend.images import image_rows, sealed_content
from kvorum.backend.transfer import adopt, dump_image, install_sealed
from kvorum.backend.view import View
from kvorum.files import Files, Opening
from kvorum.membership.v2_store import MEMBERSHIP_BUCKETS
from kvorum.mvcc.restore import Noted, note_slices
from kvorum.mvcc.slices import Slices


class Digest(Protocol):
    """A hash that grows piece by piece."""

    def update(self, data: bytes, /) -> None:
        """Add the next piece."""


@dataclass(slots=True, frozen=True)
class ImageFacts:
    """Up to which entry an image holds the effects, and the members as of then."""

    index: int
    term: int
    conf_state: bytes
    membership: dict[bytes, dict[bytes, bytes]]
    """As it is stored, by bucket."""
    length: int


def image_facts(view: View, length: int) -> ImageFacts:
    """Return what an image of a view holds, and its length."""
    index, term = view.applied()
    conf_state = view.get(META, CONF_STATE) or b""
    membership = {bucket: dict(view.items(bucket)) for bucket in MEMBERSHIP_BUCKETS}
    return ImageFacts(index, term, conf_state, membership, length)


@dataclass(slots=True, frozen=True)
class CopyImage:
    """A job of the pool: write what a commit holds to a new file. LMDB does it by itself."""

    copying: Copying
    path: str

    def run(self, files: Files) -> ImageFacts:
        """Return what the copy holds. It need not be durable here."""
        length = self.copying.write(files, self.path)
        return image_facts(self.copying.view, length)


@dataclass(slots=True, frozen=True)
class BuildImage:
    """A job of the helper: write what the backend's newest commit holds to a new file."""

    directory: str
    path: str

    def run(self, files: Files, environments: Environments) -> ImageFacts:
        """Return what the image holds. It need not be durable here."""
        if files.exists(self.path):
            files.unlink(self.path)
        descriptor = files.open(self.path, Opening.CREATE)
        try:
            with open_view(files, environments, self.directory, checks=False) as view:
                length = write_image(files, descriptor, dump_image(view))
                return image_facts(view, length)
        finally:
            files.close(descriptor)


@dataclass(slots=True, frozen=True)
class InstallImage:
    """A job: make a received image the database that counts; the helper's, if it is no copy.

    Nobody has the database open meanwhile. A crash leaves the old one or the new one.
    """

    path: str
    directory: str
    quota_bytes: int
    is_checked: bool = False
    """Whether a copy was checked by this very process, as it arrived."""

    def run(self, files: Files, environments: Environments) -> None:
        """Load it; raises ImageError or CopyError if it is damaged."""
        if is_copy(files, self.path):
            if not self.is_checked:
                check_received(files, self.path, environments.native)
            adopt(files, environments, self.directory, self.path)
            return
        image = open_image(files, self.path)
        try:
            content = sealed_content(image, environments.native)
            install_sealed(
                files, environments, self.directory, content, quota_bytes=self.quota_bytes
            )
        finally:
            image.close()


def note_image(files: Files, environments: Environments, path: str) -> Slices[Noted | None]:
    """Note the rows of a received image, in slices of the loop while the helper loads it.

    Returns None if it cannot be read: the helper reports what is wrong.
    """
    native = environments.native
    try:
        image = open_image(files, path)
    except (ImageError, OSError):
        return None
    noted: Noted | None = None
    with suppress(ImageError, OSError):
        noted = yield from note_slices(image_rows(image, native), native)
    # Not closed if this is given up half-way: then the process has ended, with its descriptors.
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
