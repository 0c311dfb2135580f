"""How single values are written in JSON: well, oddly but well, and badly.

Lists of texts, each as it stands in a body. What is good or odd is accepted by the gateway of etcd,
what is bad is refused; the tests do not rely on that, they compare.
"""

import base64
import json

NOTHING = ["null"]

# Numbers. A bad one is refused for every kind of number, so that it never becomes a value.
BAD_NUMBERS = [
    "1.5",
    '"1.5"',
    '""',
    '" 7"',
    '"7 "',
    '"+7"',
    "+7",
    "0x7",
    '"0x7"',
    "07",
    '"07"',
    "7.",
    '"7."',
    ".7",
    "1e400",
    '"1e400"',
    "1e999999999",
    "7e-999999999",
    "99999999999999999999",
    "-99999999999999999999",
    "9" * 5000,
    "1e",
    "-",
    '"-"',
    '"x"',
    '"1_000"',
    "true",
    "[]",
    "[7]",
    "{}",
    "NaN",
    '"NaN"',
    "Infinity",
    '"\uff17"',
    '"7\\u0000"',
    "1e0x7",
]
EXTREME_NUMBERS = [
    "9223372036854775807",
    "9223372036854775808",
    "-9223372036854775808",
    "-9223372036854775809",
    '"18446744073709551615"',
    "18446744073709551616",
    "9223372036854775807.0",
    "922337203685477580.7e1",
    "-0",
    '"-0"',
    "-0.0",
    "0e999999999",
    "0.000e-5",
    "700000e-5",
    "0.00007e5",
    '"7e0"',
    '"\\u0037"',
    "7" + "0" * 400 + "e-400",
]


def numbers(value: int) -> list[str]:
    """Return ways to write an integer."""
    sign = "-" if value < 0 else ""
    whole = abs(value)
    return [
        f"{value}",
        f"{value}",
        f'"{value}"',
        f"{value}.0",
        f'"{value}.00"',
        f"{value}e0",
        f"{value}E+00",
        f"{sign}{whole}0e-1",
        f'"{sign}{whole * 100}e-2"',
    ]


BOOLEANS = ["true", "false"]
BAD_BOOLEANS = ['"true"', '"false"', "1", "0", "True", "truex", "tru", "[]", "{}", '""']

ODD_ENUMS = ['"WRONG"', '"1"', '""', "7", "-1", "2147483647", "-2147483648", "1.0", "10e-1"]
UNKNOWN_ENUMS = ['"WRONG"', '"1"', '""', '"get"', "null"]
BAD_ENUMS = ["2147483648", "-2147483649", "1.5", "true", "[]", "{}", "1e400", "None"]

# Base64. What these stand for is one of few keys, so that not too many come to be.
ODD_BYTES = [
    '""',
    '"YQ"',
    '"YQ=="',
    '"YR=="',
    '"YWI"',
    '"\\u0059Q=="',
    '"Y\\nQ=="',
    '"YQ=\\r\\n="',
    '"\\nYQ=="',
    '"YQ==\\n\\r\\n\\r"',
    '"\\n"',
    '"\\n\\n\\n\\n"',
    '"_-8"',
    '"/+8="',
    '"_-8="',
]
BAD_BYTES = [
    '"Y"',
    '"YQ="',
    '"YQ==="',
    '"="',
    '"===="',
    '"YQ==YQ=="',
    '"YQ==\\n"',
    '"Y\\nQ\\n"',
    '"_+8"',
    '"_/8="',
    '" YQ=="',
    '"Y Q=="',
    '"YQ\\u0000="',
    '"YQ%3D%3D"',
    '"é"',
    '"\\ud83d\\ude00"',
    '"\\ud83d"',
    "'YQ=='",
    "YQ==",
    "7",
    "true",
    "[]",
    '["YQ=="]',
    "{}",
    '"YQ==',
]


def encoded(value: bytes) -> list[str]:
    """Return ways to write bytes."""
    standard = base64.b64encode(value).decode()
    safe = base64.urlsafe_b64encode(value).decode()
    return [f'"{each}"' for each in (standard, standard, safe, safe.rstrip("="))]


ODD_STRINGS = [
    '"\\u00e9"',
    '"é"',
    '"e\\u0301"',
    '"\\u0000"',
    '"\\"\\\\\\/\\b\\f\\n\\r\\t"',
    '"\\ud83d\\ude00"',
    '"\\uD83D\\uDE00"',
    '"😀"',
    '"<&>\\u2028\\u2029"',
    '"\u2028"',
    '"\\u007f\\u0080"',
    '"\ufffd\uffff"',
    '"' + "x" * 300 + '"',
]
BAD_STRINGS = [
    '"\\ud83d"',
    '"\\ude00\\ud83d"',
    '"\\ud83dx"',
    '"\\ud83d\\u0041"',
    '"\\x41"',
    '"\\u12"',
    '"\\u12g4"',
    '"\\U0001f600"',
    '"\\',
    '"tab\there"',
    '"line\nfeed"',
    '"nul\0"',
    "'x'",
    "7",
    "true",
    "[]",
    '["x"]',
    "{}",
]


def strings(value: str) -> list[str]:
    """Return ways to write a string."""
    escaped = "".join(f"\\u{ord(each):04x}" for each in value)
    return [
        json.dumps(value),
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        f'"{escaped}"',
    ]


BAD_LISTS = ["{}", '""', "7", "true", "[,]", "[null]", "[[]]", "[", "]"]
BAD_OBJECTS = [
    "[]",
    '""',
    "7",
    "true",
    "[{}]",
    "{,}",
    "{",
    "}",
    '{"a"}',
    '{"a":}',
    "{a:1}",
    "{1:1}",
]

UNKNOWN_VALUES = [
    "null",
    "true",
    "1e999999999",
    "-0.0e-0",
    "9" * 400,
    '"\\ud83d\\ude00"',
    "[]",
    "{}",
    '[1,{"key":"YQ=="},[[["x"]]],null]',
    '{"key":1,"key":2,"a":{"b":[{}]}}',
    "[" * 60 + "]" * 60,
]
BAD_UNKNOWN_VALUES = [
    '"\\ud83d"',
    '"\\x"',
    "01",
    "[1,]",
    '{"a":1,}',
    "{]",
    "nul",
    "1.",
    "NaN",
    "undefined",
    '{"a" 1}',
    "[1 2]",
    '"\x01"',
]
UNKNOWN_NAMES = [
    '"x"',
    '""',
    '"Key"',
    '"KEY"',
    '"range-end"',
    '"\\u006bey "',
    '"é"',
    '"@type"',
    '"[a.b]"',
]
BAD_NAMES = ["x", "1", "null", "'key'", '"\\ud83d"', '"a\tb"', ""]

BLANKS = ["", "", "", " ", "\n", "\t\r\n  "]
BAD_BLANKS = ["\v", "\f", "\u00a0", "\ufeff", "\u2028", "/**/", "//\n", "#\n", "\0"]
