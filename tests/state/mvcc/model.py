"""The store as a list of all events: nothing clever, nothing forgotten."""

from typing import NamedTuple

import google_crc32c

from kvorum.api.pb.mvccpb import KeyValue
from kvorum.state.mvcc.ranges import RangeOptions, SortOrder, SortTarget
from kvorum.storage.backend.encoding import revision_of, row_key

Operation = tuple[str, tuple[object, ...]]


class Event(NamedTuple):
    main: int
    sub: int
    key: bytes
    kv: KeyValue | None  # None: deleted

    @property
    def revision(self) -> int:
        return revision_of(self.main, self.sub, tombstone=self.kv is None)

    @property
    def row(self) -> bytes:
        return (self.kv or KeyValue(key=self.key)).SerializeToString()


class Model:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.revision = 1
        self.compacted = -1

    # What is written.

    def apply(self, kind: str, arguments: tuple[object, ...]) -> object:
        result: object = getattr(self, kind)(*arguments)
        return result

    def put(self, key: bytes, value: bytes, lease: int) -> int:
        self.txn((("put", key, value, lease),))
        return self.revision

    def delete(self, key: bytes, end: bytes) -> list[tuple[bytes, int]]:
        (deleted,) = self.txn((("delete", key, end),))
        assert isinstance(deleted, list)
        return deleted

    def txn(self, operations: tuple[tuple[object, ...], ...]) -> list[object]:
        main = self.revision + 1
        results: list[object] = []
        before = len(self.events)
        for name, *rest in operations:
            state = self.state(main)
            if name == "put":
                key, value, lease = rest
                assert isinstance(key, bytes) and isinstance(value, bytes)
                assert isinstance(lease, int)
                old = state.get(key)
                kv = KeyValue(key=key, value=value, lease=lease, mod_revision=main)
                kv.version = 1 if old is None or old.kv is None else old.kv.version + 1
                kv.create_revision = (
                    main if old is None or old.kv is None else old.kv.create_revision
                )
                self.events.append(Event(main, len(self.events) - before, key, kv))
                results.append(None)
            elif name == "delete":
                first, end = rest
                assert isinstance(first, bytes) and isinstance(end, bytes)
                gone = [key for key in sorted(state) if is_within(key, first, end)]
                results.append([(key, state[key].revision) for key in gone])
                for key in gone:
                    self.events.append(Event(main, len(self.events) - before, key, None))
            else:
                (options,) = rest
                assert isinstance(options, RangeOptions)
                current = main if len(self.events) > before else self.revision
                results.append(self.range(options, options.revision or main, current))
        if len(self.events) > before:
            self.revision = main
        return results

    def compact(self, main: int) -> str | None:
        if main <= self.compacted:
            return "compacted"
        if main > self.revision:
            return "future"
        self.compacted = main
        return None

    # What is read.

    def state(self, main: int) -> dict[bytes, Event]:
        """Return the live keys at a revision, each with the event that made it so."""
        state: dict[bytes, Event] = {}
        for event in self.events:
            if event.main <= main:
                if event.kv is None:
                    state.pop(event.key)
                else:
                    state[event.key] = event
        return state

    def check(self, revision: int) -> str | None:
        if revision > self.revision:
            return "future"
        if 0 < revision < self.compacted:
            return "compacted"
        return None

    def range(
        self, options: RangeOptions, main: int, current: int
    ) -> tuple[list[bytes], int, bool, int]:
        state = self.state(main)
        found = [
            event.kv
            for key, event in sorted(state.items())
            if event.kv is not None and is_within(key, options.key, options.range_end)
        ]
        count = len(found)
        if options.count_only:
            return [], count, False, current
        is_default_order = options.sort_order == SortOrder.NONE or (
            options.sort_order == SortOrder.ASCEND and options.sort_target == SortTarget.KEY
        )
        if options.limit > 0 and is_default_order and not options.is_filtered:
            found = found[: options.limit + 1]
        for name in ("mod_revision", "create_revision"):
            low, high = getattr(options, f"min_{name}"), getattr(options, f"max_{name}")
            found = [kv for kv in found if not low or getattr(kv, name) >= low]
            found = [kv for kv in found if not high or getattr(kv, name) <= high]
        field = ("key", "version", "create_revision", "mod_revision", "value")[options.sort_target]
        found.sort(
            key=lambda kv: getattr(kv, field), reverse=options.sort_order == SortOrder.DESCEND
        )
        more = 0 < options.limit < len(found)
        if more:
            found = found[: options.limit]
        copies = [KeyValue.FromString(kv.SerializeToString()) for kv in found]
        if options.keys_only:
            for kv in copies:
                kv.value = b""
                if options.sort_target != SortTarget.VALUE:
                    kv.lease = 0
        return [kv.SerializeToString() for kv in copies], count, more, current

    def kept(self, main: int) -> list[Event]:
        """Return the events that are left when a compaction is done."""
        newest = {event.key: event for event in self.events if event.main <= main}
        return [
            event
            for event in self.events
            if event.main > main
            or (newest[event.key] is event and (event.kv is not None or event.main == main))
        ]

    def rows(self) -> list[tuple[int, bytes]]:
        return [(event.revision, event.row) for event in self.kept(self.compacted)]

    def hash_kv(self, main: int, compacted: int, *, is_compaction: bool = False) -> int:
        """Return the hash according to the rules, over what the previous compaction left."""
        keep = set()
        for key in {event.key for event in self.events}:
            generations: list[list[Event]] = [[]]
            for event in self.events:
                if event.key == key:
                    generations[-1].append(event)
                    if event.kv is None:
                        generations.append([])
            chosen = next(
                (each for each in generations[:-1] if each[-1].main >= main), generations[-1]
            )
            upto = [event for event in chosen if event.main <= main]
            if upto and (upto[-1].kv is not None or (is_compaction and upto[-1].main == main)):
                keep.add(upto[-1].revision)
        value: int = google_crc32c.value(b"key")
        for event in self.kept(compacted):
            if event.main > main:
                continue
            if event.main <= compacted and keep and event.revision not in keep:
                continue
            if event.main == compacted and event.kv is None:
                continue
            value = google_crc32c.extend(value, row_key(event.revision))
            value = google_crc32c.extend(value, event.row)
        return value


def is_within(key: bytes, first: bytes, end: bytes) -> bool:
    if not end:
        return key == first
    return first <= key and (end == b"\0" or key < end)
