"""Build what this machine can of a release into dist/: `make wheels`.

Source archives come first, and every wheel of the server is built from an unpacked one, which
shows that it is complete. Each Python gets a wheel with the native edge and the compiled core,
tagged manylinux_2_28: zig links the edge against that version of glibc, and auditwheel refuses a
library that needs a later one. Where KVORUM_EDGE=python, nothing native is built.
"""

import os
import platform
import shutil
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

from tools.release import DIST, PYTHONS, REPOSITORY, VERSION

MACHINE = platform.machine()
PLATFORM = f"manylinux_2_28_{MACHINE}"
PURE = {"KVORUM_EDGE": "python", "KVORUM_COMPILED": "0"}
NATIVE = {"KVORUM_EDGE": "native", "KVORUM_COMPILED": "1"}


def run(*command: object, environment: dict[str, str] | None = None) -> None:
    """Run a command; end with its exit code and output if it fails."""
    words = list(map(str, command))
    print("$", *words, flush=True)
    done = subprocess.run(
        words,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{done.stdout}\n{words[0]} ended with {done.returncode}")


def build(source: Path, kind: str) -> None:
    """Build a source archive or a wheel of a distribution."""
    run(sys.executable, "-m", "build", f"--{kind}", "--outdir", DIST, source)


def unpacked(work: Path) -> Path:
    """Unpack the server's source archive; return its directory."""
    with tarfile.open(DIST / f"kvorum-{VERSION}.tar.gz") as archive:
        archive.extractall(work, filter="data")
    return work / f"kvorum-{VERSION}"


def linking() -> dict[str, str]:
    """Return the variables with which cargo links against an old glibc."""
    found = find_spec("ziglang")
    assert found is not None and found.submodule_search_locations is not None
    triple = f"{MACHINE}-unknown-linux-gnu".upper().replace("-", "_")
    return {
        f"CARGO_TARGET_{triple}_LINKER": str(Path(__file__).with_name("linker.sh")),
        "CARGO_ZIGBUILD_ZIG_PATH": f"{found.submodule_search_locations[0]}/zig",
        # Shared by all Pythons, for which the edge is the same.
        "CARGO_TARGET_DIR": str(REPOSITORY / "rust" / "target" / "wheels"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }


def build_native(source: Path, python: Path, work: Path) -> None:
    """Build a wheel with native edge and compiled core for a Python."""
    built = work / "built"
    shutil.rmtree(built, ignore_errors=True)
    environment = {**NATIVE, **linking()}
    run(python, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", built, source,
        environment=environment)  # fmt: skip
    (wheel,) = built.glob("*.whl")
    run(sys.executable, "-m", "auditwheel", "repair", "--plat", PLATFORM, "--wheel-dir", DIST,
        wheel, environment=environment)  # fmt: skip


def main() -> None:
    """Build everything."""
    shutil.rmtree(DIST, ignore_errors=True)
    for source in (REPOSITORY, *(REPOSITORY / "distributions").iterdir()):
        build(source, "sdist")
    for source in (REPOSITORY / "distributions").iterdir():
        build(source, "wheel")
    work = REPOSITORY / "build" / "release"
    shutil.rmtree(work, ignore_errors=True)
    source = unpacked(work)
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", DIST, source,
        environment=PURE)  # fmt: skip
    for python in () if os.environ.get("KVORUM_EDGE") == "python" else PYTHONS.values():
        build_native(source, python, work)
    print(*sorted(path.name for path in DIST.iterdir()), sep="\n")


if __name__ == "__main__":
    main()
