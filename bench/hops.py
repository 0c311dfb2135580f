"""List every Python function that a member calls for a put, in order.

One member serves in this process, from the Python sources; a client in another thread puts one key
at a time. The shortest of several puts is shown, because ticks and duties add calls to others.
"""

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

os.environ["KVORUM_COMPILED"] = "0"  # the profiler does not see compiled functions

import grpc

import kvorum
from bench.servers import free_port
from kvorum.api.pb.etcdserverpb import PutRequest
from kvorum.process import main as process
from kvorum.process import own_process

PACKAGE = Path(kvorum.__file__).parent
PUTS = 20
WARMING_PUTS = 50


class Recorder:
    """Records the functions of the package that the loop's thread calls."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.called: list[str] = []

    def _note(self, frame: FrameType, event: str, _argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            module = path.relative_to(PACKAGE).with_suffix("")
            self.called.append(f"{module}.{frame.f_code.co_name}")

    def record(self, call: Callable[[], object]) -> list[str]:
        """Run `call`; return the functions that the loop's thread called meanwhile."""
        self._on_loop(lambda: sys.setprofile(self._note))
        call()
        self._on_loop(lambda: sys.setprofile(None))
        called, self.called = self.called, []
        return called

    def _on_loop(self, call: Callable[[], None]) -> None:
        done = threading.Event()

        def run() -> None:
            call()
            done.set()

        self._loop.call_soon_threadsafe(run)
        done.wait()


def put_and_show(recorder: Recorder, address: str, *, whole: bool) -> None:
    """Put keys, print the calls of the shortest put, and exit the process."""
    with grpc.insecure_channel(address) as channel:
        put = channel.unary_unary("/etcdserverpb.KV/Put")
        bodies = [
            PutRequest(key=b"key-%d" % number, value=b"v" * 256).SerializeToString()
            for number in range(WARMING_PUTS)
        ]
        for body in bodies:
            put(body)
        found = [recorder.record(lambda body=body: put(body)) for body in bodies[:PUTS]]  # type: ignore[misc]
    called = min(found, key=len)
    if whole:
        print("\n".join(called))
    rooms = Counter(name.split("/")[0] for name in called)
    print(f"{len(called)} calls:", ", ".join(f"{room} {rooms[room]}" for room in rooms), flush=True)
    os._exit(0)


def main() -> None:
    """Run a member, put keys, and print the calls."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--whole", action="store_true", help="list every call")
    arguments = parser.parse_args()
    client, peer = (f"http://127.0.0.1:{free_port()}" for _ in range(2))

    def ready(_logger: object) -> None:
        recorder = Recorder(asyncio.get_running_loop())
        address = client.removeprefix("http://")
        show = lambda: put_and_show(recorder, address, whole=arguments.whole)  # noqa: E731
        threading.Thread(target=show, daemon=True).start()

    setattr(own_process, "notify_ready", ready)  # noqa: B010 (it is replaced, not extended)
    with tempfile.TemporaryDirectory() as directory:
        process.run(
            [
                f"--data-dir={directory}",
                f"--listen-client-urls={client}",
                f"--advertise-client-urls={client}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--log-level=error",
            ]
        )


if __name__ == "__main__":
    main()
