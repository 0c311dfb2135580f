"""A YAML parser with etcd's results: YAML 1.1 with Go's numbers, converted to JSON values.

Only the first document counts, the last of equal keys wins, and every key becomes text. Malformed
input raises ValueError with the text that etcd prints after `error converting YAML to JSON: `.
"""

import math
import re
from base64 import b64decode
from collections.abc import Hashable
from decimal import Decimal
from typing import Any, ClassVar, NamedTuple, TypeAlias

import yaml

from kvorum.api.integers import integer

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

_BASE: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_PLAIN = "!plain"
"""The tag that this parser gives to scalars without quotes and without a tag."""

_WORDS: dict[str, bool | float | None] = {
    **dict.fromkeys(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE"), True),
    **dict.fromkeys(("on", "On", "ON"), True),
    **dict.fromkeys(("n", "N", "no", "No", "NO", "false", "False", "FALSE"), False),
    **dict.fromkeys(("off", "Off", "OFF"), False),
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), math.nan),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), math.inf),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), -math.inf),
}
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_NAMES = {bool: "!!bool", int: "!!int", float: "!!float", str: "!!str", type(None): "!!null"}


class Document(NamedTuple):
    """The first document of a file."""

    value: Json
    repeated: list[str]
    """Keys that occur more than once in a mapping; the last occurrence counts."""
    is_followed: bool
    """Whether another document, or malformed YAML, follows."""


def parse_yaml(data: bytes) -> Document:
    """Return the first document of a file."""
    loader = _Loader(data)
    try:
        value = _as_json(loader.get_data() if loader.check_data() else None)
        return Document(value, loader.repeated, _is_followed(loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}: " if mark is not None else ""
        raise ValueError(f"yaml: {line}{error.problem}") from None
    except yaml.reader.ReaderError as error:
        raise ValueError(f"yaml: {error.reason}") from None
    except RecursionError:
        raise ValueError("yaml: exceeded max depth") from None
    finally:
        loader.dispose()


def _is_followed(loader: Any) -> bool:
    try:
        return bool(loader.check_data())
    except yaml.YAMLError:
        return True


def number_text(number: float) -> str:
    """Format a number as Go does in JSON."""
    if isinstance(number, int):
        return str(number)
    if not number or 1e-6 <= abs(number) < 1e21:
        return format(Decimal(repr(number)), "f").removesuffix(".0")
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{exponent[0]}{exponent[1:].lstrip('0')}"


def _scalar(text: str) -> bool | float | str | None:
    """Return the value of a scalar without quotes."""
    if text in _WORDS:
        return _WORDS[text]
    if not text[0].isdigit() and text[0] not in "+-.":
        return text
    plain = text.replace("_", "")
    try:
        return integer(plain, -(2**63), 2**64 - 1)
    except ValueError:
        pass
    if _FLOAT.fullmatch(plain) and math.isfinite(number := float(plain)):
        return number
    return text


def _as_json(value: Any) -> Json:
    """Convert every key to text; raise ValueError for values that JSON cannot express."""
    if isinstance(value, float) and not math.isfinite(value):
        word = "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
        raise ValueError(f"json: unsupported value: {word}")
    if isinstance(value, list):
        return [_as_json(each) for each in value]
    if isinstance(value, dict):
        return {_key(key): _as_json(each) for key, each in value.items()}
    scalar: Json = value
    return scalar


def _key(key: object) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, bool):
        return "true" if key else "false"
    if isinstance(key, int | float):
        return number_text(key)
    raise ValueError(f"unsupported map key: {key}")


class _Loader(_BASE):  # type: ignore[misc]
    """A YAML loader that resolves scalars with `_scalar`."""

    yaml_implicit_resolvers: ClassVar[dict[str | None, Any]] = {}
    yaml_constructors: ClassVar[dict[str | None, Any]] = {}

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.repeated: list[str] = []


def _plain(loader: Any, node: Any) -> object:
    return _scalar(loader.construct_scalar(node))


def _tagged(loader: Any, node: Any) -> object:
    """Construct a scalar with a tag that requires a type."""
    text = loader.construct_scalar(node)
    value = _scalar(text)
    wanted = "!!" + node.tag.removeprefix(_TAG)
    found = _NAMES[type(value)]
    if found == wanted:
        return value
    if isinstance(value, int) and wanted == "!!float":
        return float(value)
    raise ValueError(f"yaml: cannot decode {found} `{text}` as a {wanted}")


def _binary(loader: Any, node: Any) -> object:
    try:
        return b64decode(loader.construct_scalar(node)).decode(errors="replace")
    except ValueError:
        raise ValueError("yaml: !!binary value contains invalid base64 data") from None


def _any(loader: Any, node: Any) -> object:
    """Construct a node without regard to its tag."""
    if isinstance(node, yaml.MappingNode):
        # Merged keys come first, so that the mapping's own keys override them.
        loader.flatten_mapping(node)
        return _mapping(loader, node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node, deep=True)
    return loader.construct_scalar(node)


def _mapping(loader: Any, node: Any) -> dict[Hashable, object]:
    found: dict[Hashable, object] = {}
    for key_node, value_node in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise ValueError("yaml: invalid map key")
        if key in found:
            loader.repeated.append(str(key))
        found[key] = loader.construct_object(value_node, deep=True)
    return found


_Loader.add_implicit_resolver(f"{_TAG}merge", re.compile("<<$"), ["<"])
_Loader.add_implicit_resolver(_PLAIN, re.compile(""), None)
_Loader.add_constructor(_PLAIN, _plain)
for _name in ("bool", "int", "float", "null"):
    _Loader.add_constructor(_TAG + _name, _tagged)
_Loader.add_constructor(f"{_TAG}binary", _binary)
_Loader.add_constructor(None, _any)
