"""Write the client for threads from the client for asyncio: the same source without await.

Every module of `kvorum/client/aio` becomes one of `kvorum/client/sync`. The script replaces
asyncio's names with their counterparts for threads, and changes nothing else.
"""

import io
import subprocess
import sys
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "kvorum" / "client" / "aio"
TARGET = SOURCE.with_name("sync")

WORDS = {
    "AsyncAuth": "Auth",
    "AsyncBarrier": "Barrier",
    "AsyncCache": "Cache",
    "AsyncCarrier": "Carrier",
    "AsyncClient": "Client",
    "AsyncCounter": "Counter",
    "AsyncDoubleBarrier": "DoubleBarrier",
    "AsyncElection": "Election",
    "AsyncHolder": "Holder",
    "AsyncItems": "Items",
    "AsyncIterator": "Iterator",
    "AsyncKubernetes": "Kubernetes",
    "AsyncLease": "Lease",
    "AsyncLeasing": "Leasing",
    "AsyncLock": "Lock",
    "AsyncMaintenance": "Maintenance",
    "AsyncMembers": "Members",
    "AsyncMessages": "Messages",
    "AsyncMirror": "Mirror",
    "AsyncOrdering": "Ordering",
    "AsyncDeadline": "Deadline",
    "AsyncPriorityQueue": "PriorityQueue",
    "AsyncQueue": "Queue",
    "AsyncReadLock": "ReadLock",
    "AsyncReadWriteLock": "ReadWriteLock",
    "AsyncRecipes": "Recipes",
    "AsyncSemaphore": "Semaphore",
    "AsyncServiceRegistry": "ServiceRegistry",
    "AsyncSession": "Session",
    "AsyncStm": "Stm",
    "AsyncTxn": "Txn",
    "AsyncWatch": "Watch",
    "AsyncWriteLock": "WriteLock",
    "LoopClient": "ThreadedClient",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "aio": "sync",
    "asyncio": "threads",
    "loop": "threads",
}


HEAD = "# Written by `make client` from kvorum/client/aio; change that.\n"


def translated(source: str) -> str:
    """Return a module's source for threads."""
    lines = source.splitlines(keepends=True)
    # From the end on, so that earlier positions stay valid.
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(source).readline))):
        (row, start), (last, stop) = token.start, token.end
        if row != last or token.type not in (tokenize.NAME, tokenize.STRING):
            continue
        line, text = lines[row - 1], token.string
        if token.type == tokenize.NAME and text in ("async", "await"):
            lines[row - 1] = line[:start] + line[stop:].removeprefix(" ")
        elif token.type == tokenize.NAME and text in WORDS:
            lines[row - 1] = line[:start] + WORDS[text] + line[stop:]
        elif token.type == tokenize.STRING:
            for word, other in WORDS.items():
                if word.startswith("Async"):
                    text = text.replace(word, other)
            lines[row - 1] = line[:start] + text + line[stop:]
    return _linted(HEAD + "".join(lines))


def _linted(source: str) -> str:
    ruff = [sys.executable, "-m", "ruff"]
    for command in (
        [
            "check",
            "--quiet",
            "--select=I,UP028",
            # The isort rule must also treat modules that are not written yet as first-party.
            "--config=lint.isort.known-first-party=['kvorum']",
            "--unsafe-fixes",
            "--fix-only",
        ],
        ["format", "--quiet"],
    ):
        arguments = [*ruff, *command, "--stdin-filename=kvorum/client/sync/module.py", "-"]
        source = subprocess.run(
            arguments, input=source, text=True, check=True, capture_output=True
        ).stdout
    return source


def main() -> None:
    """Write all modules."""
    TARGET.mkdir(exist_ok=True)
    for path in SOURCE.rglob("*.py"):
        target = TARGET / path.relative_to(SOURCE)
        target.parent.mkdir(exist_ok=True)
        target.write_text(translated(path.read_text()))


if __name__ == "__main__":
    main()
