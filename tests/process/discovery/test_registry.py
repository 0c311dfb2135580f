"""Members that register in any order, fail, and come again, agree on one cluster."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvorum.process.discovery.registry import (
    DiscoveryError,
    Failed,
    FullClusterError,
    Get,
    Pair,
    Registry,
    RegistryPut,
    RegistryResult,
    RegistryWatch,
    Step,
    Wait,
)
from kvorum.server.telemetry.logs import Logger
from kvorum.state.membership.bootstrap import ClusterSettingsError, InitialCluster

TOKEN = "token"
SIZE_KEY = b"/_etcd/registry/token/_config/size"
MEMBERS = b"/_etcd/registry/token/members"


@dataclass
class Service:
    """A store of keys over revisions, as simple as it can be."""

    history: list[Pair] = field(default_factory=list)
    compacted: int = 0

    def put(self, key: bytes, value: bytes) -> None:
        revision = len(self.history) + 1
        created = {each.key: each.created for each in self.history}.get(key, revision)
        self.history.append(Pair(key, value, created))

    def outcome(self, step: Step) -> RegistryResult | Failed | None:
        """Return what comes of a step; None: nothing yet, or nothing ever."""
        revision = len(self.history)
        if isinstance(step, RegistryPut):
            self.put(step.key.encode(), step.value.encode())
            return RegistryResult((), revision + 1)
        if isinstance(step, Get):
            key = step.key.encode()
            found = {each.key: each for each in self.history if self._is_in(each, key, step)}
            return RegistryResult([found[each] for each in sorted(found)], revision)
        if isinstance(step, RegistryWatch):
            if step.revision <= self.compacted:
                return Failed("compacted")
            prefix = step.prefix.encode()
            later = self.history[step.revision - 1 :]
            changed = [each for each in later if each.key.startswith(prefix)]
            return RegistryResult(changed, revision) if changed else None
        return None

    @staticmethod
    def _is_in(pair: Pair, key: bytes, step: Get) -> bool:
        return pair.key.startswith(key) if step.is_prefix else pair.key == key


class Member:
    """A member on its way into the cluster."""

    def __init__(self, number: int) -> None:
        self._number = number
        self.result: InitialCluster | ClusterSettingsError | None = None
        self.waits: list[float] = []
        self.start()

    def start(self) -> None:
        """Begin from the beginning, as after a restart."""
        url = f"http://127.0.0.{self._number}:2380"
        self.steps = Registry(TOKEN, f"m{self._number}", [url], Logger([])).join()
        self.step: Step = next(self.steps)
        self.result = None

    def go_on(self, outcome: RegistryResult | Failed | None) -> None:
        if isinstance(self.step, Wait):
            self.waits.append(self.step.seconds)
        try:
            self.step = self.steps.send(outcome)
        except StopIteration as end:
            self.result = end.value
        except ClusterSettingsError as error:
            self.result = error

    def run(self, service: Service) -> None:
        """Go on until there is nothing to do but wait for others."""
        while self.result is None:
            outcome = service.outcome(self.step)
            if outcome is None and isinstance(self.step, RegistryWatch):
                return
            self.go_on(outcome)


def served(size: bytes = b"3") -> Service:
    service = Service()
    service.put(SIZE_KEY, size)
    return service


@pytest.mark.long
@given(data=st.data(), size=st.integers(1, 4), count=st.integers(1, 6))
def test_whatever_happens_the_first_ones_are_the_cluster(
    data: st.DataObject, size: int, count: int
) -> None:
    service = served(b"%d" % size)
    members = [Member(each) for each in range(1, count + 1)]
    for _ in range(data.draw(st.integers(0, 60))):
        member = data.draw(st.sampled_from(members))
        match data.draw(st.sampled_from(["step", "step", "step", "fail", "restart", "compact"])):
            case "step" if member.result is None:
                outcome = service.outcome(member.step)
                if outcome is not None or isinstance(member.step, Wait):
                    member.go_on(outcome)
            case "fail" if member.result is None and not isinstance(member.step, Wait):
                # The call may have been served all the same.
                if data.draw(st.booleans()):
                    service.outcome(member.step)
                member.go_on(Failed("lost"))
            case "restart":
                member.start()
            case "compact":
                service.compacted = len(service.history)
    # In the end nothing fails any more; who waited is told of the others.
    for _ in members:
        for member in members:
            member.run(service)
    came = {each.key: each for each in service.history if each.key.startswith(MEMBERS)}
    first = sorted(came.values(), key=lambda each: each.created)[:size]
    expected = dict(each.value.decode().split("=") for each in first)
    for number, member in enumerate(members, start=1):
        if len(came) < size:
            assert member.result is None
        elif f"m{number}" in expected:
            assert member.result == {name: (url,) for name, url in expected.items()}
        else:
            assert isinstance(member.result, FullClusterError)
    assert len(came) >= min(size, count)


def test_the_wait_doubles_and_begins_anew_after_a_success() -> None:
    member = Member(1)

    def fail(times: int) -> Sequence[float]:
        member.waits.clear()
        for _ in range(times):
            member.go_on(Failed("lost"))
            member.go_on(None)
        return member.waits

    assert fail(10) == [2, 4, 8, 16, 32, 64, 128, 256, 256, 256]
    service = served()
    while not isinstance(member.step, RegistryPut):
        member.go_on(service.outcome(member.step))
    assert fail(2) == [2, 4]
    while not isinstance(member.step, RegistryWatch):
        member.go_on(service.outcome(member.step))
    assert fail(1) == [2]
    assert isinstance(member.step, Get)


@pytest.mark.parametrize(
    ("size", "reason"),
    [
        (None, "discovery: size key not found"),
        (b"", "discovery: size key is bad"),
        (b"0", "discovery: size key is bad"),
        (b"-1", "discovery: size key is bad"),
        (b"3\n", "discovery: size key is bad"),
        (b"0x3", "discovery: size key is bad"),
        (b"1_0", "discovery: size key is bad"),
        (b"three", "discovery: size key is bad"),
        (b"9223372036854775808", "discovery: size key is bad"),
        ("\u0663".encode(), "discovery: size key is bad"),
        (b"9" * 5000, "discovery: size key is bad"),
    ],
)
def test_a_size_that_is_none(size: bytes | None, reason: str) -> None:
    service = Service() if size is None else served(size)
    member = Member(1)
    member.run(service)
    assert isinstance(member.result, DiscoveryError)
    assert f"failed to join discovery cluster ({reason})" in str(member.result)
    assert not any(each.key.startswith(MEMBERS) for each in service.history)


@pytest.mark.parametrize("size", [b"1", b"+1", b"0001"])
def test_a_size_in_another_form(size: bytes) -> None:
    member = Member(1)
    member.run(served(size))
    assert member.result == {"m1": ("http://127.0.0.1:2380",)}


def test_what_is_no_member_does_not_count() -> None:
    service = served(b"2")
    service.put(MEMBERS + b"/1", b"nonsense")
    service.put(MEMBERS, b"\xff")
    member = Member(1)
    member.run(service)
    assert member.result is None
    service.put(MEMBERS + b"/2", b" b=http://b:1,b=http://b:2 \n")
    member.run(service)
    assert member.result == {
        "m1": ("http://127.0.0.1:2380",),
        "b": ("http://b:1", "http://b:2"),
    }


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        (b"b=nonsense", r"discovery: invalid peer URL.*b=nonsense"),
        (b"b=http://127.0.0.1:2380", "discovery cluster .* has duplicate url"),
        (b"m1=http://b:1", "two members of the same name.*--name"),
    ],
)
def test_members_that_cannot_be_a_cluster(other: bytes, problem: str) -> None:
    service = served(b"2")
    service.put(MEMBERS + b"/1", other)
    member = Member(1)
    member.run(service)
    assert isinstance(member.result, ClusterSettingsError)
    with pytest.raises(ClusterSettingsError, match=problem):
        raise member.result


@pytest.mark.parametrize(
    ("token", "prefix"),
    [("a/b", "/_etcd/registry/a/b"), ("a//b/../c", "/_etcd/registry/a/c"), ("..", "/_etcd")],
)
def test_a_token_is_a_path(token: str, prefix: str) -> None:
    steps = Registry(token, "m", ["http://h:1"], Logger([])).join()
    assert next(steps) == Get(f"{prefix}/_config/size")
    found = steps.send(RegistryResult([Pair(b"", b"1", 1)], 1))
    assert found == Get(f"{prefix}/members", is_prefix=True)
