"""A process that holds a lock again and again, and writes down when: `holder.py ADDRESS NAME FILE`.

It ends in the midst of holding if it is killed; then it has written a beginning and no end.
"""

import os
import sys

from kvorum.client.errors import KvorumError
from kvorum.client.sync.client import Client

STEPS = 3


def main(address: str, name: str, path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    with Client(address, timeout=20) as client:
        os.write(1, b"ready\n")
        while True:
            lock = client.lock(name, ttl=2)
            try:
                with lock:
                    fencing = lock.fencing
                    os.write(file, b"+%d\n" % fencing)
                    for step in range(STEPS):
                        client.put(f"{name}-work", f"{os.getpid()} {step}")
                    # Whoever has lost the lock knows that by now, and says so.
                    os.write(file, (b"-%d\n" if lock.is_held else b"?%d\n") % fencing)
            except KvorumError as error:
                os.write(2, f"{error}\n".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
