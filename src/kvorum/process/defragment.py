"""Defragment the database before the member starts, if that frees enough disk space.

LMDB reuses free pages, but its file never shrinks; only a rewrite removes the free pages.
"""

from kvorum.member.config import MemberConfig
from kvorum.server.telemetry.logs import Logger
from kvorum.storage.backend import Environments, open_backend, rewrite
from kvorum.storage.files import Files


def defragment(
    settings: MemberConfig,
    threshold_bytes: int,
    files: Files,
    environments: Environments,
    logger: Logger,
) -> None:
    """Rewrite a member's database if at least `threshold_bytes` of its file are free pages.

    Raises BackendError, and then leaves the old file in place.
    """
    directory = f"{settings.directory}/backend"
    threshold = {"bootstrap_defrag_threshold_bytes": threshold_bytes}
    if not files.exists(f"{directory}/CURRENT"):
        logger.info("Skipping defragmentation", current_db_size_bytes=0, **threshold)
        return
    backend = open_backend(
        files,
        environments,
        directory,
        quota_bytes=settings.quota_bytes,
        limits=settings.limits,
    )
    try:
        before, in_use = backend.size_bytes, backend.size_in_use_bytes
        sizes = {"current_db_size_bytes": before, "current_db_size_in_use_bytes": in_use}
        if before - in_use < threshold_bytes:
            logger.info("Skipping defragmentation", **sizes, **threshold)
            return
        logger.info("defragmenting", path=backend.path, **sizes)
        rewrite(backend, files, environments)
        logger.info(
            "finished defragmenting directory",
            path=backend.path,
            current_db_size_bytes=backend.size_bytes,
            current_db_size_bytes_diff=backend.size_bytes - before,
        )
    finally:
        backend.close()
