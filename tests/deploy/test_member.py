"""What the chart's start script decides, step by step, without servers."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest

from tests.cluster.members import reserved_prefix
from tests.deploy.pods import METRICS_PORT, SCRIPT
from tests.waiting import until

OWN_URL = "http://store-1.peers:2380"


@pytest.fixture
def member() -> ModuleType:
    spec = spec_from_file_location("chart_member", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def described(number: int, *, name: bool = True, runs: bool = True) -> dict[str, Any]:
    """Return a member as `kvorumctl member list` shows it."""
    found: dict[str, Any] = {
        "ID": f"{number:x}",
        "peerURLs": [f"http://store-{number}.peers:2380"],
    }
    if name:
        found["name"] = f"store-{number}"
    if runs:
        found["clientURLs"] = [f"http://store-{number}.peers:2379"]
    return found


def test_a_pod_without_a_log_joins_step_by_step(
    member: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, ...]] = []
    monkeypatch.setattr(member, "ask", lambda *arguments: asked.append(arguments))
    # It has run before, and has lost its volume.
    assert member.join("store-1", OWN_URL, [described(0), described(1)]) == ""
    assert asked.pop() == ("member", "remove", "1")
    assert member.join("store-1", OWN_URL, [described(0)]) == ""
    assert asked.pop() == ("member", "add", "store-1", f"--peer-urls={OWN_URL}", "--learner")
    # It was added, but not started; nor was another one.
    new, other = described(1, name=False, runs=False), described(2, name=False, runs=False)
    assert member.join("store-1", OWN_URL, [described(0), new, other]) == (
        f"store-0=http://store-0.peers:2380,store-1={OWN_URL},2=http://store-2.peers:2380"
    )
    # A founder that has not started yet has a name already.
    founder = described(1, runs=False)
    assert member.join("store-1", OWN_URL, [described(0), founder]).endswith(OWN_URL)
    assert asked == []


def test_only_members_of_pods_that_go_are_removed(
    member: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = [described(0), described(1), described(10), described(3, name=False, runs=False)]
    found.append({**described(4), "name": "other-4"})
    asked: list[str] = []

    def ask(*arguments: str) -> dict[str, Any]:
        asked.append(arguments[2])
        found[:] = [each for each in found if each["ID"] != arguments[2]]
        return {}

    monkeypatch.setattr(member, "ask", ask)
    monkeypatch.setattr(member, "members", lambda: found)
    assert member.shrink("store", 0) == 1
    assert asked == []
    assert member.shrink("store", 1) == 0
    assert asked == ["a", "3", "1"]
    assert [each["ID"] for each in found] == ["0", "4"]


@contextmanager
def rounds(member: ModuleType, count: int) -> Iterator[list[Any]]:
    """Start the founding round of so many pods, each at an address of its own."""
    prefix, reserved = reserved_prefix()
    urls = {f"store-{each}": f"http://{prefix}.{each + 1}:2380" for each in range(count)}
    made = [
        member.FoundingRound(f"store-{each}", urls, f"http://{prefix}.{each + 1}:{METRICS_PORT}")
        for each in range(count)
    ]
    try:
        yield made
    finally:
        for each in made:
            each.close()
        reserved.close()


def test_pods_found_a_cluster_only_when_all_know_of_all(member: ModuleType) -> None:
    with rounds(member, 3) as (one, two, three):
        assert not one.is_complete() and not two.is_complete()
        # A pod notes who asked it just after it has answered.
        for each in (three, one, two):
            until("the round is complete", each.is_complete)


def test_a_pod_that_nobody_lists_is_no_founder(member: ModuleType) -> None:
    with rounds(member, 2) as (one, two):
        host = two._hosts["store-0"]
        with closing(member.HTTPConnection(host, METRICS_PORT, timeout=10)) as connection:
            connection.request("GET", f"{member.NO_LOG_PATH}store-7")
            assert connection.getresponse().status == 404
        with closing(member.HTTPConnection(host, METRICS_PORT, timeout=10)) as connection:
            connection.request("GET", "/livez")
            assert connection.getresponse().status == 404
        assert not one.is_complete()
