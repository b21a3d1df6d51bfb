"""Records: a value with its timeout and parts of its key; damage is detected."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint.state_store.records import (
    NO_EXTRAS,
    DamagedRecordError,
    Extras,
    extras_of,
    indexed_ms_of,
    split_record,
    timed_record,
    with_extras,
)

times = st.integers(0, 2**63 - 1)
parts = st.none() | st.binary(max_size=5)
all_extras = st.one_of(
    st.builds(Extras, st.none(), st.none(), parts, parts),
    st.builds(Extras, times, times, parts, parts),
)
values = st.one_of(st.none(), st.text(max_size=4), st.lists(st.integers(), max_size=3))


@given(values, all_extras)
def test_round_trip(value: object, extras: Extras) -> None:
    """Value and extras are read back, and unpickling ignores the extras."""
    encoded = pickle.dumps(value, 5)
    record = with_extras(encoded, extras)
    assert split_record(record) == (encoded, extras)
    assert extras_of(record) == extras
    assert pickle.loads(record) == value
    assert (record == encoded) == (extras == NO_EXTRAS)


@given(values, all_extras)
def test_place_in_the_index(value: object, extras: Extras) -> None:
    """The timeout is found alongside other extras, and is written in one form."""
    encoded = pickle.dumps(value, 5)
    record = with_extras(encoded, extras)
    assert indexed_ms_of(record) == extras.indexed_ms
    if extras.timeout_ms is not None and extras.indexed_ms is not None:
        timed = timed_record(encoded, extras.timeout_ms, extras.indexed_ms)
        assert timed == with_extras(encoded, extras._replace(whole=None, original=None))


def test_time_without_entry_is_no_time() -> None:
    """A timeout and the time of its index entry exist together or not at all."""
    assert extras_of(with_extras(b".", Extras(timeout_ms=5))) == NO_EXTRAS


@given(st.binary(max_size=30))
def test_any_bytes(record: bytes) -> None:
    """Any bytes are a record that encodes to itself, or raise the documented error."""
    try:
        value, extras = split_record(record)
    except DamagedRecordError:
        return
    assert with_extras(value, extras) == record


@pytest.mark.parametrize(
    "record",
    [b"", b"\0", b".\0", b"\x01", b".\x07", b"N.\x40", b"N.\xff\xff\xff\xff\x02", b"N\0\0\0\0\x02"],
)
def test_damage(record: bytes) -> None:
    """Extras longer than the record, or unknown ones, are an error."""
    with pytest.raises(DamagedRecordError, match="bytes is damaged"):
        split_record(record)
    if record:
        with pytest.raises(DamagedRecordError, match="bytes is damaged"):
            indexed_ms_of(record)
