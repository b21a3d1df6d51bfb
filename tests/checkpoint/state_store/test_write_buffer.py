"""The layers of the write buffer: merging, bulk changes, and parts for a commit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store.write_buffer import ChangeLayer, KeyList, overlaid

layers = st.dictionaries(st.binary(max_size=2), st.none() | st.integers())
keys = st.sets(st.binary(min_size=1, max_size=2), max_size=4)


@given(layers, layers, layers)
def test_overlaid(
    lowest: dict[bytes, int | None], middle: dict[bytes, int | None], upper: dict[bytes, int | None]
) -> None:
    """Merging sorted layers gives what updating dicts gives."""
    below = overlaid(iter(sorted(lowest.items())), iter(sorted(middle.items())))
    found = list(overlaid(below, iter(sorted(upper.items()))))
    assert found == sorted({**lowest, **middle, **upper}.items(), key=lambda pair: pair[0])


@given(st.lists(st.sets(st.binary(max_size=2), min_size=1), max_size=4), st.binary(max_size=2))
def test_key_list(parts: list[set[bytes]], bound: bytes) -> None:
    """Keys are yielded in order, whatever order they were added in, and bounds find them."""
    seen: set[bytes] = set()
    listed = KeyList()
    for part in parts:
        listed.add(list(part - seen))
        seen |= part
    assert bool(listed) == bool(seen)
    assert listed.meets(b"", None) == bool(seen)
    if any(key >= bound for key in seen):
        assert listed.meets(bound, None)
    if any(key < bound for key in seen):
        assert listed.meets(b"", bound)
    assert [key for keys in listed.parts() for key in keys] == sorted(seen)
    changed: dict[bytes, bytes | None] = {}
    listed.move_to(changed, None)
    assert changed == dict.fromkeys(seen)
    assert not listed
    assert list(listed.parts()) == []


@given(
    st.lists(st.tuples(st.sampled_from(("put", "put_many", "add_many", "remove_many")), keys)),
    st.binary(max_size=2),
    st.none() | st.binary(max_size=2),
    st.booleans(),
)
def test_change_layer(
    steps: list[tuple[str, set[bytes]]], start: bytes, stop: bytes | None, looks_up: bool
) -> None:
    """A layer is a dict of changes, however they came, before and after keys are looked up."""
    layer, wanted = ChangeLayer(b"+"), dict[bytes, bytes | None]()
    for number, (step, some) in enumerate(steps):
        value = b"%d" % number
        if step == "put":
            for key in some:
                layer.put(key, None if number % 2 else value)
                wanted[key] = None if number % 2 else value
        elif step == "put_many":
            layer.put_many(list(some), [value] * len(some))
            wanted.update(dict.fromkeys(some, value))
        elif step == "add_many":
            new = {key for key in some if wanted.get(key) is None}
            layer.add_many(list(new))
            wanted.update(dict.fromkeys(new, b"+"))
        else:
            there = {key for key in some if key not in wanted or wanted[key] is not None}
            may_contain = layer.remove_many(list(there))
            assert may_contain or there.isdisjoint(wanted)
            wanted.update(dict.fromkeys(there))
        if looks_up:
            assert layer.by_key() == wanted
    inside = {k: v for k, v in wanted.items() if start <= k and (stop is None or k < stop)}
    assert layer.meets(start, stop) or not inside
    puts: list[tuple[bytes, bytes]] = []
    removed: list[bytes] = []
    for some_keys, values, gone in layer.parts():
        puts += zip(some_keys, values, strict=True)
        removed += gone
    assert puts == sorted((k, v) for k, v in wanted.items() if v is not None)
    assert removed == sorted(k for k, v in wanted.items() if v is None)
    scanned = layer.scan(start, stop)
    layer.clear()
    assert list(scanned) == sorted(inside.items(), key=lambda pair: pair[0])
    assert not layer.meets(b"", None)
