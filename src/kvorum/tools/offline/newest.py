"""Find the newest row of each key, in memory that does not grow with the number of keys.

Beyond a limit, the records of keys go to a temporary file as runs; `finish` merges the runs, one
group of keys at a time. The file lies in the system's directory for temporary files, which `TMPDIR`
overrides, and takes 24 bytes for each key and run. The file has no name, so it disappears with the
process, however the process ends.

Keys are compared by 128 bits of a hash. The chance that two of a billion keys collide is below one
in 10^20.
"""

from hashlib import blake2b
from tempfile import TemporaryFile
from typing import IO, Final

from google_crc32c import extend

from kvorum.state.mvcc.keyvalue import key_of
from kvorum.storage.backend.encoding import CHECKSUM_BYTES, is_whole, parse_row_key
from kvorum.storage.backend.native import NativeRows, NewestRows, Row

# A compiled table of KEYS_MAX keys and its runs take about 100 MB; a table in Python takes more.
KEYS_MAX: Final = 900_000
_KEYS_MAX_PURE: Final = 300_000

_GROUPS: Final = 256
_HASH_BYTES: Final = 16
_ROW_BYTES: Final = 8
_TOMBSTONE: Final = 1
_FINAL: Final = 2
_FLAG_BITS: Final = 2
_KEY_TAG: Final = 0x0A


class Newest:
    """Tracks the newest row of each key: `note` takes rows, then `finish` counts the live keys."""

    def __init__(
        self, native: NativeRows | None, *, deleted_at: int = 0, keys_max: int | None = None
    ) -> None:
        if native is None:
            self._known: NewestRows = PureNewestRows(deleted_at)
        else:
            self._known = native.NewestRows(max(0, deleted_at))
        self._keys_max = keys_max or (KEYS_MAX if native else _KEYS_MAX_PURE)
        self._runs: list[list[int]] = []  # each: the lengths of its groups
        self._file: IO[bytes] | None = None

    def note(self, rows: list[Row]) -> bool:
        """Note the next rows; return False if one is damaged."""
        is_whole = self._known.note(rows)
        if len(self._known) > self._keys_max:
            self._spill()
        return is_whole

    def finish(self) -> int:
        """Return the number of live keys; `note` must not be called afterwards."""
        if self._file is None:
            return self._known.live()
        self._spill()
        offsets = [0]
        for lengths in self._runs:
            for length in lengths:
                offsets.append(offsets[-1] + length)
        live = 0
        for group in range(_GROUPS):
            for run, lengths in enumerate(self._runs):
                self._file.seek(offsets[run * _GROUPS + group])
                self._known.load(self._file.read(lengths[group]))
            live += self._known.live()
            self._known.drain()
        self.close()
        return live

    def close(self) -> None:
        """Delete the temporary file, if there is one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def checksum(self, value: int, rows: list[Row], place: int, compacted: int) -> int | None:
        """Continue a checksum as `NewestRows` does.

        Rows up to `compacted` are judged correctly only after `finish`.
        """
        return self._known.checksum(value, rows, place, compacted)

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryFile()  # noqa: SIM115 (closed by `close`)
        groups = self._known.drain()
        self._runs.append([len(group) for group in groups])
        for group in groups:
            self._file.write(group)
        self._file.flush()


class PureNewestRows:
    """The pure Python twin of the compiled class `NewestRows`."""

    def __init__(self, deleted_at: int) -> None:
        self._newest: dict[bytes, int] = {}
        self._superseded = bytearray()  # a bit for each row
        self._noted = 0
        self._deleted_at = deleted_at

    def __len__(self) -> int:
        return len(self._newest)

    def note(self, rows: list[Row]) -> bool:
        """Note the next rows; if one is damaged, note none and return False."""
        found = []
        for key, sealed in rows:
            try:
                revision = parse_row_key(key)
            except ValueError:
                return False
            if not is_whole(key, sealed):
                return False
            flags = revision & 1
            if flags and revision >> 32 == self._deleted_at:
                flags |= _FINAL
            found.append((_hash(sealed[:-CHECKSUM_BYTES]), flags))
        self._superseded.extend(bytes((self._noted + len(found) + 7 >> 3) - len(self._superseded)))
        for place, (name, flags) in enumerate(found, self._noted):
            self._place(name, place << _FLAG_BITS | flags)
        self._noted += len(found)
        return True

    def _place(self, name: bytes, row: int) -> None:
        present = self._newest.get(name)
        if present is None:
            self._newest[name] = row
            return
        if not present & _FINAL:
            self._newest[name], row = row, present
        place = row >> _FLAG_BITS
        self._superseded[place >> 3] |= 1 << (place & 7)

    def drain(self) -> list[bytes]:
        """Return the records of all keys in groups, and empty the table."""
        groups = [bytearray() for _ in range(_GROUPS)]
        for name, row in self._newest.items():
            groups[name[0]] += name + row.to_bytes(_ROW_BYTES, "little")
        self._newest.clear()
        return list(map(bytes, groups))

    def load(self, records: bytes) -> None:
        """Merge drained records into the table."""
        for start in range(0, len(records), _HASH_BYTES + _ROW_BYTES):
            middle = start + _HASH_BYTES
            row = int.from_bytes(records[middle : middle + _ROW_BYTES], "little")
            self._place(records[start:middle], row)

    def live(self) -> int:
        """Return the number of keys whose newest row is not a tombstone."""
        return sum(not row & _TOMBSTONE for row in self._newest.values())

    def checksum(self, value: int, rows: list[Row], place: int, compacted: int) -> int | None:
        """Continue a CRC-32C with the keys and values of rows; return None if a row is damaged.

        Leave out rows that a compaction at `compacted` deletes.
        """
        for at, (key, sealed) in enumerate(rows, place):
            if not is_whole(key, sealed):
                return None
            revision = parse_row_key(key)
            if revision >> 32 <= compacted and (
                revision & 1 or self._superseded[at >> 3] >> (at & 7) & 1
            ):
                continue
            value = extend(extend(value, key), sealed[:-CHECKSUM_BYTES])
        return value


def _hash(value: bytes) -> bytes:
    # The row that marks the raised revision of a restored snapshot has no key.
    key = key_of(value) if value and value[0] == _KEY_TAG else b""
    return blake2b(key, digest_size=_HASH_BYTES).digest()
