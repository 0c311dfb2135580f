"""Fixtures with a store, as users' tests have them: real runs of pytest."""

import pytest

from tests.testing.conftest import COROUTINES, Run


@pytest.mark.long
def test_each_test_has_a_store_of_its_own(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import threading

        import pytest

        from kvorum.testing import Store

        LEFT = []  # what tests before have left open
        URLS = set()

        @pytest.mark.parametrize("number", range(8))
        def test_fresh(kvorum, kvorum_client, number):
            assert isinstance(kvorum, Store)
            assert kvorum.url == f"http://{kvorum.address}" and kvorum.url not in URLS
            URLS.add(kvorum.url)
            assert kvorum_client.read("key").revision == 1
            assert kvorum_client.count(prefix="") == 0
            assert kvorum_client.leases() == []
            assert kvorum_client.auth.users() == kvorum_client.auth.roles() == []
            assert not kvorum_client.auth.status().is_enabled

            watch = kvorum_client.watch("key").__enter__()
            lease = kvorum_client.lease(60)
            kvorum_client.put("key", str(number), lease=lease.id)
            kvorum_client.auth.add_user("somebody", None)
            LEFT.append((watch, lease))

        def test_clients_of_earlier_tests_are_closed():
            assert len(LEFT) == 8
            assert [each.name for each in threading.enumerate() if "kvorum" in each.name] == [
                "kvorum.testing.store_pool answers"
            ]
        """
    )
    run_pytest().assert_outcomes(passed=9)


def test_a_client_that_a_test_left_behind_never_reaches_the_next_store(
    pytester: pytest.Pytester, run_pytest: Run
) -> None:
    pytester.makepyfile(
        """
        from contextlib import suppress

        import pytest

        from kvorum import Client
        from kvorum.client import KvorumError

        LEFT = []

        @pytest.mark.parametrize("number", range(10))
        def test_left_behind(kvorum, kvorum_client, number):
            for old in LEFT:
                with suppress(KvorumError):
                    old.put("key", "of another test", timeout=0.1)
            assert kvorum_client.read("key").revision == 1
            LEFT.append(Client(kvorum.url))
            LEFT[-1].put("key", str(number))
            assert kvorum_client.read("key").revision == 2
            for old in LEFT[:-2]:
                old.close()
            del LEFT[:-2]

        def test_end():
            for old in LEFT:
                old.close()
        """
    )
    run_pytest().assert_outcomes(passed=11)


def test_asyncio_clients_in_any_loop(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makeconftest(COROUTINES)
    pytester.makepyfile(
        """
        import asyncio

        import pytest

        from kvorum import AsyncClient
        from kvorum.client import ClosedError

        async def use(client):
            assert isinstance(client, AsyncClient)
            assert (await client.put("key", "value")).revision == 2
            async with client.watch("key", revision=2) as watch:
                assert (await anext(watch)).value == b"value"
            space = client.namespace("a/")
            await space.put("b", "c")
            assert (await client.get("a/b")).value == b"c"

        def test_own_loop(kvorum_async_client):
            asyncio.run(use(kvorum_async_client))
            assert isinstance(kvorum_async_client.shell.core.closed, ClosedError)

        def test_own_loop_and_block(kvorum_async_client):
            async def main():
                async with kvorum_async_client as client:
                    await use(client)
            asyncio.run(main())

        async def test_loop_of_a_plugin(kvorum_async_client):
            await use(kvorum_async_client)

        async def test_a_namespace_first(kvorum_async_client, kvorum):
            await kvorum_async_client.namespace("a/").put("b", "c")
            assert (await kvorum_async_client.get("a/b")).value == b"c"
            other = kvorum.async_client()
            assert (await other.get("a/b")).value == b"c"

        def test_not_used(kvorum_async_client):
            with pytest.raises(RuntimeError, match="no running event loop"):
                kvorum_async_client.endpoints
        """
    )
    run_pytest().assert_outcomes(passed=5)


@pytest.mark.long
def test_marks(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        import ssl
        import urllib.request

        import pytest

        from kvorum import Client
        from kvorum.client import KvorumError, TooManyOperationsError, UserEmptyError, put

        pytestmark = pytest.mark.kvorum(flags={"max-txn-ops": 1})

        def two_puts(client):
            return client.txn().then(put("a", ""), put("b", "")).commit()

        def test_flags(kvorum_client):
            with pytest.raises(TooManyOperationsError):
                two_puts(kvorum_client)

        @pytest.mark.kvorum(flags={"max_txn_ops": 2})
        def test_the_nearest_mark_counts(kvorum_client):
            assert two_puts(kvorum_client).succeeded

        @pytest.mark.kvorum(tls=True, auth=True)
        def test_both(kvorum, kvorum_client):
            assert kvorum.url.startswith("https://")
            assert kvorum_client.read("key").revision == 1
            kvorum_client.put("key", "value")
            assert kvorum_client.auth.users() == [kvorum.user] == ["root"]
            with pytest.raises(UserEmptyError):
                kvorum.client(user="").put("key", "value")
            with Client(kvorum.url, timeout=2) as stranger, pytest.raises(KvorumError):
                stranger.get("key")
            files = kvorum.certificates
            context = ssl.create_default_context(cafile=files.ca)
            with urllib.request.urlopen(f"{kvorum.url}/version", context=context) as answer:
                assert answer.status == 200

        @pytest.mark.kvorum(tls=True, flags={"client-cert-auth": True})
        def test_certificates_of_clients(kvorum, kvorum_client):
            kvorum_client.put("key", "value")
            with Client(kvorum.url, ca=kvorum.certificates.ca, timeout=2) as stranger:
                with pytest.raises(KvorumError):
                    stranger.get("key")
        """
    )
    run_pytest().assert_outcomes(passed=4)


