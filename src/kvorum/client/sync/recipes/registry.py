# Written by `make client` from kvorum/client/aio; change that.
"""A registry of services: who serves under a name, and where."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvorum.client.errors import WatchCompactedError
from kvorum.client.keys import Text, as_bytes
from kvorum.client.recipes.naming import Service, ServiceChange, decoded, encoded

if TYPE_CHECKING:
    from kvorum.client.sync.client import Client


class ServiceRegistry:
    """The services of one target, as Go's resolver for gRPC finds them: `etcd:///target`."""

    def __init__(self, client: "Client", target: Text) -> None:
        self._client = client
        self._prefix = as_bytes(target) + b"/"

    def register(
        self,
        name: str,
        address: str,
        metadata: Any = None,
        *,
        lease: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Say where a service is; with a session's id as lease, until that has ended."""
        value = encoded(Service(address, metadata))
        self._client.put(self._key(name), value, lease=lease, timeout=timeout)

    def unregister(self, name: str, timeout: float | None = None) -> None:
        """Say that a service is not there any more."""
        self._client.delete(self._key(name), timeout=timeout)

    def services(self) -> dict[str, Service]:
        """Return all services by name; what is not one is left out."""
        found = {}
        for each in self._client.range(prefix=self._prefix):
            service = decoded(each.value)
            if service is not None:
                found[self._name(each.key)] = service
        return found

    def watch(self) -> Iterator[ServiceChange]:
        """Go through the services that there are, then through every change, for ever."""
        known: dict[str, Service] = {}
        while True:
            page = self._client.read(prefix=self._prefix)
            found = {}
            for each in page.kvs:
                service = decoded(each.value)
                if service is not None:
                    found[self._name(each.key)] = service
            for name in sorted(known.keys() - found.keys()):
                yield ServiceChange(name, None)
            for name, service in found.items():
                if known.get(name) != service:
                    yield ServiceChange(name, service)
            known = found
            try:
                with self._client.watch(prefix=self._prefix, revision=page.revision + 1) as watch:
                    for event in watch:
                        service = decoded(event.value) if event.is_put else None
                        name = self._name(event.key)
                        if service is not None:
                            known[name] = service
                        elif known.pop(name, None) is None:
                            continue
                        yield ServiceChange(name, service)
                    return
            except WatchCompactedError:
                continue

    def _key(self, name: str) -> bytes:
        if not name:
            raise ValueError("a service needs a name, and none was given")
        return self._prefix + name.encode()

    def _name(self, key: bytes) -> str:
        return key[len(self._prefix) :].decode(errors="replace")
