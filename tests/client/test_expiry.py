"""Tokens that expire while a client calls, watches and keeps a lease: it logs in again, unseen."""

from collections.abc import Callable
from pathlib import Path

import pytest

from kvorum.client import AsyncClient, Client, InvalidTokenError
from tests.client.both import run_asyncio, run_threads
from tests.servers import RUNNING, running_server

Run = Callable[..., None]
TIMEOUT_SECONDS = 60.0
TOKEN_SECONDS = 1
RENEWAL_SECONDS = 3
LEASE_SECONDS = 4
"""So long nothing is asked; that it is over is told by a key that ends with its lease."""


def token_flags(kind: str, directory: Path) -> list[str]:
    if kind == "simple":
        return [f"--auth-token-ttl={TOKEN_SECONDS}"]
    secret = directory / "secret"
    secret.write_bytes(b"s" * 32)
    return [f"--auth-token=jwt,sign-method=HS256,priv-key={secret},ttl={TOKEN_SECONDS}s"]


def enable_users(address: str) -> None:
    with Client(address, timeout=TIMEOUT_SECONDS) as client:
        client.auth.add_user("root", "secret")
        client.auth.add_role("root")
        client.auth.grant_role("root", "root")
        client.auth.enable()


@pytest.mark.long
@pytest.mark.parametrize("make", RUNNING)
@pytest.mark.parametrize(("kind", "run"), [("simple", run_threads), ("jwt", run_asyncio)])
def test_a_token_that_expires_is_not_noticed(
    make: str, kind: str, run: Run, tmp_path: Path
) -> None:
    options = {"user": "root", "password": "secret", "timeout": TIMEOUT_SECONDS}

    async def main(client: AsyncClient) -> None:
        # This lease is renewed so rarely that the token of its stream has expired by then.
        async with await client.lease(3 * RENEWAL_SECONDS) as kept:
            watch = client.watch("watched")
            await watch.wait_started()
            await client.put("watched", "before", lease=kept.id)
            assert (await anext(watch)).value == b"before"
            expired = client.shell.core._token
            assert expired
            await time_passes(client)
            with (
                Client(address, token=expired, timeout=TIMEOUT_SECONDS) as other,
                pytest.raises(InvalidTokenError),
            ):
                other.get("watched")
            await client.put("watched", "after", keep_lease=True)
            assert (await anext(watch)).value == b"after"
            assert client.shell.core._token != expired
            assert kept.lost is None
            found = await client.get("watched")
            assert found is not None and found.lease == kept.id
            await watch.close()

    async def time_passes(client: AsyncClient) -> None:
        ends = await client.lease(LEASE_SECONDS)
        put = await client.put("ends", "", lease=ends.id)
        async with client.watch("ends", revision=put.revision + 1) as watch:
            await anext(watch)

    with running_server(make, tmp_path / "data", *token_flags(kind, tmp_path)) as address:
        enable_users(address)
        run(main, address, **options)
