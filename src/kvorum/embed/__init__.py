"""A member inside a Python program: started by a call, and ended with the program.

    from kvorum.embed import Config, Server

    with Server(Config(ephemeral=True)) as server, server.client() as client:
        client.put("key", "value")

`Server` runs the member in a thread of the program, and its clients need no socket.
`ProcessServer` runs it in a process of its own, for programs that compute a lot: their work would
slow a thread down.
"""

from kvorum.embed.config import Config, ConfigError
from kvorum.embed.errors import StartError, StoppedError
from kvorum.embed.process import ProcessServer
from kvorum.embed.server import Server

__all__ = [
    "Config",
    "ConfigError",
    "ProcessServer",
    "Server",
    "StartError",
    "StoppedError",
    "start",
]


def start(config: Config | None = None, *, computes: bool = False) -> Server | ProcessServer:
    """Start a member, and return it when it is ready; close it when done.

    A program that `computes` a lot gets a member in a process of its own.
    """
    return (ProcessServer if computes else Server)(config).start()
