"""Build the compiled core: mypyc writes C, and the compiler that built Python compiles it.

Run it as `python -m kvorum.compiled.build`. It needs mypy, a C compiler and Python's headers, and
does nothing if the extension for these sources exists.

Compiled code has no frames from which a logger could find its caller. So the build compiles a copy
of the sources in which every log call names its place in the source.
"""

import ast
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path

from kvorum.compiled import MODULES
from kvorum.compiled.extension import LIBRARY, PACKAGE, library

COMPILERS = 2
"""The number of C compilers that run at once."""
LOGGERS = ("logger", "_logger")
LOGGED = ("debug", "info", "warning", "error", "critical")
"""The names of loggers in the listed modules, and the methods that log a line."""


def with_callers(source: str, name: str) -> str:
    """Return a module's source with `with_caller` in every log call; line numbers stay the same."""
    lines = source.encode().splitlines(keepends=True)
    tree = ast.parse(source)
    insertions: list[tuple[int, int, bytes]] = []
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)):
            continue
        logger = node.func.value
        owner = getattr(logger, "attr", getattr(logger, "id", ""))
        if node.func.attr in LOGGED and owner in LOGGERS:
            assert logger.end_lineno is not None and logger.end_col_offset is not None
            place = f', "{name}:{node.lineno}")'.encode()
            insertions.append((logger.lineno, logger.col_offset, b"with_caller("))
            insertions.append((logger.end_lineno, logger.end_col_offset, place))
    if not insertions:
        return source
    # Insert after the docstring, and after imports that must come before any other.
    *_, last = (node for node in tree.body[:2] if _opens_module(node))
    assert last.end_lineno is not None and last.end_col_offset is not None
    import_ = b"; from kvorum.raft.logger import with_caller"
    insertions.append((last.end_lineno, last.end_col_offset, import_))
    for number, column, text in sorted(insertions, reverse=True):
        line = lines[number - 1]
        lines[number - 1] = line[:column] + text + line[column:]
    return b"".join(lines).decode()


def _opens_module(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) or (
        isinstance(node, ast.ImportFrom) and node.module == "__future__"
    )


def copy_sources(package: Path, root: Path) -> list[str]:
    """Copy the sources below this root, with places in the listed ones; return their paths.

    The paths are relative to the root, so that tracebacks do not name the root.
    """
    shutil.copytree(package, root / package.name, ignore=shutil.ignore_patterns("*.so", "*.pyc"))
    paths = [name.replace(".", "/") + ".py" for name in MODULES]
    for path in paths:
        source = (root / path).read_text()
        (root / path).write_text(with_callers(source, path.partition("/")[2]))
    return paths


def generate(package: Path, directory: Path) -> list[Path]:
    """Translate the listed modules into C files in this directory."""
    from mypyc.build import include_dir, mypyc_build
    from mypyc.common import RUNTIME_C_FILES
    from mypyc.options import CompilerOptions

    root = directory / "sources"
    paths = copy_sources(package, root)
    options = CompilerOptions(
        multi_file=True,
        target_dir=str(directory),
        group_name=LIBRARY.removesuffix("__mypyc"),
        include_runtime_files=False,
    )
    # Do not use the checkout's configuration, which also covers tests.
    configuration = directory / "mypy.ini"
    configuration.write_text(
        f"[mypy]\nmypy_path = {root}\nexplicit_package_bases = True\n"
        "ignore_missing_imports = True\nfollow_untyped_imports = False\n"
        "[mypy-kvorum.api.pb.*]\nignore_errors = True\n"
    )
    arguments = ["--config-file", str(configuration), *paths]
    with chdir(root):
        _, files, runtime = mypyc_build(arguments, options, only_compile_paths=paths)
    ((names, _),) = files
    parts = [*RUNTIME_C_FILES, *(part.path for part in runtime)]
    return [Path(name) for name in names] + [Path(include_dir(), name) for name in parts]


def compiler_command(variable: str) -> list[str]:
    """Return Python's own command to compile or link, CC or LDSHARED, with a compiler that exists.

    Python may have been built on another machine, with a compiler that this one does not have.
    Raises FileNotFoundError if there is no compiler.
    """
    own, *options = shlex.split(sysconfig.get_config_var(variable))
    for program in (os.environ.get("CC"), own, "cc", "gcc", "clang"):
        if program and shutil.which(shlex.split(program)[0]):
            return [*shlex.split(program), *options]
    raise FileNotFoundError("there is no C compiler; install gcc")


def compile_c(sources: list[Path], directory: Path, target: Path) -> None:
    """Compile and link these C files; raise CalledProcessError on failure."""
    from mypyc.build import get_cflags, include_dir

    variables = sysconfig.get_config_vars()
    compiler = compiler_command("CC")
    compiler += shlex.split(f"{variables['CFLAGS']} {variables['CCSHARED']}")
    compiler += get_cflags(compiler_type="unix", opt_level="1", debug_level="0", multi_file=True)
    compiler += [f"-I{path}" for path in (sysconfig.get_path("include"), include_dir(), directory)]

    # Every generated file includes these headers; precompiling them saves a fifth of the time.
    headers = directory / "headers.h"
    headers.write_text("".join(f'#include "{each.name}"\n' for each in directory.glob("*.h")))
    subprocess.run(  # noqa: S603
        [*compiler, "-x", "c-header", str(headers), "-o", f"{headers}.gch"], check=True
    )

    def compiled(source: Path) -> str:
        output = f"{directory / source.stem}.o"
        included = ["-include", str(headers)] if source.parent == directory else []
        subprocess.run(  # noqa: S603
            [*compiler, *included, "-c", str(source), "-o", output], check=True
        )
        return output

    with ThreadPoolExecutor(COMPILERS) as pool:
        objects = list(pool.map(compiled, sources))
    linker = compiler_command("LDSHARED")
    subprocess.run([*linker, *objects, "-o", str(target)], check=True)  # noqa: S603


def build(package: Path, output: Path) -> Path:
    """Build the extension from the sources of a package into the same or another package."""
    target = library(package)
    target = output / target.relative_to(package)
    if target.exists():
        return target
    # Found out now, and not after minutes of translating.
    compiler_command("CC")
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        made = directory / target.name
        compile_c(generate(package, directory), directory, made)
        for other in target.parent.parent.glob(f"*/{LIBRARY}.*"):
            shutil.rmtree(other.parent)
        target.parent.mkdir(parents=True)
        # Copy under another name first, so that a process that starts meanwhile sees a whole file
        # or none.
        shutil.copy(made, target.with_suffix(".new"))
        target.with_suffix(".new").rename(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build(PACKAGE, PACKAGE)}\n")
