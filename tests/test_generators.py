"""Generators end because somebody ends them, and procedures keep nothing of a state that may go.

Three rules that are read off the sources. A generator of the compiled core that is collected does
not run its `finally`: code that drives one by hand closes it, and all other code uses `yield from`,
which passes a close on. A `for` does not, so it is never used on a generator that has something to
release. And a snapshot may replace the state of a member at any wait of a procedure.
"""

import ast
from functools import cache
from pathlib import Path

import kvorum

PACKAGE = Path(kvorum.__file__).parent

DRIVERS = {
    "storage/backend/transfer.py:_load": "pieces, which hold nothing",
    "storage/backend/transfer.py:next_leaves": "pieces, which hold nothing",
    "state/lease/lessor.py:leases": "to its end, in one go",
    "member/apply.py:_continue": "to its end, or closed when a snapshot is installed",
    "member/installing.py:advance": "to its end; nothing gives an installation up",
    "member/longreads.py:run": "to its end, or closed: for a snapshot, a client that is gone",
    "member/procedure_driver.py:_step": "to its end, or closed by `Procedures.end`",
    "state/mvcc/slices.py:run_first_slice": "its first slice; what gets the rest is named here",
    "state/mvcc/slices.py:run_to_end": "to its end, in one go",
    "server/peer/cluster/joining.py:_next_step": "before there is a member; they hold nothing",
}
"""Functions that drive generators by hand, and how they end them."""

KEEPERS = {
    "member/hashing.py:hash_kv": "looks whether it is another after the job",
    "server/rpc/election.py:_send_changes": "looks at the store anew for every slice",
    "server/rpc/maintenance.py:_defragment": "gives it to what looks whether it is another",
}
"""Procedures that keep a part of the state over a wait, and why they may."""

STATE = {"alarms", "backend", "cluster", "lessor", "store"}

Function = tuple[str, ast.FunctionDef]


def functions() -> list[Function]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        # Clients are no part of the core: nothing of them is compiled or touches a member's state.
        # Nor are the simulator, which drives generators of its own, and tools for tests.
        others = {"pb", "client", "cli", "ctl", "sim", "testing"}
        if not others & set(path.relative_to(PACKAGE).parts):
            name = path.relative_to(PACKAGE).as_posix()
            found += [
                (f"{name}:{node.name}", node)
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.FunctionDef)
            ]
    return found


FUNCTIONS = functions()


@cache
def own(node: ast.AST) -> list[ast.AST]:
    """Return the nodes of a function, except for those of functions defined in it."""
    found, rest = [], list(ast.iter_child_nodes(node))
    while rest:
        child = rest.pop()
        found.append(child)
        if not isinstance(child, ast.FunctionDef | ast.Lambda | ast.GeneratorExp):
            rest.extend(ast.iter_child_nodes(child))
    return found


def is_suspended_in(node: ast.AST) -> bool:
    return any(isinstance(each, ast.Yield | ast.YieldFrom) for each in own(node))


def name_of(node: ast.AST | None) -> str:
    """Return the last name of what is called or looked up."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def drives(node: ast.AST) -> bool:
    """Tell whether a node advances a generator, by `next` or by `send`."""
    if not isinstance(node, ast.Call) or not node.args:
        return False
    if name_of(node.func) == "next":
        return isinstance(node.args[0], ast.Name | ast.Attribute)
    method = isinstance(node.func, ast.Attribute) and node.func.attr in ("send", "throw")
    return method and name_of(node.func.value).lstrip("_") in ("steps", "slices", "work")  # type: ignore[attr-defined]


def gives_back(function: ast.FunctionDef) -> bool:
    """Return whether a generator has something to do when it is closed half-way."""
    if any(name_of(each) == "contextmanager" for each in function.decorator_list):
        return False
    for node in own(function):
        if isinstance(node, ast.With) and is_suspended_in(node):
            return True
        if isinstance(node, ast.Try) and any(is_suspended_in(each) for each in node.body):
            caught = {name_of(each) for handler in node.handlers for each in _caught(handler)}
            if node.finalbody or caught & {"", "BaseException", "GeneratorExit"}:
                return True
    return False


def _caught(handler: ast.ExceptHandler) -> list[ast.AST | None]:
    return [*handler.type.elts] if isinstance(handler.type, ast.Tuple) else [handler.type]


def givers() -> set[str]:
    """Return the names of functions whose generators have to be closed by their users."""
    names = {function.name for _, function in FUNCTIONS if gives_back(function)}
    while True:
        more = {
            function.name
            for _, function in FUNCTIONS
            for node in own(function)
            if isinstance(node, ast.YieldFrom | ast.Return) and name_of(node.value) in names
        } - names
        if not more:
            return names
        names |= more


def is_procedure(function: ast.FunctionDef) -> bool:
    names = {name_of(each) for each in ast.walk(function.returns or function)}
    return bool(names & {"Steps", "Part", "Wait"}) and is_suspended_in(function)


def test_generators_are_driven_by_those_who_end_them() -> None:
    found = {name for name, function in FUNCTIONS if any(map(drives, own(function)))}
    assert found == set(DRIVERS)


def test_what_has_something_to_give_back_is_not_walked_with_for() -> None:
    names = givers()
    assert {"range_slices", "range_answer", "_snapshot", "_serve"} <= names
    walked = [
        f"{name} line {node.iter.lineno}: {name_of(node.iter)}"
        for name, function in FUNCTIONS
        for node in own(function)
        if isinstance(node, ast.For | ast.comprehension)
        and isinstance(node.iter, ast.Call)
        and name_of(node.iter) in names
    ]
    assert walked == []


def test_procedures_keep_nothing_of_the_state() -> None:
    keepers = set()
    for name, function in FUNCTIONS:
        if not is_procedure(function):
            continue
        for node in own(function):
            if isinstance(node, ast.Assign):
                values = node.value.elts if isinstance(node.value, ast.Tuple) else [node.value]
                if any(isinstance(each, ast.Attribute) and each.attr in STATE for each in values):
                    keepers.add(name)
    assert keepers == set(KEEPERS)
