"""The client for threads is what the tool makes of the one for asyncio."""

import pytest

from tools.unasync import SOURCE, TARGET, translated

MODULES = sorted(path.relative_to(SOURCE).as_posix() for path in SOURCE.rglob("*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_for_threads_is_up_to_date(module: str) -> None:
    written = (TARGET / module).read_text()
    assert written == translated((SOURCE / module).read_text()), "run 'make client'"


def test_there_is_no_other_module() -> None:
    found = sorted(path.relative_to(TARGET).as_posix() for path in TARGET.rglob("*.py"))
    assert found == MODULES
