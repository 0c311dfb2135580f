"""The RPC of each path, from the table of RPCs and the HTTP options of the descriptors."""

from typing import Final, NamedTuple

from kvorum.api.descriptors import http_paths, methods
from kvorum.server.http.decoding import JsonDecoder
from kvorum.server.http.encoding import Encoder
from kvorum.server.rpc.table import NUMBERS, RPCS, RpcKind


class Route(NamedTuple):
    """An RPC with the codecs of its JSON."""

    number: int
    """The RPC's number in `kvorum.server.rpc.table`."""
    kind: RpcKind
    decoder: JsonDecoder
    """Decoder of requests."""
    encoder: Encoder
    """Encoder of answers."""


def _routes() -> dict[str, Route]:
    routes: dict[str, Route] = {}
    for method in methods():
        paths = http_paths(method)
        if paths:
            number = NUMBERS[method.path]
            route = Route(
                number,
                RPCS[number].kind,
                JsonDecoder(method.descriptor.input_type),
                Encoder(method.descriptor.output_type),
            )
            routes.update(dict.fromkeys(paths, route))
    return routes


ROUTES: Final = _routes()
"""Every route by its path."""
