"""Generate the gateway's OpenAPI document from the descriptors: a `post` for each route.

Operations, schemas and field types have the names of etcd's published Swagger files, so that
clients generated from either have the same names. To update the copy in `docs/`, run
`python -m kvorum.server.http.openapi > docs/openapi.json`.
"""

import functools
import json
import sys
from typing import Final

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from kvorum.api.descriptors import Method, http_paths, methods

Json = dict[str, object]

OPENAPI_VERSION: Final = "3.0.3"
API_VERSION: Final = "3.7"
JSON_TYPE: Final = "application/json"
SCHEMAS: Final = "#/components/schemas/"
STATUS: Final = "googleRpcStatus"
STREAM_ERROR: Final = "streamError"
ANY: Final = "protobufAny"

# etcd's generator adds the package where another package has an enum of that name.
NAMES: Final = {"authpb.Permission.Type": "authpbPermissionType"}

SCALARS: Final[dict[int, Json]] = {
    # Strings, because many JSON parsers read numbers as doubles.
    FieldDescriptor.TYPE_INT64: {"type": "string", "format": "int64"},
    FieldDescriptor.TYPE_UINT64: {"type": "string", "format": "uint64"},
    FieldDescriptor.TYPE_INT32: {"type": "integer", "format": "int32"},
    # OpenAPI has no unsigned formats; use the next larger signed one.
    FieldDescriptor.TYPE_UINT32: {"type": "integer", "format": "int64"},
    FieldDescriptor.TYPE_BOOL: {"type": "boolean"},
    FieldDescriptor.TYPE_STRING: {"type": "string"},
    FieldDescriptor.TYPE_BYTES: {"type": "string", "format": "byte"},
}

DESCRIPTION: Final = (
    "The v3 API as JSON over HTTP. Keys, values and other bytes are base64; 64-bit numbers are"
    " strings, and may be sent as numbers; fields that are zero or empty are left out."
)


@functools.cache
def document_bytes() -> bytes:
    """Return the document as served and kept in `docs/`; cached."""
    return json.dumps(document(), indent=1).encode() + b"\n"


def document() -> Json:
    """Return the document; the caller may change it."""
    schemas = _Schemas()
    paths: Json = {}
    tags: list[str] = []
    for method in methods():
        service = method.descriptor.containing_service.name
        for number, path in enumerate(http_paths(method), 1):
            if service not in tags:
                tags.append(service)
            suffix = str(number) if number > 1 else ""
            paths[path] = {
                "post": {
                    "operationId": f"{service}_{method.descriptor.name}{suffix}",
                    "tags": [service],
                    "requestBody": _request(method, schemas),
                    "responses": _responses(method, schemas),
                }
            }
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "Kvorum", "description": DESCRIPTION, "version": API_VERSION},
        "servers": [{"url": "/"}],
        # Both, because a token is required only while authentication is enabled.
        "security": [{"ApiKey": []}, {}],
        "tags": [{"name": name} for name in tags],
        "paths": paths,
        "components": {
            "schemas": dict(sorted(schemas.found.items())),
            "securitySchemes": {
                "ApiKey": {"type": "apiKey", "name": "Authorization", "in": "header"}
            },
        },
    }


def _request(method: Method, schemas: "_Schemas") -> Json:
    content = _content(schemas.of_message(method.descriptor.input_type))
    if method.client_streaming:
        return {
            "description": "Any number of these, one after the other.",
            "required": True,
            "content": content,
        }
    return {"required": True, "content": content}


def _responses(method: Method, schemas: "_Schemas") -> Json:
    answer = schemas.of_message(method.descriptor.output_type)
    status = schemas.of_status()
    if not method.server_streaming:
        return {
            "200": {"description": "The answer.", "content": _content(answer)},
            "default": {"description": "An error.", "content": _content(status)},
        }
    line: Json = {
        "type": "object",
        "title": f"Stream result of {_name(method.descriptor.output_type)}",
        "properties": {"result": answer, "error": status},
    }
    return {
        "200": {
            "description": "A line for each answer; an error is the last one.",
            "content": _content(line),
        },
        "default": {
            "description": "An error before the first answer.",
            "content": _content(schemas.of_stream_error()),
        },
    }


def _content(schema: Json) -> Json:
    return {JSON_TYPE: {"schema": schema}}


def _name(descriptor: Descriptor | EnumDescriptor) -> str:
    """Return a schema's name: the enclosing package's or message's name, then the type's own."""
    full_name = descriptor.full_name
    return NAMES.get(full_name) or "".join(full_name.split(".")[-2:])


class _Schemas:
    """The schemas that routes refer to, directly or through others, by name."""

    def __init__(self) -> None:
        self.found: dict[str, Json] = {}

    def of_message(self, descriptor: Descriptor) -> Json:
        """Return a reference to the schema of a message."""
        name = _name(descriptor)
        if name not in self.found:
            schema: Json = {"type": "object"}
            # Register the schema before its fields, because a transaction may contain another.
            self.found[name] = schema
            if descriptor.fields:
                schema["properties"] = {
                    field.name: self._of_field(field) for field in descriptor.fields
                }
        return {"$ref": SCHEMAS + name}

    def of_status(self) -> Json:
        """Return a reference to the schema of an error."""
        self.found[ANY] = {
            "type": "object",
            "properties": {"@type": {"type": "string"}},
            "additionalProperties": {},
        }
        self.found[STATUS] = {
            "type": "object",
            "properties": {
                "code": {"type": "integer", "format": "int32"},
                "message": {"type": "string"},
                "details": {"type": "array", "items": {"$ref": SCHEMAS + ANY}},
            },
        }
        return {"$ref": SCHEMAS + STATUS}

    def of_stream_error(self) -> Json:
        """Return a reference to the schema of an error that is a stream's first line."""
        self.found[STREAM_ERROR] = {"type": "object", "properties": {"error": self.of_status()}}
        return {"$ref": SCHEMAS + STREAM_ERROR}

    def _of_field(self, field: FieldDescriptor) -> Json:
        if field.message_type is not None:
            schema = self.of_message(field.message_type)
        elif field.enum_type is not None:
            schema = self._of_enum(field.enum_type)
        else:
            schema = dict(SCALARS[field.type])
        return {"type": "array", "items": schema} if field.is_repeated else schema

    def _of_enum(self, descriptor: EnumDescriptor) -> Json:
        name = _name(descriptor)
        names = [value.name for value in descriptor.values]
        self.found[name] = {"type": "string", "enum": names, "default": names[0]}
        return {"$ref": SCHEMAS + name}


if __name__ == "__main__":
    sys.stdout.buffer.write(document_bytes())
