"""`snapshot save`: a snapshot of a running member, through the client API.

The file gets its name only when all of it has arrived, its SHA-256 is right, and it is durable.
"""

import os
from hashlib import sha256
from pathlib import Path

from kvorum.api.pb.etcdserverpb import SnapshotRequest, SnapshotResponse
from kvorum.utl.errors import GENERAL, INTERRUPTED, UtlError
from kvorum.utl.progress import Progress
from kvorum.utl.snapshots import DIGEST_BYTES

METHOD = "/etcdserverpb.Maintenance/Snapshot"


def save(endpoint: str, path: Path) -> str:
    """Fetch a snapshot; return the version of its storage."""
    try:
        import grpc
    except ImportError as error:
        raise UtlError(
            "saving a snapshot needs the package grpcio: pip install 'kvorum[client]'", GENERAL
        ) from error
    part = path.with_name(f"{path.name}.part")
    address = endpoint.removeprefix("http://")
    descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with grpc.insecure_channel(address) as channel, os.fdopen(descriptor, "wb") as file:
            call = channel.unary_stream(
                METHOD, SnapshotRequest.SerializeToString, SnapshotResponse.FromString
            )
            digest, last, version = sha256(), b"", ""
            with Progress("saving", 0) as progress:
                for response in call(SnapshotRequest()):
                    # The digest follows everything else, so the last blob is held until another
                    # comes.
                    digest.update(last)
                    last = response.blob
                    version = response.version
                    progress.add(len(last), response.remaining_bytes)
                    file.write(last)
            if len(last) != DIGEST_BYTES or last != digest.digest():
                raise UtlError(
                    f"what came from {endpoint} does not end with its SHA-256; save it again",
                    INTERRUPTED,
                )
            file.flush()
            os.fsync(file.fileno())
        part.rename(path)
    except grpc.RpcError as error:
        raise UtlError(f"{error.details()}", INTERRUPTED) from error
    finally:
        part.unlink(missing_ok=True)
    return version
