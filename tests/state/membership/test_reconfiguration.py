"""The strict checks, against a word-for-word reading of the rules, over every small cluster."""

from collections.abc import Iterator
from itertools import combinations, product

from kvorum.api.errors import MEMBER_NOT_ENOUGH_STARTED, UNHEALTHY
from kvorum.state.membership.documents import MemberDocument
from kvorum.state.membership.reconfiguration import (
    is_learner_ready,
    may_add,
    may_promote,
    may_remove,
)


def clusters() -> Iterator[tuple[list[MemberDocument], set[int]]]:
    """Yield all clusters of up to five voters and a learner, and who of them is connected."""
    for size in range(1, 6):
        for started in range(1, size + 1):
            voters = [
                MemberDocument(each, name="n" * (each <= started)) for each in range(1, size + 1)
            ]
            members = [*voters, MemberDocument(99, is_learner=True, name="learner")]
            others = [each.id for each in members if each.id != 1]
            for count in range(len(others) + 1):
                for connected in combinations(others, count):
                    yield members, {1, *connected}


def majority_of(number: int) -> int:
    return next(each for each in range(number + 2) if 2 * each > number)


def facts(members: list[MemberDocument], connected: set[int]) -> tuple[int, int, int]:
    voters = [member for member in members if not member.is_learner]
    started = len([voter for voter in voters if voter.name])
    return len(voters), started, len([voter for voter in voters if voter.id in connected])


def test_additions() -> None:
    seen = set()
    for (members, connected), is_learner in product(clusters(), [False, True]):
        voters, started, reached = facts(members, connected)
        expected = None
        is_second = started == 1 and voters == 1
        if not is_learner and not is_second and started < majority_of(voters + 1):
            expected = MEMBER_NOT_ENOUGH_STARTED
        elif voters > 1 and reached < majority_of(voters + 1):
            expected = UNHEALTHY
        assert may_add(members, connected, is_learner=is_learner) == expected
        seen.add(expected)
    assert len(seen) == 3


def test_removals() -> None:
    seen = set()
    for members, connected in clusters():
        voters, started, reached = facts(members, connected)
        assert may_remove(members, connected, 99, is_active=True) is None
        for target, is_active in product(range(1, voters + 1), [False, True]):
            started_after = started - bool(members[target - 1].name)
            expected = None
            if started_after < majority_of(voters - 1):
                expected = MEMBER_NOT_ENOUGH_STARTED
            elif is_active and reached - 1 < majority_of(voters - 1):
                expected = UNHEALTHY
            assert may_remove(members, connected, target, is_active=is_active) == expected
            seen.add(expected)
    assert len(seen) == 3


def test_a_cluster_keeps_its_last_voter() -> None:
    only = [MemberDocument(1, name="n")]
    assert may_remove(only, {1}, 1, is_active=True) == MEMBER_NOT_ENOUGH_STARTED
    # That there is no such member is said by whoever applies the change.
    assert may_remove(only, {1}, 2, is_active=False) is None


def test_promotions() -> None:
    seen = set()
    for members, connected in clusters():
        voters, started, _ = facts(members, connected)
        is_refused = started + 1 < majority_of(voters + 1)
        assert may_promote(members) == (MEMBER_NOT_ENOUGH_STARTED if is_refused else None)
        seen.add(is_refused)
    assert len(seen) == 2


def test_a_learner_is_ready_with_nine_tenths() -> None:
    assert is_learner_ready(90, 100)
    assert not is_learner_ready(89, 100)
    assert is_learner_ready(0, 0)
    huge = (1 << 64) - 1
    assert is_learner_ready(huge, huge)
