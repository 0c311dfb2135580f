"""Which RPC a path stands for: from the table of calls and the options of the descriptors."""

from typing import Final, NamedTuple

from kvorum.api.descriptors import http_paths, methods
from kvorum.gateway.decoding import Decoder
from kvorum.gateway.encoding import Encoder
from kvorum.rpc.table import NUMBERS, RPCS, Kind


class Route(NamedTuple):
    """An RPC as the gateway sees it."""

    number: int
    """Its number in the table of calls."""
    kind: Kind
    decoder: Decoder
    """Of its requests."""
    encoder: Encoder
    """Of its answers."""


def _routes() -> dict[str, Route]:
    routes: dict[str, Route] = {}
    for method in methods():
        paths = http_paths(method)
        if paths:
            number = NUMBERS[method.path]
            route = Route(
                number,
                RPCS[number].kind,
                Decoder(method.descriptor.input_type),
                Encoder(method.descriptor.output_type),
            )
            routes.update(dict.fromkeys(paths, route))
    return routes


ROUTES: Final = _routes()
"""Every route by its path."""
