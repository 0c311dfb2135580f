"""The OpenAPI document: what the descriptors give, complete, and true of every message."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given, settings
from hypothesis import strategies as st

from kvorum.api.descriptors import methods
from kvorum.server.http.openapi import document, document_bytes

REPOSITORY = Path(__file__).parents[3]
DOCUMENT: dict[str, Any] = document()
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
OPERATIONS = {path: item["post"] for path, item in DOCUMENT["paths"].items()}
METHODS = {
    f"{method.descriptor.containing_service.name}_{method.descriptor.name}": method
    for method in methods()
}
BOUNDS = {
    "int32": (-(1 << 31), 1 << 31),
    "int64": (-(1 << 63), 1 << 63),
    "uint64": (0, 1 << 64),
}


def routes() -> list[str]:
    """Every route, as the text of the `.proto` files has them."""
    texts = (path.read_text() for path in sorted((REPOSITORY / "proto").glob("*/*.proto")))
    return [route for text in texts for route in re.findall(r'\bpost: "([^"]+)"', text)]


def references(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        if "$ref" in value:
            yield value["$ref"]
        for inner in value.values():
            yield from references(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from references(inner)


def named(reference: str) -> str:
    prefix, _, name = reference.rpartition("/")
    assert prefix == "#/components/schemas"
    return name


def content(part: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = part["content"]["application/json"]["schema"]
    return schema


class InvalidError(Exception):
    """A value is not what its schema says."""


def validate(value: object, schema: dict[str, Any]) -> None:
    """Check a value; unlike in OpenAPI, no property may be there that the schema does not name."""
    if "$ref" in schema:
        schema = SCHEMAS[named(schema["$ref"])]
    kind = schema["type"]
    types = {"object": dict, "array": list, "string": str, "integer": int, "boolean": bool}
    if type(value) is not types[kind]:
        raise InvalidError(f"{value!r} is no {kind}")
    if isinstance(value, dict):
        properties = schema.get("properties", {})
        if not value.keys() <= properties.keys():
            raise InvalidError(f"{sorted(value)} are not all in {sorted(properties)}")
        for name, inner in value.items():
            validate(inner, properties[name])
    elif isinstance(value, list):
        for inner in value:
            validate(inner, schema["items"])
    elif not is_in_format(value, schema):
        raise InvalidError(f"{value!r} does not fit {schema}")


def is_in_format(value: object, schema: dict[str, Any]) -> bool:
    if "enum" in schema:
        return value in schema["enum"]
    form = schema.get("format")
    if form == "byte":
        try:
            return bool(
                base64.b64encode(base64.b64decode(str(value), validate=True)).decode() == value
            )
        except ValueError:
            return False
    if form in BOUNDS:
        low, high = BOUNDS[form]
        return re.fullmatch(r"-?\d+", str(value)) is not None and low <= int(str(value)) < high
    return True


# Messages of any kind, few levels deep.

NUMBERS = {
    FieldDescriptor.TYPE_INT64: BOUNDS["int64"],
    FieldDescriptor.TYPE_UINT64: BOUNDS["uint64"],
    FieldDescriptor.TYPE_INT32: BOUNDS["int32"],
    FieldDescriptor.TYPE_UINT32: (0, 1 << 32),
}


def values(field: FieldDescriptor, depth: int) -> st.SearchStrategy[Any]:
    if field.message_type is not None:
        return messages(field.message_type, depth - 1)
    if field.enum_type is not None:
        return st.sampled_from([value.number for value in field.enum_type.values])
    if field.type in NUMBERS:
        low, high = NUMBERS[field.type]
        return st.integers(low, high - 1)
    if field.type == FieldDescriptor.TYPE_BOOL:
        return st.booleans()
    return (
        st.binary(max_size=5) if field.type == FieldDescriptor.TYPE_BYTES else st.text(max_size=5)
    )


@st.composite
def messages(draw: st.DrawFn, descriptor: Descriptor, depth: int = 3) -> Message:
    fields = [field for field in descriptor.fields if depth or field.message_type is None]
    chosen = draw(st.lists(st.sampled_from(fields), unique=True)) if fields else []
    # Of a oneof, protobuf keeps the last.
    drawn = {}
    for field in chosen:
        value = values(field, depth)
        drawn[field.name] = draw(st.lists(value, max_size=3) if field.is_repeated else value)
    return GetMessageClass(descriptor)(**drawn)


def as_json(message: Message) -> dict[str, Any]:
    written: dict[str, Any] = MessageToDict(message, preserving_proto_field_name=True)
    return written


# The document.


def test_the_page_in_the_documentation_is_this_document() -> None:
    written = (REPOSITORY / "docs" / "openapi.json").read_bytes()
    assert written == document_bytes(), (
        "run python -m kvorum.server.http.openapi > docs/openapi.json"
    )
    assert json.loads(written) == DOCUMENT


def test_every_route_is_there_once() -> None:
    assert sorted(OPERATIONS) == sorted(routes())
    assert len(OPERATIONS) == 51
    assert all(list(item) == ["post"] for item in DOCUMENT["paths"].values())


def test_operations_have_names_of_their_own() -> None:
    names = [operation["operationId"] for operation in OPERATIONS.values()]
    assert len(names) == len(set(names))
    assert OPERATIONS["/v3/kv/range"]["operationId"] == "KV_Range"
    assert OPERATIONS["/v3/lease/leases"]["operationId"] == "Lease_LeaseLeases"
    assert OPERATIONS["/v3/kv/lease/leases"]["operationId"] == "Lease_LeaseLeases2"
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert tags == {name for operation in OPERATIONS.values() for name in operation["tags"]}


def test_every_reference_leads_to_a_schema_and_every_schema_is_referred_to() -> None:
    assert {named(reference) for reference in references(DOCUMENT)} == SCHEMAS.keys()


def test_requests_and_answers_are_those_of_the_method() -> None:
    for path, operation in OPERATIONS.items():
        method = METHODS[operation["operationId"].rstrip("2")]
        request, response = (
            "".join(descriptor.full_name.rsplit(".", 2))
            for descriptor in (method.descriptor.input_type, method.descriptor.output_type)
        )
        assert named(content(operation["requestBody"])["$ref"]) == request, path
        answer = content(operation["responses"]["200"])
        error = content(operation["responses"]["default"])
        if method.server_streaming:
            assert named(answer["properties"]["result"]["$ref"]) == response, path
            assert named(answer["properties"]["error"]["$ref"]) == "googleRpcStatus", path
            validate({"error": {"code": 14, "message": "text"}}, error)
        else:
            assert named(answer["$ref"]) == response, path
            validate({"code": 14, "message": "text"}, error)


@pytest.mark.parametrize("path", OPERATIONS)
@settings(max_examples=25)
@given(data=st.data())
def test_messages_are_what_their_schemas_say(path: str, data: st.DataObject) -> None:
    operation = OPERATIONS[path]
    method = METHODS[operation["operationId"].rstrip("2")]
    request = data.draw(messages(method.descriptor.input_type))
    validate(as_json(request), content(operation["requestBody"]))
    response = as_json(data.draw(messages(method.descriptor.output_type)))
    line = {"result": response} if method.server_streaming else response
    validate(line, content(operation["responses"]["200"]))


@given(messages(METHODS["Auth_RoleGrantPermission"].descriptor.input_type), st.data())
def test_what_a_schema_does_not_say_is_noticed(message: Message, data: st.DataObject) -> None:
    schema = content(OPERATIONS["/v3/auth/role/grant"]["requestBody"])
    written = as_json(message)
    wrong: tuple[str, object] = data.draw(
        st.sampled_from(
            [
                ("permType", 1),
                ("permType", "OTHER"),
                ("key", "a"),
                ("key", ["YQ=="]),
                ("rangeEnd", "YQ=="),
            ]
        )
    )
    written.setdefault("perm", {}).update([wrong])
    with pytest.raises(InvalidError):
        validate(written, schema)
