"""Load generators: h2load for rates and latencies, a gRPC client to fill a store and check answers.

An h2load process repeats one request, so a load over several keys runs several processes at once,
each with a body of its own. h2load ignores gRPC's trailers, so a real client checks once that a
request succeeds before it is measured.
"""

import re
import statistics
import subprocess
import tempfile
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from kvorum.api.pb.etcdserverpb import PutRequest, RequestOp, TxnRequest

WARM_UP_SECONDS = 1
PUTS_PER_TXN = 128
TXNS_IN_FLIGHT = 64


@dataclass(frozen=True, slots=True)
class Traffic:
    """The result of one measurement, over all its processes."""

    requests_per_second: float
    data_bytes: int
    median_seconds: float
    """The median latency; 0 if no latency was logged."""


def framed(message: bytes) -> bytes:
    """Frame a message as gRPC does."""
    return b"\0" + len(message).to_bytes(4, "big") + message


class Load:
    """Several h2load processes started together: for a time, or for `requests` requests each."""

    def __init__(
        self,
        address: str,
        path: str,
        messages: Sequence[bytes],
        *,
        connections: int,
        streams: int,
        seconds: int = 0,
        requests: int = 0,
        latencies: bool = False,
        scheme: str = "http",
        headers: Sequence[tuple[str, str]] = (),
    ) -> None:
        self._directory = tempfile.TemporaryDirectory()
        self._processes: list[subprocess.Popen[str]] = []
        self._logs: list[Path] = []
        for number, message in enumerate(messages):
            body = Path(self._directory.name, f"body{number}")
            body.write_bytes(framed(message))
            command = ["h2load", "-c", str(connections), "-m", str(streams), "-t", "1"]
            if requests:
                command += ["-n", str(requests)]
            else:
                command += ["-D", str(seconds), "--warm-up-time", str(WARM_UP_SECONDS)]
            command += ["-H", "content-type: application/grpc", "-H", "te: trailers"]
            for name, value in headers:
                command += ["-H", f"{name}: {value}"]
            command += ["-d", str(body)]
            if latencies:
                self._logs.append(Path(self._directory.name, f"log{number}"))
                command.append(f"--log-file={self._logs[-1]}")
            self._processes.append(
                subprocess.Popen(
                    [*command, f"{scheme}://{address}{path}"], stdout=subprocess.PIPE, text=True
                )
            )

    def finish(self) -> Traffic:
        """Wait for the end, and exit if any request failed."""
        outputs = [process.communicate()[0] for process in self._processes]
        try:
            rate, data = 0.0, 0
            for output in outputs:
                rates = re.search(r"([\d.]+) req/s", output)
                failed = re.search(r"(\d+) failed, (\d+) errored, (\d+) timeout", output)
                traffic = re.search(r"\((\d+)\) data", output)
                if rates is None or failed is None or traffic is None or int(failed[1]):
                    raise SystemExit(f"h2load had failures:\n{output}")
                rate += float(rates[1])
                data += int(traffic[1])
            micros = [
                int(line.split("\t")[2])
                for log in self._logs
                for line in log.open()
                if line.strip()
            ]
            return Traffic(rate, data, statistics.median(micros) / 1e6 if micros else 0.0)
        finally:
            self._directory.cleanup()


def channel(address: str) -> Any:
    """Return a real client's channel."""
    return grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])


def call(
    address: str, path: str, message: bytes, metadata: Sequence[tuple[str, str]] = ()
) -> bytes:
    """Make one call; raises grpc.RpcError if the answer is an error."""
    with channel(address) as connection:
        answer: bytes = connection.unary_unary(path)(message, timeout=30, metadata=metadata)
        return answer


def first_answer(address: str, path: str, message: bytes) -> bytes:
    """Open a stream with one message, and return the first answer."""
    with channel(address) as connection:
        answers = connection.stream_stream(path)(iter([message]), timeout=30)
        answer: bytes = next(answers)
        return answer


def fill(address: str, pairs: Iterable[tuple[bytes, bytes]]) -> None:
    """Put many keys, in transactions of many puts."""
    with channel(address) as connection:
        txn = connection.unary_unary("/etcdserverpb.KV/Txn")
        waiting: deque[Any] = deque()
        operations: list[RequestOp] = []

        def send() -> None:
            message = TxnRequest(success=operations).SerializeToString()
            waiting.append(txn.future(message, timeout=120))
            operations.clear()
            if len(waiting) >= TXNS_IN_FLIGHT:
                waiting.popleft().result()

        for key, value in pairs:
            operations.append(RequestOp(request_put=PutRequest(key=key, value=value)))
            if len(operations) == PUTS_PER_TXN:
                send()
        if operations:
            send()
        while waiting:
            waiting.popleft().result()
