"""Layers merge in order, and the upper one wins."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store.write_buffer import Apart, entries_between, overlaid

layers = st.dictionaries(st.binary(max_size=2), st.none() | st.integers())


@given(layers, layers, layers)
def test_overlaid(
    lowest: dict[bytes, int | None], middle: dict[bytes, int | None], upper: dict[bytes, int | None]
) -> None:
    """Merging sorted layers gives what updating dicts gives."""
    below = overlaid(iter(sorted(lowest.items())), iter(sorted(middle.items())))
    found = list(overlaid(below, iter(sorted(upper.items()))))
    assert found == sorted({**lowest, **middle, **upper}.items(), key=lambda pair: pair[0])


@given(layers, st.binary(max_size=2), st.none() | st.binary(max_size=2))
def test_entries_between(
    changed: dict[bytes, int | None], start: bytes, stop: bytes | None
) -> None:
    """A part of the changes, sorted, as they are now."""
    found = entries_between(changed, start, stop)
    wanted = sorted(
        (pair for pair in changed.items() if start <= pair[0] and (stop is None or pair[0] < stop)),
        key=lambda pair: pair[0],
    )
    changed.clear()
    assert list(found) == wanted


@given(st.lists(st.sets(st.binary(max_size=2), min_size=1), max_size=4), st.binary(max_size=2))
def test_apart(parts: list[set[bytes]], bound: bytes) -> None:
    """Keys come in order, whatever order they were added in, and bounds find where they may be."""
    seen: set[bytes] = set()
    apart = Apart()
    for part in parts:
        apart.add(list(part - seen))
        seen |= part
    assert bool(apart) == bool(seen)
    assert apart.meets(b"", None) == bool(seen)
    if any(key >= bound for key in seen):
        assert apart.meets(bound, None)
    if any(key < bound for key in seen):
        assert apart.meets(b"", bound)
    assert [key for keys in apart.parts() for key in keys] == sorted(seen)
    changed: dict[bytes, bytes | None] = {}
    apart.move_to(changed, None)
    assert changed == dict.fromkeys(seen)
    assert not apart
    assert list(apart.parts()) == []
