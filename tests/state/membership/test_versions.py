"""Versions: how they are read, and how the cluster's follows its members'."""

import pytest

from kvorum.state.membership.versions import (
    Version,
    decide_cluster_version,
    decide_storage_version,
    parse_version,
)

V35, V36, V37 = Version(3, 5), Version(3, 6), Version(3, 7)


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("3.7.1", Version(3, 7, 1)),
        ("3.7.0-rc.1", V37),
        ("3.7.0-alpha.0+git", V37),
        ("10.0.23", Version(10, 0, 23)),
    ],
)
def test_versions_are_read(text: str, version: Version) -> None:
    assert parse_version(text) == version


@pytest.mark.parametrize(
    "text",
    ["", "3", "3.7", "3.7.x", "3.7.1.2", "v3.7.1", " 3.7.1", "03.7.1", "3.7.-1", "3.\u0667.1"],
)
def test_other_texts_are_not_versions(text: str) -> None:
    with pytest.raises(ValueError, match="is not a version of the form"):
        parse_version(text)


def test_versions_are_printed_in_full() -> None:
    assert str(V37) == "3.7.0"
    assert str(Version(3, 7, 1).level) == "3.7.0"


@pytest.mark.parametrize(
    ("current", "servers", "target", "expected"),
    [
        # Undecided: the lowest that runs, or the lowest of all if somebody could not be asked.
        (None, [Version(3, 7, 1), Version(3, 6, 14)], None, V36),
        (None, [Version(3, 7, 1), None], None, Version(3, 0)),
        # Raised when everyone is newer, and only then.
        (V36, [Version(3, 7, 1), Version(3, 7, 0)], None, V37),
        (V36, [Version(3, 7, 1), Version(3, 6, 14)], None, None),
        (V36, [Version(3, 7, 1), None], None, None),
        (V37, [Version(3, 7, 1)], None, None),
        (Version(3, 0), [Version(3, 7, 1)], None, V37),
        (V36, [Version(4, 0)], None, None),
        # Lowered by a job, one minor.
        (V37, [Version(3, 6, 14)], None, None),
        (V37, [Version(3, 7, 1)], V36, V36),
        (V36, [Version(3, 7, 1)], V36, None),
        (V37, [Version(3, 7, 1)], V35, None),
    ],
)
def test_the_leader_decides(
    current: Version | None,
    servers: list[Version | None],
    target: Version | None,
    expected: Version | None,
) -> None:
    assert decide_cluster_version(current, servers, target) == expected


@pytest.mark.parametrize(
    ("storage", "cluster", "expected"),
    [
        (None, None, None),
        (None, V35, None),
        (None, V36, V36),
        (V36, V37, V37),
        (V37, V37, None),
        (V37, V36, V36),
        (V36, V35, V35),
        (V37, V35, V35),
        (V35, V35, None),
        (V35, V36, V36),
        (V36, Version(3, 4), V35),
        (V36, Version(3, 0), None),
    ],
)
def test_the_storage_follows_the_cluster(
    storage: Version | None, cluster: Version | None, expected: Version | None
) -> None:
    assert decide_storage_version(storage, cluster) == expected
