"""Print messages as text on one line, in the form of etcd's dump tools.

The form is `name:value` for each set field, in the order of the message's definition, each followed
by a blank; messages in angle brackets; bytes and strings in quotes, with octal escapes.
"""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor

_ESCAPES = {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t", ord('"'): '\\"', 92: "\\\\"}
_BYTES = [
    _ESCAPES.get(byte, chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}") for byte in range(256)
]


def octal_quoted(data: bytes) -> str:
    """Quote bytes; all but printable ASCII become octal escapes."""
    if data.isascii() and b'"' not in data and b"\\" not in data:
        text = data.decode()
        if text.isprintable():
            return f'"{text}"'
    return '"' + "".join([_BYTES[byte] for byte in data]) + '"'


def prototext(message: Any) -> str:
    """Return a message as text; empty if nothing in it is set."""
    parts: list[str] = []
    for field in message.DESCRIPTOR.fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            parts.extend(_field(field, each) for each in value)
        elif field.containing_oneof is not None or field.message_type is not None:
            if message.HasField(field.name):
                parts.append(_field(field, value))
        elif value:
            parts.append(_field(field, value))
    return "".join(parts)


def _field(field: Any, value: Any) -> str:
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        return f"{field.name}:<{prototext(value)}> "
    if field.type == FieldDescriptor.TYPE_ENUM:
        known = field.enum_type.values_by_number.get(value)
        return f"{field.name}:{value if known is None else known.name} "
    if field.type == FieldDescriptor.TYPE_BOOL:
        return f"{field.name}:{'true' if value else 'false'} "
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogateescape")
    return f"{field.name}:{octal_quoted(value) if isinstance(value, bytes) else value} "
