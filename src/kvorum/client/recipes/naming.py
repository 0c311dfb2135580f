"""How services are written down: the format of Go's package for naming."""

import json
from typing import Any, NamedTuple


class Service(NamedTuple):
    """Where a service can be reached."""

    address: str
    metadata: Any = None
    """Whatever JSON can hold."""


class ServiceChange(NamedTuple):
    """A service that came, changed or went."""

    name: str
    service: Service | None
    """None if it has gone."""


def encoded(service: Service) -> bytes:
    """Return the value of a service's key."""
    fields = {"Op": 0, "Addr": service.address, "Metadata": service.metadata}
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def decoded(value: bytes) -> Service | None:
    """Return the service that a value describes; None if it is not one."""
    try:
        fields = json.loads(value)
    except ValueError:
        return None
    if not isinstance(fields, dict) or not isinstance(fields.get("Addr", ""), str):
        return None
    return Service(fields.get("Addr", ""), fields.get("Metadata"))
