"""A sorted set of keys as a list of short sorted lists.

The rules of this module:

- `_lasts[i]` is the greatest key of `_chunks[i]`; no chunk is empty, none has more keys than
  `key_chunk_keys_max`.
- Positions come from a Fenwick tree over the lengths of the chunks. The first `position` builds
  the tree and any change in the number of chunks drops it, so it costs nothing without queries.
- `add_run` and `remove_run` handle a run (sorted keys that lie close together) by chunk, not by
  key.
"""

from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate

from kvorum.api.limits import WorkLimits
from kvorum.state.mvcc.slices import Slices


class SortedKeys:
    """A sorted set of keys with positions. Callers must know which keys the set has."""

    __slots__ = ("_chunks", "_lasts", "_limits", "_size", "_tree")

    def __init__(self, limits: WorkLimits, keys: Sequence[bytes] = ()) -> None:
        """Create the set from distinct, sorted keys."""
        self._limits = limits
        half = limits.key_chunk_keys_max // 2
        self._chunks = [list(keys[start : start + half]) for start in range(0, len(keys), half)]
        self._lasts = [chunk[-1] for chunk in self._chunks]
        self._size = len(keys)
        self._tree: list[int] | None = None

    def __len__(self) -> int:
        return self._size

    def free_all(self) -> Slices[None]:
        """Free all keys, a few chunks at a time; the set is unusable afterwards."""
        chunks, limits = self._chunks, self._limits
        while chunks:
            del chunks[-limits.slice_freed_items // limits.key_chunk_keys_max :]
            yield

    def add(self, key: bytes) -> None:
        """Insert a key that is not in the set."""
        lasts = self._lasts
        at = bisect_left(lasts, key)
        if at < len(lasts):
            chunk = self._chunks[at]
            chunk.insert(bisect_left(chunk, key), key)
        elif lasts:
            at -= 1
            chunk = self._chunks[at]
            chunk.append(key)
            lasts[at] = key
        else:
            self._chunks.append([key])
            lasts.append(key)
            self._tree = None
            self._size = 1
            return
        self._size += 1
        if len(chunk) > self._limits.key_chunk_keys_max:
            self._split(at)
        elif self._tree is not None:
            self._shift(at, 1)

    def remove(self, key: bytes) -> bytes:
        """Remove a key that is in the set; return the set's own bytes object."""
        at = bisect_left(self._lasts, key)
        chunk = self._chunks[at]
        held = chunk.pop(bisect_left(chunk, key))
        assert held == key, f"{key!r} is not in the set"
        self._size -= 1
        if not chunk:
            self._drop(at)
        else:
            self._lasts[at] = chunk[-1]
            if self._tree is not None:
                self._shift(at, -1)
        return held

    def add_run(self, keys: Sequence[bytes]) -> None:
        """Insert sorted keys, none of which may be in the set."""
        done = 0
        while done < len(keys):
            at = bisect_left(self._lasts, keys[done])
            if at == len(self._lasts):
                self._append(keys[done:])
                return
            stop = bisect_left(keys, self._lasts[at], done)
            chunk = self._chunks[at]
            if stop - done <= self._limits.key_run_single_keys_max:
                for key in keys[done:stop]:
                    chunk.insert(bisect_left(chunk, key), key)
            else:
                chunk += keys[done:stop]
                chunk.sort()  # two sorted runs: one merge
            self._size += stop - done
            if len(chunk) > self._limits.key_chunk_keys_max:
                self._split(at)
            elif self._tree is not None:
                self._shift(at, stop - done)
            done = stop

    def remove_run(self, keys: Sequence[bytes]) -> None:
        """Remove sorted keys, all of which must be in the set."""
        done = 0
        while done < len(keys):
            at = bisect_left(self._lasts, keys[done])
            stop = bisect_left(keys, self._lasts[at], done)
            if stop < len(keys) and keys[stop] == self._lasts[at]:
                stop += 1
            chunk = self._chunks[at]
            run = keys[done:stop]
            first = bisect_left(chunk, keys[done])
            if chunk[first : first + len(run)] == run:
                del chunk[first : first + len(run)]
            elif len(run) <= self._limits.key_run_single_keys_max:
                for key in run:
                    held = chunk.pop(bisect_left(chunk, key))
                    assert held == key, f"{key!r} is not in the set"
            else:
                gone = set(run)
                before = len(chunk)
                chunk[:] = [key for key in chunk if key not in gone]
                assert before - len(chunk) == len(run), "a key of the run is not in the set"
            self._size -= len(run)
            if not chunk:
                self._drop(at)
            else:
                self._lasts[at] = chunk[-1]
                if self._tree is not None:
                    self._shift(at, -len(run))
            done = stop

    def position(self, key: bytes) -> int:
        """Return how many keys are below this one, in O(log n)."""
        at = bisect_left(self._lasts, key)
        if at == len(self._lasts):
            return self._size
        tree = self._tree
        if tree is None:
            tree = self._tree = self._build()
        position = bisect_left(self._chunks[at], key)
        while at:
            position += tree[at - 1]
            at &= at - 1
        return position

    def count(self, first: bytes, end: bytes | None) -> int:
        """Return how many keys are in [first, end); None means no end."""
        upper = self._size if end is None else self.position(end)
        return max(0, upper - self.position(first))

    def run(self, first: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Return the first keys of [first, end), at most `limit`."""
        if end is not None and end <= first:
            return []
        at = bisect_left(self._lasts, first)
        found: list[bytes] = []
        if at == len(self._lasts):
            return found
        start = bisect_left(self._chunks[at], first)
        for index in range(at, len(self._chunks)):
            chunk = self._chunks[index]
            if end is not None and end <= self._lasts[index]:
                stop = min(bisect_left(chunk, end), start + limit - len(found))
                return found + chunk[start:stop]
            found += chunk[start : start + limit - len(found)]
            if len(found) >= limit:
                break
            start = 0
        return found

    def run_down(self, first: bytes, end: bytes | None, limit: int) -> list[bytes]:
        """Return the last keys of [first, end), greatest first, at most `limit`."""
        found: list[bytes] = []
        at = len(self._lasts) if end is None else bisect_left(self._lasts, end)
        if at < len(self._lasts):
            stop = bisect_left(self._chunks[at], end) if end is not None else 0
        else:
            at -= 1
            stop = len(self._chunks[at]) if at >= 0 else 0
        while at >= 0 and len(found) < limit:
            chunk = self._chunks[at]
            start = bisect_left(chunk, first)
            found += chunk[max(start, stop - limit + len(found)) : stop][::-1]
            if start:
                break
            at -= 1
            stop = len(self._chunks[at])
        return found

    def _append(self, keys: Sequence[bytes]) -> None:
        self._size += len(keys)
        chunk_max = self._limits.key_chunk_keys_max
        last = self._chunks[-1] if self._chunks else []
        if last and len(last) + len(keys) <= chunk_max:
            last += keys
            self._lasts[-1] = last[-1]
            if self._tree is not None:
                self._shift(len(self._lasts) - 1, len(keys))
            return
        for start in range(0, len(keys), chunk_max):
            self._chunks.append(list(keys[start : start + chunk_max]))
            self._lasts.append(self._chunks[-1][-1])
        self._tree = None

    def _split(self, at: int) -> None:
        chunk = self._chunks[at]
        size = self._limits.key_chunk_keys_max // 2
        parts = [chunk[start : start + size] for start in range(0, len(chunk), size)]
        self._chunks[at : at + 1] = parts
        self._lasts[at : at + 1] = [part[-1] for part in parts]
        self._tree = None

    def _drop(self, at: int) -> None:
        del self._chunks[at]
        del self._lasts[at]
        self._tree = None

    def _build(self) -> list[int]:
        # Node i holds the sum of the lengths of the chunks (i & i + 1) .. i.
        below = list(accumulate(map(len, self._chunks), initial=0))
        return [below[node + 1] - below[node & node + 1] for node in range(len(self._chunks))]

    def _shift(self, at: int, change: int) -> None:
        tree = self._tree
        assert tree is not None
        while at < len(tree):
            tree[at] += change
            at |= at + 1
