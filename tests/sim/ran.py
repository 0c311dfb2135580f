"""Runs seeds in a process of its own, and prints which modules of `kvorum` were imported and ran.

`python -m tests.sim.ran`, with what is looked for as JSON on standard input. Every function is
compiled with a first statement that notes its module, which slows a run down far less than a trace
of its calls. Constructors are left out: that a service was made does not say that it served.
"""

import ast
import builtins
import json
import os
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

PACKAGE = "kvorum"
OTHERS = ("kvorum.api.pb.", "kvorum.sim.")
"""What is generated, and the simulator itself."""
NOTE = "note_that_it_ran"


Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_declaration(function: Function) -> bool:
    """Return whether a function has nothing to run: a docstring, or dots."""
    return all(
        isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
        for each in function.body
    )


def functions_of(tree: ast.AST) -> list[Function]:
    """Return the functions that can run, coroutines too."""
    found = [each for each in ast.walk(tree) if isinstance(each, Function)]
    return [each for each in found if each.name != "__init__" and not is_declaration(each)]


class NotingLoader(SourceFileLoader):
    """Compiles modules so that they note which of them run; reads and writes no bytecode."""

    def path_stats(self, path: str) -> Any:
        raise OSError(f"{path} has no bytecode that notes anything")

    def source_to_code(  # type: ignore[override]
        self, data: Any, path: Any, *, _optimize: int = -1
    ) -> CodeType:
        tree = ast.parse(data)
        for function in functions_of(tree):
            place = 1 if ast.get_docstring(function, clean=False) is not None else 0
            function.body[place:place] = ast.parse(f"{NOTE}(__name__)").body
        return compile(ast.fix_missing_locations(tree), path, "exec", dont_inherit=True)


class NotingFinder(MetaPathFinder):
    """Lets this loader load the package."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not f"{name}.".startswith(f"{PACKAGE}.") or f"{name}.".startswith(OTHERS):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None and spec.origin.endswith(".py"):
            spec.loader = NotingLoader(name, spec.origin)
        return spec


def main() -> None:
    """Run seeds until everything that is looked for has run, or there are no more."""
    asked = json.load(sys.stdin)
    wanted, runs = set(asked["wanted"]), asked["runs"]
    ran: set[str] = set()
    os.environ["KVORUM_COMPILED"] = "0"
    setattr(builtins, NOTE, ran.add)
    sys.meta_path.insert(0, NotingFinder())
    from kvorum.sim.run import simulate

    made = []
    for seed, members, is_needed in runs:
        if is_needed or wanted - ran:
            outcome = simulate(seed, members)
            assert not outcome.guarantee, outcome
            made.append((seed, members))
    names = [each for each in sys.modules if f"{each}.".startswith(f"{PACKAGE}.")]
    json.dump({"imported": sorted(names), "ran": sorted(ran), "made": made}, sys.stdout)


if __name__ == "__main__":
    main()
