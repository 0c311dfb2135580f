"""No module but those of `kvorum.storage.platform` names a call that only some systems have."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.layers import SOURCE, modules

# By module, how such names begin. `fsync` is one, because on macOS it leaves data in the drive.
NAMES = {
    "ctypes": ("CDLL",),
    "fcntl": ("F_ADD_SEALS", "F_FULLFSYNC", "F_OFD_", "F_SEAL_", "F_SETPIPE_SZ"),
    "os": (
        *("copy_file_range", "eventfd", "EFD_", "fdatasync", "fsync", "memfd_create", "MFD_"),
        *("O_DIRECT", "O_TMPFILE", "pidfd_open", "pipe2", "posix_fadvise", "posix_fallocate"),
        *("sched_", "sendfile", "setns", "splice", "SPLICE_", "timerfd_", "unshare"),
    ),
    "resource": ("prlimit", "setrlimit"),
    "select": ("epoll", "EPOLL", "kevent", "kqueue", "KQ_"),
    "selectors": ("EpollSelector", "KqueueSelector"),
    "signal": ("sigtimedwait", "sigwaitinfo"),
    "socket": ("SO_PEERCRED", "TCP_KEEPALIVE", "TCP_KEEPIDLE", "TCP_USER_TIMEOUT"),
    "time": ("CLOCK_BOOTTIME",),
}
ALLOWED = {
    "client/saving.py: os.fsync": "the client runs on Windows, too, without `storage`",
    "tools/ctl/exporting.py: os.fsync": "so does kvorumctl",
    "process/locking.py: ctypes.CDLL": "`mlock` is in every C library",
    "storage/files/real.py: os.O_DIRECTORY": "only its name begins like O_DIRECT",
}


def names(tree: ast.AST) -> Iterator[str]:
    """Every name of those modules in a source, and every path below /proc."""
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=module), attr=name):
                found = [(module, name)]
            case ast.ImportFrom(module=str(module), names=aliases):
                found = [(module, alias.name) for alias in aliases]
            case ast.Constant(value=str(text)) if text.startswith("/proc"):
                yield text
                continue
            case _:
                continue
        yield from (f"{module}.{name}" for module, name in found if is_special(module, name))


def is_special(module: str, name: str) -> bool:
    return name.startswith(NAMES.get(module, ("\0",)))


def uses(path: Path) -> Iterator[str]:
    name = path.relative_to(SOURCE).as_posix()
    if not name.startswith(("storage/platform/", "sim/")):
        yield from (f"{name}: {each}" for each in names(ast.parse(path.read_text())))


def test_calls_of_one_system_are_behind_the_platform() -> None:
    found = {use for path in modules() for use in uses(path)}
    assert found - ALLOWED.keys() == set(), "use a function of kvorum.storage.platform"
    assert ALLOWED.keys() - found == set(), "an exception nobody needs"


@pytest.mark.parametrize(
    "source", ["os.fdatasync(1)", "from select import epoll", "open('/proc/self/stat')"]
)
def test_the_rule_sees_uses(source: str) -> None:
    assert list(names(ast.parse(source)))
