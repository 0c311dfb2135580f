"""Builds the compiled core: mypyc writes C, the compiler that built Python compiles it.

Run it as `python -m kvorum.compiled.build`. It needs mypy and a C compiler, and does nothing if
the extension for these sources is there.
"""

import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kvorum.compiled import LIBRARY, MODULES, PACKAGE, library

COMPILERS = 2
"""How many C compilers run at once."""


def generate(package: Path, directory: Path) -> list[Path]:
    """Translate the listed modules into C files in this directory."""
    from mypyc.build import include_dir, mypyc_build
    from mypyc.common import RUNTIME_C_FILES
    from mypyc.options import CompilerOptions

    root = package.parent
    paths = [str(root / (name.replace(".", "/") + ".py")) for name in MODULES]
    options = CompilerOptions(
        multi_file=True,
        target_dir=str(directory),
        group_name=LIBRARY.removesuffix("__mypyc"),
        include_runtime_files=False,
    )
    # Not the checkout's configuration, which also covers tests.
    configuration = directory / "mypy.ini"
    configuration.write_text(
        f"[mypy]\nmypy_path = {root}\nexplicit_package_bases = True\n"
        "ignore_missing_imports = True\nfollow_untyped_imports = False\n"
        "[mypy-kvorum.api.pb.*]\nignore_errors = True\n"
    )
    arguments = ["--config-file", str(configuration), *paths]
    _, files, runtime = mypyc_build(arguments, options, only_compile_paths=paths)
    ((names, _),) = files
    parts = [*RUNTIME_C_FILES, *(part.path for part in runtime)]
    return [Path(name) for name in names] + [Path(include_dir(), name) for name in parts]


def compile_c(sources: list[Path], directory: Path, target: Path) -> None:
    """Compile and link these C files; raises CalledProcessError if that fails."""
    from mypyc.build import get_cflags, include_dir

    variables = sysconfig.get_config_vars()
    compiler = shlex.split(f"{variables['CC']} {variables['CFLAGS']} {variables['CCSHARED']}")
    compiler += get_cflags(compiler_type="unix", opt_level="1", debug_level="0", multi_file=True)
    compiler += [f"-I{path}" for path in (sysconfig.get_path("include"), include_dir(), directory)]

    def compiled(source: Path) -> str:
        output = f"{directory / source.stem}.o"
        subprocess.run([*compiler, "-c", str(source), "-o", output], check=True)  # noqa: S603
        return output

    with ThreadPoolExecutor(COMPILERS) as pool:
        objects = list(pool.map(compiled, sources))
    linker = shlex.split(variables["LDSHARED"])
    subprocess.run([*linker, *objects, "-o", str(target)], check=True)  # noqa: S603


def build(package: Path, output: Path) -> Path:
    """Build the extension from the sources of a package into the same or another package."""
    target = library(package)
    target = output / target.relative_to(package)
    if target.exists():
        return target
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        made = directory / target.name
        compile_c(generate(package, directory), directory, made)
        for other in target.parent.parent.glob(f"*/{LIBRARY}.*"):
            shutil.rmtree(other.parent)
        target.parent.mkdir(parents=True)
        # Under another name first: a process that starts meanwhile sees a whole file or none.
        shutil.copy(made, target.with_suffix(".new"))
        target.with_suffix(".new").rename(target)
    return target


if __name__ == "__main__":
    sys.stdout.write(f"{build(PACKAGE, PACKAGE)}\n")
