"""Changes of one commit: cut into parts, and merged with others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from checkpoint.state_store.base import Changes

MAX_KEY_BYTES = 503
MAX_INDEX_BYTES = 511
MAX_RECORD_BYTES = 32 << 20

PART_BYTES = 1 << 20
PART_OPERATIONS = 1 << 15


def merge_changes(parts: Iterable[Changes]) -> Changes:
    """Return one set of changes that does what *parts*, oldest first, do one after the other.

    A key that was put and removed stays in the removes: whether it was there before is not known.

    Raises:
        ValueError: there are no parts.
    """
    records: dict[bytes, bytes | None] = {}
    index: dict[bytes, bool] = {}
    count = None
    for part in parts:
        records.update(part.puts)
        records.update(dict.fromkeys(part.removes))
        index.update(dict.fromkeys(part.index_puts, True))
        index.update(dict.fromkeys(part.index_removes, False))
        count = part.count
    if count is None:
        raise ValueError("there are no changes to merge")
    ordered = sorted(records.items(), key=lambda item: item[0])
    entries = sorted(index)
    return Changes(
        puts=[(key, record) for key, record in ordered if record is not None],
        removes=[key for key, record in ordered if record is None],
        index_puts=[entry for entry in entries if index[entry]],
        index_removes=[entry for entry in entries if not index[entry]],
        count=count,
    )


def split_changes(changes: Changes) -> Iterator[Changes]:
    """Yield *changes* in parts that are about as large as a block of a file should be."""
    operations = operation_count(changes)
    is_small = operations <= PART_OPERATIONS and _payload_bytes(changes) <= PART_BYTES
    if is_small or operations < 2:
        yield changes
        return
    for half in (0, 1):
        lists = (changes.puts, changes.removes, changes.index_puts, changes.index_removes)
        ranges = [_half(len(part), half) for part in lists]
        yield from split_changes(
            Changes(
                changes.puts[ranges[0]],
                changes.removes[ranges[1]],
                changes.index_puts[ranges[2]],
                changes.index_removes[ranges[3]],
                changes.count,
            )
        )


def operation_count(changes: Changes) -> int:
    """Return how many keys and index entries are changed."""
    return (
        len(changes.puts)
        + len(changes.removes)
        + len(changes.index_puts)
        + len(changes.index_removes)
    )


def require_sizes(changes: Changes) -> None:
    """Raise ValueError if a key, an index entry or a record is larger than a store can hold."""
    keys = [key for key, _ in changes.puts]
    _require_lengths("key", [*map(len, keys), *map(len, changes.removes)], 1, MAX_KEY_BYTES)
    entries = [*map(len, changes.index_puts), *map(len, changes.index_removes)]
    _require_lengths("index entry", entries, 1, MAX_INDEX_BYTES)
    _require_lengths("record", [len(record) for _, record in changes.puts], 0, MAX_RECORD_BYTES)


def _require_lengths(what: str, lengths: list[int], least: int, most: int) -> None:
    if lengths and not least <= min(lengths) <= max(lengths) <= most:
        wrong = next(length for length in lengths if not least <= length <= most)
        raise ValueError(
            f"{what} of {wrong} bytes in a state store must be {least} to {most} bytes; "
            "keep large values outside of the state, or split them over several keys"
        )


def _half(count: int, half: int) -> slice:
    middle = (count + 1) // 2
    return slice(middle, count) if half else slice(0, middle)


def _payload_bytes(changes: Changes) -> int:
    return (
        sum([len(key) + len(record) for key, record in changes.puts])
        + sum(map(len, changes.removes))
        + sum(map(len, changes.index_puts))
        + sum(map(len, changes.index_removes))
    )
