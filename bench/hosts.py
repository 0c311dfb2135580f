"""Hosts on this machine that can fall silent: network namespaces on one bridge. Needs root.

A silent host keeps running, but none of its packets arrive anywhere: nothing refuses or resets its
connections, as with a machine that has lost its power or its cable.
"""

import os
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

NETWORK = "10.213.77"


@dataclass(frozen=True, slots=True)
class Host:
    """A simulated host for one server."""

    name: str
    address: str

    @property
    def command(self) -> list[str]:
        """The command prefix that runs a program on the host."""
        return ["ip", "netns", "exec", self.name]

    def silence(self) -> None:
        """Drop all packets from and to the host."""
        _ip("link", "set", self.name, "down")

    def speak(self) -> None:
        """Let packets pass again."""
        _ip("link", "set", self.name, "up")


def can_be_made() -> bool:
    """Return whether this process has the rights to make hosts."""
    return os.geteuid() == 0


@contextmanager
def running_hosts(count: int) -> Iterator[list[Host]]:
    """Make `count` hosts that exist within the block."""
    bridge = f"kb{os.getpid()}"
    with ExitStack() as stack:
        _ip("link", "add", bridge, "type", "bridge")
        stack.callback(_ip, "link", "del", bridge)
        _ip("address", "add", f"{NETWORK}.1/24", "dev", bridge)
        _ip("link", "set", bridge, "up")
        hosts = [Host(f"{bridge}h{number}", f"{NETWORK}.{number + 2}") for number in range(count)]
        for host in hosts:
            _ip("netns", "add", host.name)
            stack.callback(_ip, "netns", "del", host.name)
            inside = ("link", "add", host.name, "type", "veth", "peer", "name", "eth0")
            _ip(*inside, "netns", host.name)
            _ip("link", "set", host.name, "master", bridge, "up")
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            _ip("-n", host.name, "link", "set", "eth0", "up")
            _ip("-n", host.name, "link", "set", "lo", "up")
        yield hosts


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)
