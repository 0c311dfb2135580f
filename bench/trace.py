"""Trace a put's system calls, and check that its answer leaves after fdatasync has returned.

The script runs our server under strace, puts a few keys one after the other, prints the system
calls of each put, and exits with an error if an answer left before its log entry was durable. Run
it as `make trace-put`.
"""

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc

from bench.servers import Server, running
from kvorum.api.pb.etcdserverpb import PutRequest

PUTS = 5
CALLS = "trace=pwrite64,fdatasync,write,writev,sendto,sendmsg,recvfrom,read,recvmsg"
MARK = b"put-number-"
ANSWER_CHARACTERS = 120
_LINE = re.compile(r"\d+ +([\d.]+) (<\.\.\. )?(\w+)")


def traced(server: Server, path: Path) -> list[str]:
    """Put a few keys while strace is attached; return the trace's lines."""
    command = ["strace", "-f", "-ttt", "-s", "4096", "-e", CALLS, "-o", str(path)]
    tracer = subprocess.Popen([*command, "-p", str(server.pid)], stderr=subprocess.PIPE)
    assert tracer.stderr is not None
    tracer.stderr.readline()  # strace is attached after this line
    with grpc.insecure_channel(server.address) as channel:
        put = channel.unary_unary("/etcdserverpb.KV/Put")
        for number in range(PUTS):
            request = PutRequest(key=b"%b%d" % (MARK, number), value=b"v" * 16)
            put(request.SerializeToString(), timeout=30)
            time.sleep(0.3)  # the database flush ends here, and stays separate in the trace
    tracer.terminate()
    tracer.wait()
    return path.read_text().splitlines()


def story(lines: list[str], number: int) -> list[str]:
    """Return the trace's lines from the arrival of a put to its answer."""
    mark = f"{MARK.decode()}{number}"
    begin = next(i for i, line in enumerate(lines) if mark in line)
    told = []
    has_written = False
    for line in lines[begin:]:
        found = _LINE.match(line)
        if found is None:
            continue
        told.append(line[:150])
        call = found[3]
        has_written = has_written or call == "pwrite64"
        # The answer is long; a write that only wakes a thread has eight bytes.
        is_sent = call in ("write", "writev", "sendto", "sendmsg") and len(line) > ANSWER_CHARACTERS
        if has_written and is_sent:
            return told
    return told


def main() -> None:
    """Trace puts, print their system calls, and check their order."""
    with tempfile.TemporaryDirectory() as directory, running("kvorum", Path(directory)) as server:
        lines = traced(server, Path(directory, "trace"))
    for number in range(PUTS):
        told = story(lines, number)
        print(f"put {number}:")
        print("\n".join(f"  {line}" for line in told))
        names = [found[3] for line in told if (found := _LINE.match(line))]
        if "fdatasync" not in names or names.index("fdatasync") < names.index("pwrite64"):
            sys.exit(f"put {number} was answered before its fdatasync")
    print(f"{PUTS} puts, every answer after its fdatasync")


if __name__ == "__main__":
    main()
