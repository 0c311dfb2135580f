"""Real etcd members that reach each other through taps, which keep every byte that passes.

Each member advertises the address of its tap; the tap passes connections on to where the member
listens. What a member sends on the streams that others read can be taken from its tap.
"""

import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tests.etcd import Etcd, binary
from tests.ports import held_ports


class Passage:
    """The bytes of one connection, in both directions."""

    def __init__(self) -> None:
        self.asked = bytearray()
        self.answered = bytearray()


class Tap:
    """Passes connections on and records what they carry."""

    def __init__(self, target_port: int) -> None:
        self.passages: list[Passage] = []
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._sockets.append(client)
            try:
                server = socket.create_connection(("127.0.0.1", self._target_port))
            except OSError:
                client.close()
                continue
            self._sockets.append(server)
            passage = Passage()
            self.passages.append(passage)
            self._start(self._pass, client, server, passage.asked)
            self._start(self._pass, server, client, passage.answered)

    @staticmethod
    def _pass(source: socket.socket, target: socket.socket, kept: bytearray) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                kept += data
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        # The thread in accept is woken by the shutdown, not by the close.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


class Stream(NamedTuple):
    """What a member was asked for by a GET, and the body of its answer."""

    target: str
    headers: dict[str, str]
    answer_headers: dict[str, str]
    body: bytes


def streams(tap: Tap) -> list[Stream]:
    """Return the streams that were read through a tap, as far as they got."""
    found = []
    for passage in tap.passages:
        asked, answered = bytes(passage.asked), bytes(passage.answered)
        if not asked.startswith(b"GET /raft/stream/") or not answered.startswith(b"HTTP/1.1 200"):
            continue
        line, headers = _head(asked)
        _, answer_headers = _head(answered)
        body = _dechunked(answered[answered.index(b"\r\n\r\n") + 4 :])
        found.append(Stream(line.split(" ")[1], headers, answer_headers, body))
    return found


def _head(data: bytes) -> tuple[str, dict[str, str]]:
    first, *lines = data[: data.index(b"\r\n\r\n")].decode().split("\r\n")
    pairs = [line.partition(": ") for line in lines]
    return first, {name.lower(): value for name, _, value in pairs}


def _dechunked(data: bytes) -> bytes:
    """Return the content of complete chunks; the last one may have been cut off."""
    content, start = b"", 0
    while (end := data.find(b"\r\n", start)) >= 0:
        length = int(data[start:end], 16)
        if not length or end + 2 + length > len(data):
            break
        content += data[end + 2 : end + 2 + length]
        start = end + 2 + length + 2
    return content


class Member(NamedTuple):
    """A running member, where others reach it, and where it really listens."""

    name: str
    etcd: Etcd
    peer_url: str
    peer_port: int
    tap: Tap


@contextmanager
def running_members(directory: Path, count: int, *flags: str) -> Iterator[list[Member]]:
    """Run a cluster of real members for as long as the block takes."""
    with ExitStack() as stack:
        names = [f"m{number}" for number in range(count)]
        ports = stack.enter_context(held_ports(2 * count))
        peer_ports, client_ports = ports[:count], ports[count:]
        taps = [Tap(port) for port in peer_ports]
        for tap in taps:
            stack.callback(tap.close)
        urls = [f"http://127.0.0.1:{tap.port}" for tap in taps]
        cluster = ",".join(f"{name}={url}" for name, url in zip(names, urls, strict=True))
        processes = []
        for place, name in enumerate(names):
            client = f"http://127.0.0.1:{client_ports[place]}"
            command = [
                str(binary("etcd")),
                f"--name={name}",
                f"--data-dir={directory / name}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer_ports[place]}",
                f"--initial-advertise-peer-urls={urls[place]}",
                f"--initial-cluster={cluster}",
                "--unsafe-no-fsync",
                *flags,
            ]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            processes.append(process)
            stack.callback(_end, process)
        members = []
        for place, process in enumerate(processes):
            _wait_until_serving(process)
            etcd = Etcd(client_ports[place], process)
            members.append(Member(names[place], etcd, urls[place], peer_ports[place], taps[place]))
        yield members


def _wait_until_serving(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if "serving client traffic " in line:
            break
    else:
        raise AssertionError(f"etcd ended with {process.wait()}:\n{''.join(lines)}")
    # Its log is read all the time, so that it never waits for a full pipe.
    threading.Thread(target=_drain, args=(process,)).start()


def _drain(process: "subprocess.Popen[str]") -> None:
    assert process.stderr is not None
    with process.stderr as log:
        log.read()


def _end(process: "subprocess.Popen[str]") -> None:
    process.kill()
    process.wait()
