"""Which endpoints a client uses: set, asked for by name, told by the members, found by SRV."""

from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.client import AsyncClient, UnavailableError
from kvorum.client.endpoints import Endpoints, parse_endpoint
from tests.client.both import ask_until
from tests.servers import member_behind

Run = Callable[..., None]
UNSERVED = "127.0.0.1:1"


def expected_endpoints(server: str) -> list[str]:
    """Return the endpoints that a server reports; for a proxy, those of the cluster behind it."""
    member = member_behind(server)
    return [server if member == server else f"http://{member}"]


def test_members_report_the_endpoints(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        assert sorted(client.endpoints) == sorted([UNSERVED, server])
        assert await client.sync_endpoints() == expected_endpoints(server)
        assert client.endpoints == expected_endpoints(server)
        await client.put("a", "b")

    run(main, [UNSERVED, server])


def test_the_client_synchronizes_endpoints_by_itself(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        async def is_told() -> bool:
            await client.get("a")
            return client.endpoints == expected_endpoints(server)

        await ask_until("the endpoints are told", is_told)

    run(main, [UNSERVED, server], sync_seconds=3600)


def test_the_endpoint_that_tells_may_be_given_up(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        async def is_told() -> bool:
            await client.put("a", "b")
            return client.endpoints == [f"http://{member_behind(server)}"]

        await ask_until("the endpoint is told", is_told)
        await client.put("a", "b")

    run(main, server.replace("127.0.0.1", "localhost"), sync_seconds=3600)


def test_calls_in_flight_are_finished_where_they_are(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        async with client.watch("flight") as watch:
            client.set_endpoints([f"http://{server}", UNSERVED])
            await client.put("flight", "1")
            assert (await anext(watch)).value == b"1"
            # What is watched there goes on there, and new calls do not go there any more.
            client.set_endpoints(UNSERVED)
            with pytest.raises(UnavailableError, match=UNSERVED):
                await client.put("flight", "2", timeout=0.5)
            client.set_endpoints(server)
            await client.put("flight", "3")
            assert (await anext(watch)).value == b"3"

    run(main, server)


def test_a_call_goes_to_the_endpoint_that_it_names(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        with pytest.raises(UnavailableError, match=UNSERVED):
            await client.maintenance.status(timeout=0.5)
        assert (await client.maintenance.status(server)).is_leader
        assert client.endpoints == [UNSERVED]
        with pytest.raises(UnavailableError) as caught:
            await client.maintenance.status("127.0.0.1:2", timeout=0.5)
        assert "127.0.0.1:2" in str(caught.value) and UNSERVED not in str(caught.value)

    run(main, UNSERVED)


def test_an_address_is_one_endpoint_however_it_is_written() -> None:
    endpoints = Endpoints([parse_endpoint("host:1"), parse_endpoint("https://other:1")], 0)
    first, second = endpoints.all.values()
    assert endpoints.replace([parse_endpoint("http://host:1")]) == [second]
    assert list(endpoints.all.values()) == [first]
    assert endpoints.pin_endpoint(parse_endpoint("other:1")) is second
    assert endpoints.pin_endpoint(parse_endpoint("http://other:1")) is not second


@given(
    st.sampled_from(["", "http://", "https://"]),
    # What begins with unix: is the path of a socket.
    st.from_regex(r"[A-Za-tv-z0-9._-]{1,9}|\[::1\]", fullmatch=True),
    st.integers(0, 70_000).map("{:03}".format) | st.sampled_from(["", "x", "-1", "٣"]),
    st.sampled_from(["", "/", "/path"]),
)
def test_an_endpoint_is_read_as_a_url_is(scheme: str, host: str, port: str, path: str) -> None:
    text = f"{scheme}{host}:{port}{path}"
    parts = urlsplit(text if scheme else f"//{text}")
    try:
        expected = (parts.hostname, 2379 if parts.port is None else parts.port)
    except ValueError:
        with pytest.raises(ValueError, match="cannot be read"):
            parse_endpoint(text)
        return
    found = parse_endpoint(text)
    assert (found.host, found.port) == expected
    assert found.is_secure is {"": None, "http://": False, "https://": True}[scheme]


def test_no_endpoint_is_a_mistake(server: str, run: Run) -> None:
    async def main(client: AsyncClient) -> None:
        with pytest.raises(ValueError, match="a client needs an endpoint"):
            client.set_endpoints([])
        await client.put("a", "b")

    run(main, server)
