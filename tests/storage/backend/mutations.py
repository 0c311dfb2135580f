"""Damage to a database file: flipped bits, lost, foreign and exchanged pages, lost ends."""

import random
import struct
from collections.abc import Callable

PAGE_BYTES = 4096
_HEAD_BYTES = 64
_META_BYTES = 152
_OWN_NUMBER_BYTES = 8


def _pages(content: bytearray) -> int:
    return len(content) // PAGE_BYTES


def _flip(content: bytearray, at: int, chance: random.Random) -> None:
    content[at % len(content)] ^= 1 << chance.randrange(8)


def _flip_anywhere(content: bytearray, chance: random.Random) -> None:
    for _ in range(chance.choice((1, 1, 2, 20))):
        _flip(content, chance.randrange(len(content)), chance)


def _flip_in_head(content: bytearray, chance: random.Random) -> None:
    page = chance.randrange(_pages(content))
    _flip(content, page * PAGE_BYTES + chance.randrange(_HEAD_BYTES), chance)


def _flip_in_meta(content: bytearray, chance: random.Random) -> None:
    _flip(content, chance.randrange(2) * PAGE_BYTES + chance.randrange(_META_BYTES), chance)


def _zero_page(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(_pages(content)) * PAGE_BYTES
    content[start : start + PAGE_BYTES] = bytes(PAGE_BYTES)


def _spoil_page(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(_pages(content)) * PAGE_BYTES
    content[start : start + PAGE_BYTES] = chance.randbytes(PAGE_BYTES)


def _spoil_end_of_page(content: bytearray, chance: random.Random) -> None:
    start = chance.randrange(_pages(content)) * PAGE_BYTES
    length = chance.randrange(1, PAGE_BYTES)
    content[start + PAGE_BYTES - length : start + PAGE_BYTES] = chance.randbytes(length)


def _cut_off(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(len(content)) :]


def _cut_off_pages(content: bytearray, chance: random.Random) -> None:
    del content[chance.randrange(_pages(content)) * PAGE_BYTES :]


def _lengthen(content: bytearray, chance: random.Random) -> None:
    content += chance.randbytes(chance.randrange(1, 3 * PAGE_BYTES))


def _exchange(content: bytearray, chance: random.Random, *, keeps_numbers: bool) -> None:
    one, other = (chance.randrange(_pages(content)) * PAGE_BYTES for _ in range(2))
    skipped = _OWN_NUMBER_BYTES if keeps_numbers else 0
    first = content[one + skipped : one + PAGE_BYTES]
    content[one + skipped : one + PAGE_BYTES] = content[other + skipped : other + PAGE_BYTES]
    content[other + skipped : other + PAGE_BYTES] = first


def _exchange_pages(content: bytearray, chance: random.Random) -> None:
    _exchange(content, chance, keeps_numbers=False)


def _exchange_contents(content: bytearray, chance: random.Random) -> None:
    _exchange(content, chance, keeps_numbers=True)


def _exchange_metas(content: bytearray, chance: random.Random) -> None:
    skipped = _OWN_NUMBER_BYTES * chance.randrange(2)
    first, second = slice(skipped, PAGE_BYTES), slice(PAGE_BYTES + skipped, 2 * PAGE_BYTES)
    content[first], content[second] = content[second], content[first]


def _redirect(content: bytearray, chance: random.Random) -> None:
    """Let a branch, a record or a long value's entry refer to another page that exists."""
    numbers = range(_pages(content))
    for _ in range(1000):
        at = chance.randrange(0, len(content) - 8, 2)
        value = int.from_bytes(content[at : at + 6], "little")
        if 2 <= value < len(numbers):
            content[at : at + 6] = chance.choice(numbers).to_bytes(6, "little")
            return


def _set_pointer(content: bytearray, chance: random.Random) -> None:
    """Give a page another boundary, or one of its entries another place."""
    start = chance.randrange(_pages(content)) * PAGE_BYTES
    at = start + chance.choice((8, 10, 12, 14, *range(16, 48, 2)))
    value = chance.choice((0, 1, 2, 4, 8, 15, 16, 18, 4094, 4096, 65535, chance.randrange(65536)))
    struct.pack_into("=H", content, at, value)


MUTATIONS: list[Callable[[bytearray, random.Random], None]] = [
    _flip_anywhere,
    _flip_in_head,
    _flip_in_meta,
    _zero_page,
    _spoil_page,
    _spoil_end_of_page,
    _cut_off,
    _cut_off_pages,
    _lengthen,
    _exchange_pages,
    _exchange_contents,
    _exchange_metas,
    _redirect,
    _set_pointer,
]


def mutated(content: bytes, chance: random.Random) -> tuple[str, bytes]:
    """Return a damaged file, and what was done to it."""
    mutation = chance.choice(MUTATIONS)
    damaged = bytearray(content)
    mutation(damaged, chance)
    return mutation.__name__.strip("_"), bytes(damaged)
