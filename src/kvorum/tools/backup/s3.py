"""Archives in S3 or a compatible store: `s3://bucket/prefix?endpoint=https://…&region=…`.

An object appears whole when its upload is completed. botocore finds credentials, and settings that
the URL leaves out: in the environment, in its files, from the machine's role.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kvorum.storage.files import Files, Opening
from kvorum.storage.files.real import RealFiles
from kvorum.tools.backup.errors import ArchiveError, StoreError
from kvorum.tools.backup.stores import PIECE_BYTES, Spool

PART_BYTES = 64 << 20
"""The size of one part. S3 takes 10,000 parts, and so 625 GiB."""
_PARAMETERS = {"endpoint", "region"}


class S3Store:
    """The objects of a bucket whose names begin with a prefix."""

    def __init__(self, client: Any, bucket: str, prefix: str) -> None:
        """Use this botocore client."""
        self._client = client
        self._bucket = bucket
        self._prefix = prefix

    def __str__(self) -> str:
        return f"s3://{self._bucket}/{self._prefix}"

    @classmethod
    def of_url(cls, url: str) -> "S3Store":
        """Return the store of a URL; raise ArchiveError if the URL is invalid."""
        parts = urlsplit(url)
        given = parse_qs(parts.query)
        if not parts.netloc or set(given) - _PARAMETERS:
            raise ArchiveError(
                f"{url!r} is no location for backups: expected "
                "s3://bucket/prefix, with ?endpoint=URL and &region=NAME if they are needed"
            )
        from botocore.exceptions import BotoCoreError
        from botocore.session import Session

        try:
            client = Session().create_client(
                "s3",
                region_name=given.get("region", [None])[0],
                endpoint_url=given.get("endpoint", [None])[0],
            )
        except (BotoCoreError, ValueError) as error:
            raise ArchiveError(f"{url}: {error}") from error
        prefix = parts.path.strip("/")
        return cls(client, parts.netloc, f"{prefix}/" if prefix else "")

    @contextmanager
    def _translate_errors(self, name: str) -> Iterator[dict[str, str]]:
        """Return an object's bucket and key for requests; turn failures into StoreErrors."""
        from botocore.exceptions import BotoCoreError, ClientError, HTTPClientError

        try:
            yield {"Bucket": self._bucket, "Key": self._prefix + name}
        except (BotoCoreError, ClientError, HTTPClientError, OSError) as error:
            raise StoreError(f"{self}{name}: {error}") from error

    def sizes(self) -> dict[str, int]:
        """Return the names of all objects, with their sizes."""
        found: dict[str, int] = {}
        with self._translate_errors(""):
            pages = self._client.get_paginator("list_objects_v2").paginate(
                Bucket=self._bucket, Prefix=self._prefix
            )
            for page in pages:
                for each in page.get("Contents", ()):
                    found[each["Key"].removeprefix(self._prefix)] = each["Size"]
        return dict(sorted(found.items()))

    def read(self, name: str, take: Callable[[bytes], object]) -> None:
        """Pass the content of an object to `take`, piece by piece."""
        with self._translate_errors(name) as called:
            body = self._client.get_object(**called)["Body"]
            try:
                while piece := body.read(PIECE_BYTES):
                    take(piece)
            finally:
                body.close()

    def write(self, name: str, data: bytes) -> None:
        """Create an object with this content."""
        with self._translate_errors(name) as called:
            self._client.put_object(**called, Body=data)

    def delete(self, name: str) -> None:
        """Delete an object, if it exists."""
        with self._translate_errors(name) as called:
            self._client.delete_object(**called)

    @contextmanager
    def spool(self) -> Iterator[Spool]:
        """Create a file where this machine keeps temporary files (TMPDIR)."""
        files = RealFiles()
        with TemporaryDirectory(prefix="kvorum-backup-") as directory:
            path = f"{directory}/spool"
            descriptor = files.open(path, Opening.CREATE)
            try:
                yield Spool(files, path, descriptor)
            finally:
                files.close(descriptor)

    def keep(self, spool: Spool, name: str) -> None:
        """Upload a file as an object, in parts if it is large."""
        files = spool.files
        descriptor = files.open(spool.path, Opening.READ)
        try:
            if spool.size <= PART_BYTES:
                self.write(name, files.pread(descriptor, 0, spool.size))
                return
            with self._translate_errors(name) as called:
                upload = self._client.create_multipart_upload(**called)["UploadId"]
                try:
                    parts = []
                    for number, offset in enumerate(range(0, spool.size, PART_BYTES), 1):
                        answer = self._client.upload_part(
                            **called,
                            UploadId=upload,
                            PartNumber=number,
                            Body=files.pread(descriptor, offset, PART_BYTES),
                        )
                        parts.append({"PartNumber": number, "ETag": answer["ETag"]})
                    self._client.complete_multipart_upload(
                        **called, UploadId=upload, MultipartUpload={"Parts": parts}
                    )
                except BaseException:
                    self._client.abort_multipart_upload(**called, UploadId=upload)
                    raise
        finally:
            files.close(descriptor)

    @contextmanager
    def local(self, name: str) -> Iterator[tuple[Files, str]]:
        """Download an object to a file that exists during the block."""
        with self.spool() as spool:
            self.read(name, spool.add)
            yield spool.files, spool.path

    def clean(self) -> None:
        """Do nothing: bucket rules remove uncompleted uploads, which others may be using."""
