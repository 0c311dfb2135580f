"""Kvorum: a distributed, strongly consistent key-value store, compatible with etcd v3.7.

`Client` and `AsyncClient` are its clients; everything else they need is in `kvorum.client`.
"""

from kvorum import compiled

# Its own, since typing takes longer to import than everything else that is imported here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]

__version__ = "0.9.0"

compiled.install()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a client when it is asked for: the server needs none."""
        if name in ("AsyncClient", "Client"):
            from kvorum import client

            return getattr(client, name)
        raise AttributeError(f"module 'kvorum' has no attribute {name!r}")