REFUSED = [
    ("flags={'max-txn-ops': 'many'}", 'invalid value "many" for flag -max-txn-ops'),
    ("flags={'no-such-flag': 1}", "no-such-flag"),
    ("flags={'--data-dir': '/'}", "data-dir cannot be set by the mark kvorum"),
    ("flags={'listen_peer_urls': ''}", "listen_peer_urls cannot be set by the mark kvorum"),
    ("tls=True, flags={'cipher-suites': 'x'}", "cipher"),
    ("tls='yes'", "tls='yes'; it takes tls=True, auth=True and flags"),
    ("tsl=True", "tsl=True; it takes tls=True, auth=True and flags"),
    ("True", "takes names only"),
]


def test_a_store_that_cannot_start_says_why(pytester: pytest.Pytester, run_pytest: Run) -> None:
    tests = [
        f"@pytest.mark.kvorum({mark})\ndef test_{number}(kvorum):\n    pass\n"
        for number, (mark, _) in enumerate(REFUSED)
    ]
    tests.append("def test_next(kvorum_client):\n    kvorum_client.put('key', 'value')\n")
    pytester.makepyfile("import pytest\n" + "\n".join(tests))
    result = run_pytest()
    result.assert_outcomes(errors=len(REFUSED), passed=1)
    result.stdout.fnmatch_lines(["no kvorum for this test: *"])
    told = [line for line in result.outlines if line.startswith("no kvorum for this test: ")]
    assert len(told) == len(REFUSED)
    for (_, text), line in zip(REFUSED, told, strict=True):
        assert text in line


def test_a_report_shows_the_log(pytester: pytest.Pytester, run_pytest: Run) -> None:
    pytester.makepyfile(
        """
        def test_fails(kvorum_client):
            kvorum_client.put("key", "value")
            assert False

        LEFT = []

        def test_passes(kvorum):
            assert "ready to serve client requests" in kvorum.log
            LEFT.append(kvorum)

        def test_of_a_store_that_was_given_up(kvorum_client):
            assert LEFT[0].log == ""
            kvorum_client.put("key", "value")
        """
    )
    result = run_pytest()
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(["*- kvorum log -*", "*ready to serve client requests*"])


def test_a_run_without_the_fixtures_loads_nothing(
    pytester: pytest.Pytester, run_pytest: Run
) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert sorted(name for name in sys.modules if name.startswith("kvorum.")) == [
                "kvorum.compiled", "kvorum.testing", "kvorum.testing.plugin"
            ]
        """
    )
    run_pytest().assert_outcomes(passed=1)
