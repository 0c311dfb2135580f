"""A store that is restored from a backup: whoever followed it is told, or reads all of it anew."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any

import pytest

from kvorum.client import AsyncClient, Client, RevisionWentBackError
from tests.client.both import ask_until, run_asyncio, run_threads
from tests.etcd import _running as etcd_at
from tests.etcd import binary
from tests.kvorum import _running as kvorum_at
from tests.ports import held_port

Run = Callable[..., None]
Server = Callable[..., AbstractContextManager[Any]]
TIMEOUT_SECONDS = 60.0


def restore(make: str, backup: Path, data: Path) -> None:
    program = Path(sys.executable).parent / "kvorumutl" if make == "kvorum" else binary("etcdutl")
    subprocess.run(
        [
            program,
            "snapshot",
            "restore",
            backup,
            f"--data-dir={data}",
            "--initial-advertise-peer-urls=http://127.0.0.1:2",
            "--initial-cluster=default=http://127.0.0.1:2",
        ],
        check=True,
        capture_output=True,
    )


@pytest.mark.long
@pytest.mark.parametrize(("make", "run"), [("kvorum", run_threads), ("etcd", run_asyncio)])
def test_a_restored_store_is_told_by_name(make: str, tmp_path: Path, run: Run) -> None:
    running: Server = kvorum_at if make == "kvorum" else etcd_at
    backup, old, new = tmp_path / "backup", tmp_path / "old", tmp_path / "new"
    with held_port() as port, ExitStack() as first:
        address = f"127.0.0.1:{port}"
        process = first.enter_context(running(old, port, scheme="http")).process
        with Client(address, timeout=TIMEOUT_SECONDS) as admin:
            saved = admin.put("jobs/saved", "1").revision
            admin.maintenance.snapshot(backup)
            for number in range(10):
                seen = admin.put("jobs/lost", str(number)).revision
        restore(make, backup, new)

        async def main(client: AsyncClient) -> None:
            watch = client.watch(prefix="jobs/", revision=seen)
            assert (await anext(watch)).value == b"9"
            async with client.cache("jobs/", timeout=TIMEOUT_SECONDS) as cache:
                assert (len(cache), cache.readings) == (2, 1)
                process.kill()
                first.close()
                with running(new, port, scheme="http") as restored:
                    with pytest.raises(
                        RevisionWentBackError, match="restored from a backup"
                    ) as told:
                        await anext(watch)
                    assert told.value.seen == seen
                    assert told.value.found < seen

                    # The cache has read everything anew, and follows that.
                    async def is_read() -> bool:
                        await client.count("jobs/saved")
                        return cache.readings == 2

                    await ask_until("the cache has read everything again", is_read)
                    await client.put("jobs/saved", "2")
                    revision = (await client.put("jobs/saved", "3")).revision
                    await cache.wait_revision(revision, TIMEOUT_SECONDS)
                    assert [each.value for each in cache] == [b"3"]
                    assert saved < cache.revision < seen
                    restored.process.kill()

        run(main, address, timeout=TIMEOUT_SECONDS)
