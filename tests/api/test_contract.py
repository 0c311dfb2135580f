"""The `.proto` files say what the reference table of the compatible surface says."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.descriptor import (
    Descriptor,
    EnumDescriptor,
    FieldDescriptor,
    FileDescriptor,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto

from kvorum.api.descriptors import POOL, contract_files, methods, option

REPOSITORY = Path(__file__).parents[2]
REFERENCE = REPOSITORY.parent / "shared" / "reference" / "api-messages.yaml"

TYPE_NAMES = {
    FieldDescriptor.TYPE_BOOL: "bool",
    FieldDescriptor.TYPE_BYTES: "bytes",
    FieldDescriptor.TYPE_INT64: "int64",
    FieldDescriptor.TYPE_STRING: "string",
    FieldDescriptor.TYPE_UINT32: "uint32",
    FieldDescriptor.TYPE_UINT64: "uint64",
}


@pytest.fixture(scope="module")
def reference() -> Any:
    if not REFERENCE.exists():
        pytest.skip(f"no reference table at {REFERENCE}")
    return yaml.safe_load(REFERENCE.read_text())


def entries(reference: Any, kind: str) -> dict[str, Any]:
    """Every message, enum or service of the reference, by its full name."""
    found = {}
    for file in reference["files"]:
        for entry in file.get(kind, []):
            found[entry["name"]] = entry
        if kind == "enums":
            for message in file.get("messages", []):
                found.update((entry["name"], entry) for entry in message.get("enums", []))
    return found


def all_messages() -> Iterator[Descriptor]:
    for file in contract_files():
        for message in file.message_types_by_name.values():
            assert not message.nested_types, "no message of the contract is nested"
            yield message


def all_enums() -> Iterator[EnumDescriptor]:
    for file in contract_files():
        yield from file.enum_types_by_name.values()
    for message in all_messages():
        yield from message.enum_types


def with_since(row: dict[str, Any], descriptor: Any, mark: str) -> dict[str, Any]:
    if since := option(descriptor, f"versionpb.etcd_version_{mark}"):
        row["since"] = since
    return row


def field_row(field: FieldDescriptor, file: FileDescriptor) -> dict[str, Any]:
    """Describe a field the way the reference does."""
    row: dict[str, Any] = {"num": field.number, "name": field.name}
    if field.json_name != field.name:
        row["json"] = field.json_name
    if field.message_type is not None:
        row |= {"type": field.message_type.full_name, "kind": "message"}
    elif field.enum_type is not None:
        row |= {"type": field.enum_type.full_name, "kind": "enum"}
    else:
        row["type"] = TYPE_NAMES[field.type]
    wire_type = 0 if row["type"] in ("bool", "int64", "uint32", "uint64") else 2
    if row.get("kind") == "enum":
        wire_type = 0
    if field.is_repeated:
        row["label"] = "repeated"
        if wire_type == 0:
            row["packed"] = field.is_packed
            wire_type = 2 if field.is_packed else 0
    elif field.containing_oneof is not None:
        row |= {"label": "oneof", "oneof": field.containing_oneof.name}
    else:
        row["label"] = "optional" if is_proto2(file) else "singular"
    tag, key = "", field.number << 3 | wire_type
    while key >= 0x80:
        tag, key = f"{tag}{key & 0x7F | 0x80:02x}", key >> 7
    row["tag"] = f"{tag}{key:02x}"
    return with_since(row, field, "field")


def is_proto2(file: FileDescriptor) -> bool:
    proto = FileDescriptorProto()
    file.CopyToProto(proto)
    return proto.syntax in ("", "proto2")


def test_messages(reference: Any) -> None:
    expected = entries(reference, "messages")
    assert {message.full_name for message in all_messages()} == expected.keys()
    for message in all_messages():
        wanted = expected[message.full_name]
        # The reference lists declaration order, which is the order of JSON output.
        assert [field_row(field, message.file) for field in message.fields] == wanted["fields"]
        assert [oneof.name for oneof in message.oneofs] == wanted.get("oneofs", [])
        assert option(message, "versionpb.etcd_version_msg") == wanted.get("since", "")


def test_enums(reference: Any) -> None:
    expected = entries(reference, "enums")
    assert {enum.full_name for enum in all_enums()} == expected.keys()
    for enum in all_enums():
        wanted = expected[enum.full_name]
        rows = [
            with_since({"num": value.number, "name": value.name}, value, "enum_value")
            for value in enum.values
        ]
        assert rows == wanted["values"]
        assert option(enum, "versionpb.etcd_version_enum") == wanted.get("since", "")


def test_extensions(reference: Any) -> None:
    for file in reference["files"]:
        for wanted in file.get("extensions", []):
            extension = POOL.FindExtensionByName(f"{file['package']}.{wanted['name']}")
            assert extension.number == wanted["num"]
            assert extension.containing_type is not None
            assert extension.containing_type.full_name == wanted["extendee"]
            assert TYPE_NAMES[extension.type] == wanted["type"]


def test_methods(reference: Any) -> None:
    expected = {
        rpc["grpc_path"]: rpc
        for service in entries(reference, "services").values()
        for rpc in service["rpcs"]
    }
    found = {method.path: method for method in methods()}
    assert found.keys() == expected.keys()
    for path, wanted in expected.items():
        method = found[path]
        assert method.request.DESCRIPTOR.full_name == wanted["request"]
        assert method.response.DESCRIPTOR.full_name == wanted["response"]
        assert method.client_streaming == wanted["client_streaming"]
        assert method.server_streaming == wanted["server_streaming"]
        rule = option(method.descriptor, "google.api.http")
        rules = [rule, *rule.additional_bindings] if rule.post else []
        assert [(rule.post, rule.body) for rule in rules] == [
            (binding["path"], binding["body"]) for binding in wanted["http"]
        ]
        assert all(binding["method"] == "POST" for binding in wanted["http"])


def test_generated_code_is_fresh() -> None:
    command = [sys.executable, "proto/generate.py", "--check", "src/kvorum/api/pb"]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_stale_generated_code_is_named(tmp_path: Path) -> None:
    (tmp_path / "mvccpb").mkdir()
    (tmp_path / "mvccpb" / "gone.py").write_text("")
    command = [sys.executable, "proto/generate.py", "--check", str(tmp_path)]
    result = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert "mvccpb/gone.py" in result.stderr
    assert "make proto" in result.stderr


def test_contract_coexists_with_another_clients_messages() -> None:
    """A process may hold somebody else's etcdserverpb in protobuf's default pool."""
    program = """
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message_factory import GetMessageClass
other = descriptor_pb2.FileDescriptorProto(name="rpc.proto", package="etcdserverpb")
other.message_type.add(name="PutRequest").field.add(name="key", number=1, type=12, label=1)
pool = descriptor_pool.Default()
pool.AddSerializedFile(other.SerializeToString())
from kvorum.api.pb import etcdserverpb
theirs = GetMessageClass(pool.FindMessageTypeByName("etcdserverpb.PutRequest"))
ours = etcdserverpb.PutRequest(key=b"k", value=b"v")
assert theirs.FromString(ours.SerializeToString()).key == b"k"
"""
    subprocess.run([sys.executable, "-c", program], check=True)
