"""Planted bugs of the JSON gateway."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import patch

from kvorum.server.http.calls import Gateway, GatewayCall


@contextmanager
def go_on_with_calls_in_json_whose_client_left() -> Iterator[None]:
    """Forget a gateway call when its client hangs up, without cancelling it in the services."""
    original = Gateway._cancel

    def cancel(gateway: Gateway, call: int, found: GatewayCall) -> None:
        found.has_begun = False
        original(gateway, call, found)

    with patch.object(Gateway, "_cancel", cancel):
        yield


@contextmanager
def send_the_line_of_another_message() -> Iterator[None]:
    """Reuse the JSON line of the previous message for a message of the same length."""
    original = Gateway.encode_message

    def encode_message(gateway: Gateway, call: int, message: bytes) -> bytes | None:
        if len(message) == len(gateway._last_message):
            gateway._last_message = message
        return original(gateway, call, message)

    with patch.object(Gateway, "encode_message", encode_message):
        yield
