"""What tests of the page have: the steps of their section, and a site to follow them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.recovery.page import Step, sections
from tests.recovery.site import Site, made_site


@pytest.fixture
def steps(request: pytest.FixtureRequest) -> list[Step]:
    """The command lines of the section that the test is named for."""
    return sections()[request.function.__name__]


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Site]:
    """A member that runs, and is a cluster by itself."""
    with made_site(tmp_path, 1) as site:
        assert site.start("m1")
        yield site


@pytest.fixture
def three(tmp_path: Path) -> Iterator[Site]:
    """Three members that run."""
    with made_site(tmp_path, 3) as site:
        assert site.start(*site.members)
        yield site
