"""`tooz` over `etcd3gw`: groups, heartbeats and locks, and its own tests of all of these.

Its driver does not elect leaders; its tests of that are skipped by themselves.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.consumers import environment

pytestmark = pytest.mark.timeout(600)

Start = Callable[[bytes], Any]


@pytest.fixture(scope="module")
def coordination() -> Any:
    return pytest.importorskip("tooz.coordination")


@pytest.fixture
def coordinator(coordination: Any, server: str) -> Iterator[Start]:
    """Start coordinators by their names; they are stopped after the test."""
    with ExitStack() as started:

        def start(name: bytes) -> Any:
            # The path of etcd 3.3, which the driver is often told to use.
            found = coordination.get_coordinator(
                f"etcd3+http://{server}?api_version=v3beta&timeout=30", name
            )
            started.enter_context(found.client.session)
            found.start(start_heart=False)
            started.callback(found.stop)
            return found

        yield start


def test_groups(coordinator: Start) -> None:
    first, second = coordinator(b"first"), coordinator(b"second")
    group = b"groups"
    first.create_group(group).get()
    joined: list[bytes] = []
    second.watch_join_group(group, lambda event: joined.append(event.member_id))
    first.join_group(group, {"weight": 1}).get()
    second.run_watchers()
    assert joined == [b"first"]
    second.join_group(group).get()
    assert second.get_members(group).get() == {b"first", b"second"}
    first.update_capabilities(group, {"weight": 2}).get()
    assert second.get_member_capabilities(group, b"first").get() == {"weight": 2}
    # A member whose lease is gone has left, and is let in again.
    first._membership_lease.revoke()
    assert second.get_members(group).get() == {b"second"}
    assert first.heartbeat() == 30
    first.join_group(group).get()
    for each in (first, second):
        each.leave_group(group).get()
    second.delete_group(group).get()
    assert group not in first.get_groups().get()


def test_group_errors(coordination: Any, coordinator: Start) -> None:
    first, group = coordinator(b"first"), b"errors"
    with pytest.raises(coordination.GroupNotCreated):
        first.join_group(group).get()
    first.create_group(group).get()
    with pytest.raises(coordination.GroupAlreadyExist):
        first.create_group(group).get()
    first.join_group(group).get()
    with pytest.raises(coordination.MemberAlreadyExist):
        first.join_group(group).get()
    with pytest.raises(coordination.GroupNotEmpty):
        first.delete_group(group).get()


def test_locks(coordinator: Start) -> None:
    first, second = coordinator(b"first"), coordinator(b"second")
    held, wanted = first.get_lock(b"lock"), second.get_lock(b"lock")
    assert held.acquire(blocking=False) and not wanted.acquire(blocking=False)
    assert held.heartbeat() and not wanted.heartbeat()
    assert held.release() and wanted.acquire(blocking=False)
    assert wanted.break_() and held.acquire(blocking=False)
    assert held.release()


@pytest.mark.campaign
def test_its_own_tests(server: str) -> None:
    environment.require()
    environment.run_unittest(
        "tooz.tests.test_coordination",
        TOOZ_TEST_URL=f"etcd://{server}",
        TOOZ_TEST_ETCD3GW="1",
    )
