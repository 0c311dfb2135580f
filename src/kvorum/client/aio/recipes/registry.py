"""A registry of services: their names and addresses."""

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from kvorum.client.errors import WatchCompactedError
from kvorum.client.keys import Text, as_bytes
from kvorum.client.recipes.naming import Service, ServiceChange, decoded, encoded

if TYPE_CHECKING:
    from kvorum.client.aio.client import AsyncClient


class AsyncServiceRegistry:
    """The services of one target, which Go's gRPC resolver finds as `etcd:///target`."""

    def __init__(self, client: "AsyncClient", target: Text) -> None:
        self._client = client
        self._prefix = as_bytes(target) + b"/"

    async def register(
        self,
        name: str,
        address: str,
        metadata: Any = None,
        *,
        lease: int = 0,
        timeout: float | None = None,
    ) -> None:
        """Register a service; with a session's id as lease, until that session ends."""
        value = encoded(Service(address, metadata))
        await self._client.put(self._key(name), value, lease=lease, timeout=timeout)

    async def unregister(self, name: str, timeout: float | None = None) -> None:
        """Remove a service."""
        await self._client.delete(self._key(name), timeout=timeout)

    async def services(self) -> dict[str, Service]:
        """Return all services by name, without values that describe none."""
        found = {}
        async for each in self._client.range(prefix=self._prefix):
            service = decoded(each.value)
            if service is not None:
                found[self._name(each.key)] = service
        return found

    async def watch(self) -> AsyncIterator[ServiceChange]:
        """Iterate over the present services, then over every change, for ever."""
        known: dict[str, Service] = {}
        while True:
            page = await self._client.read(prefix=self._prefix)
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
                async with self._client.watch(
                    prefix=self._prefix, revision=page.revision + 1
                ) as watch:
                    async for event in watch:
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
