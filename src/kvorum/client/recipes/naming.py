"""The values that describe services, in the format of Go's naming package."""

import json
from typing import Any, NamedTuple


class Service(NamedTuple):
    """The address and metadata of a service."""

    address: str
    metadata: Any = None
    """Any value that JSON can represent."""


class ServiceChange(NamedTuple):
    """A service that was added, changed or removed."""

    name: str
    service: Service | None
    """None if the service was removed."""


def encoded(service: Service) -> bytes:
    """Return the value of a service's key."""
    fields = {"Op": 0, "Addr": service.address, "Metadata": service.metadata}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decoded(value: bytes) -> Service | None:
    """Return the service that a value describes; None if the value has another format."""
    try:
        fields = json.loads(value)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("Addr", ""), str):
        return None
    return Service(fields.get("Addr", ""), fields.get("Metadata"))
