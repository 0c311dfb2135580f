"""A client whose server is behind a network that stalls, loses everything, or breaks off."""

from collections.abc import Callable

import pytest

from kvorum.client import AsyncClient, DeadlineError, OutcomeUnknownError, UnavailableError
from kvorum.client.threads import KEEPALIVE
from tests.client.both import put_surely
from tests.client.proxy import Mode, proxied

Run = Callable[..., None]
FAULTS = [Mode.STALL, Mode.DISCARD, Mode.REFUSE]


@pytest.fixture
def lose_patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the client notice sooner from now on that a server is silent.

    Before the fault, a server may stand still for a while without being one.
    """

    def lose_patience() -> None:
        monkeypatch.setattr(KEEPALIVE, "ping_seconds", 0.2)
        monkeypatch.setattr(KEEPALIVE, "pong_seconds_max", 0.5)

    return lose_patience


@pytest.mark.parametrize("fault", FAULTS)
def test_another_way_to_the_server_is_taken(
    server: str, run: Run, fault: Mode, lose_patience: Callable[[], None]
) -> None:
    with proxied(server) as proxy:

        async def main(client: AsyncClient) -> None:
            async with await client.lease(600) as lease:
                first = (await client.put("way", "1", lease=lease.id)).revision
                watch = client.watch("way", revision=first)
                assert (await anext(watch)).value == b"1"
                client.set_endpoints([proxy.address, server])
                proxy.set_mode(fault)
                lose_patience()
                for number in range(2, 5):
                    await put_surely(client, "way", str(number))
                seen: list[bytes] = []
                while not seen or seen[-1] != b"4":
                    seen.append((await anext(watch)).value)
                # One of unknown outcome may have been made twice; nothing is missing, or late.
                assert sorted(set(seen)) == [b"2", b"3", b"4"]
                assert seen == sorted(seen)
                assert lease.lost is None
                await watch.close()

        run(main, proxy.address)


@pytest.mark.parametrize("fault", FAULTS)
def test_the_only_way_is_waited_for(
    server: str, run: Run, fault: Mode, lose_patience: Callable[[], None]
) -> None:
    with proxied(server) as proxy:

        async def main(client: AsyncClient) -> None:
            first = (await client.put("only", "1")).revision
            watch = client.watch("only", revision=first)
            assert (await anext(watch)).value == b"1"
            proxy.set_mode(fault)
            lose_patience()
            with pytest.raises((DeadlineError, UnavailableError)):
                await client.get("only", timeout=0.3)
            with pytest.raises((OutcomeUnknownError, DeadlineError, UnavailableError)):
                await client.put("other", "", timeout=0.3)
            proxy.set_mode(Mode.PASS)
            await put_surely(client, "only", "2")
            assert (await anext(watch)).value == b"2"
            await watch.close()

        run(main, proxy.address)
