"""The registry of services."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.client.recipes.naming import Service, ServiceChange, decoded, encoded
from kvorum.client.sync.client import Client


def test_services_are_found_and_watched(client: Client, name: str) -> None:
    registry = client.service_registry(name)
    registry.register("a", "127.0.0.1:1", {"zone": "x"})
    client.put(f"{name}/broken", "not JSON")
    found = client.get(f"{name}/a")
    assert found is not None
    assert found.value == b'{"Op":0,"Addr":"127.0.0.1:1","Metadata":{"zone":"x"}}'
    assert registry.services() == {"a": Service("127.0.0.1:1", {"zone": "x"})}
    changes = iter(registry.watch())
    assert next(changes) == ServiceChange("a", Service("127.0.0.1:1", {"zone": "x"}))
    with client.session(30) as session:
        registry.register("b", "127.0.0.1:2", lease=session.id)
        assert next(changes) == ServiceChange("b", Service("127.0.0.1:2"))
    assert next(changes) == ServiceChange("b", None)
    registry.unregister("a")
    assert next(changes) == ServiceChange("a", None)
    with pytest.raises(ValueError, match="needs a name"):
        registry.register("", "127.0.0.1:3")


texts = st.text(st.characters(codec="utf-8"), max_size=8)
metadata_values = st.none() | texts | st.integers() | st.dictionaries(texts, texts, max_size=2)


@settings(max_examples=30, deadline=None)
@given(texts, metadata_values)
def test_a_service_is_read_as_it_was_written(address: str, metadata: object) -> None:
    assert decoded(encoded(Service(address, metadata))) == Service(address, metadata)


@pytest.mark.parametrize("value", [b"", b"\xff", b"[]", b"7", b'{"Addr":7}', b"null", b'{"Addr"'])
def test_what_is_no_service_is_left_out(value: bytes) -> None:
    assert decoded(value) is None
