"""Kvorum: a distributed, strongly consistent key-value store, compatible with etcd v3.7.

`Client` and `AsyncClient` are its clients; everything else they need is in `kvorum.client`.

Two distributions share this package: `kvorum-client` installs this file and what the clients
import, and `kvorum`, which requires it, installs everything else.
"""

# Its own, since typing takes longer to import than everything else that is imported here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient
    from kvorum.client.sync.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]

__version__ = "0.9.0"

try:
    from kvorum import compiled
except ImportError:
    import sys

    class _ServerFinder:
        """The last finder: tells who imports a part of the server which distribution has it."""

        @staticmethod
        def find_spec(fullname: str, path: object, target: object = None) -> None:
            """Raise ModuleNotFoundError for a module of this package that no finder found."""
            del path, target
            if fullname.startswith("kvorum."):
                raise ModuleNotFoundError(
                    f"there is no module {fullname} here, because only kvorum-client is installed; "
                    "'pip install kvorum' installs the server and its tools",
                    name=fullname,
                )

    sys.meta_path.append(_ServerFinder)
else:
    compiled.install()

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Import a client when it is asked for: the server needs none."""
        if name in ("AsyncClient", "Client"):
            from kvorum import client

            return getattr(client, name)
        raise AttributeError(f"module 'kvorum' has no attribute {name!r}")
