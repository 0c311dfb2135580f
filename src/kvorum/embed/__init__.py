"""A member inside a Python program: started by a call, and ended with it.

from kvorum.embed import Config, Server

with Server(Config(ephemeral=True)) as server, server.client() as client:
    client.put("key", "value")
"""

from kvorum.embed.config import Config, ConfigError
from kvorum.embed.errors import StartError
from kvorum.embed.server import Server

__all__ = ["Config", "ConfigError", "Server", "StartError"]
