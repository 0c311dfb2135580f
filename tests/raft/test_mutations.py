"""The mutations fit the core as it is; `make mutate-raft` runs them."""

import ast

import pytest

from tests.raft.mutate import EVERY_MUTATION, SOURCE
from tests.raft.mutations import Mutation


@pytest.mark.parametrize("mutation", EVERY_MUTATION, ids=lambda mutation: mutation.name)
def test_mutation_fits(mutation: Mutation) -> None:
    text = (SOURCE / f"{mutation.module}.py").read_text()
    assert text.count(mutation.line) == 1
    mutated = text.replace(mutation.line, mutation.instead)
    assert ast.dump(ast.parse(mutated)) != ast.dump(ast.parse(text))


def test_names_are_unique() -> None:
    names = [mutation.name for mutation in EVERY_MUTATION]
    assert len(set(names)) == len(names)
