"""The commands `etcd`, `etcdctl` and `etcdutl`: those of Kvorum, but for the versions they print.

A program that starts etcd may ask for its version first and read the answer. So these commands
print the version of etcd that Kvorum is compatible with, in etcd's form.
"""

import platform
import sys

from kvorum import __version__
from kvorum.member.config import ETCD_VERSION
from kvorum.tools.cli import API_VERSION
from kvorum.tools.cli.errors import UsageError
from kvorum.tools.cli.parsing import parse
from kvorum.tools.cli.program import Program

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Go's names of processors, for those that have another name in Python."""


def etcd() -> None:
    """Run `kvorum`."""
    from kvorum.process.main import main
    from kvorum.process.settings.flags import FlagError, parse_arguments

    try:
        given, rest = parse_arguments(sys.argv[1:])
    except FlagError:
        given, rest = {}, []
    if given.get("version") and not given.get("help") and not rest:
        sys.stdout.write(version_text())
    else:
        main()


def version_text() -> str:
    """Return the output of `etcd --version`."""
    machine = platform.machine()
    return (
        f"etcd Version: {ETCD_VERSION}\n"
        f"Git SHA: Not provided (Kvorum {__version__})\n"
        f"Go Version: Not provided (Python {platform.python_version()})\n"
        f"Go OS/Arch: {platform.system().lower()}/{ARCHITECTURES.get(machine, machine)}\n"
    )


def etcdctl() -> None:
    """Run `kvorumctl`."""
    from kvorum.tools.ctl.main import PROGRAM

    if not _prints_version("etcdctl", PROGRAM):
        PROGRAM.main()


def etcdutl() -> None:
    """Run `kvorumutl`."""
    from kvorum.tools.utl.main import PROGRAM

    if not _prints_version("etcdutl", PROGRAM):
        PROGRAM.main()


def _prints_version(name: str, program: Program) -> bool:
    """Print the version if the command line asks for it; return whether it does."""
    try:
        given = parse(program.root, sys.argv[1:])
    except UsageError:
        return False
    if given.command.name != "version" or given.is_help_asked:
        return False
    sys.stdout.write(f"{name} version: {ETCD_VERSION}\nAPI version: {API_VERSION}\n")
    return True
