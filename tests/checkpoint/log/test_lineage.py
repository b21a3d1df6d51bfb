"""Lineage: which records count after any sequence of starts, crashes and rewinds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from checkpoint import ConcurrentWriterError, CorruptCheckpointError, DriverProcess, RecordId
from checkpoint import open_files as open_at
from checkpoint.log.fencing import Takeover, claim_epoch, read_takeover
from checkpoint.log.lineage import Lineage, read_lineage, write_takeover

pytestmark = pytest.mark.usefixtures("no_sync")


def takeover(
    epoch: int, parent: int | None, upto_ms: int | None, *begins: tuple[int, int]
) -> Takeover:
    return Takeover("stream-1", epoch, parent, upto_ms, tuple(RecordId(*each) for each in begins))


def lineage(*takeovers: Takeover) -> Lineage:
    return Lineage(tuple(sorted(takeovers, key=lambda takeover: -takeover.epoch)))


def without_tokens(found: Lineage) -> Lineage:
    assert all(each.token for each in found.takeovers)
    return lineage(*(replace(each, token="", parent_token="") for each in found.takeovers))


def ids(*pairs: tuple[int, int]) -> list[RecordId]:
    return [RecordId(*pair) for pair in pairs]


FIRST = takeover(1, None, None)


@pytest.mark.parametrize(
    ("takeovers", "there", "counted"),
    [
        ([FIRST], [(1, 1), (2, 1)], [(1, 1), (2, 1)]),
        # Commits of the older driver after the takeover are void.
        ([FIRST, takeover(2, 1, 1)], [(1, 1), (2, 1), (2, 2)], [(1, 1), (2, 2)]),
        ([FIRST, takeover(2, 1, 1)], [(1, 1), (2, 1)], [(1, 1)]),
        # Nothing was committed, and then something late.
        ([FIRST, takeover(2, 1, None)], [(1, 1), (1, 2)], [(1, 2)]),
        # Epochs that committed nothing are passed over.
        ([FIRST, takeover(2, 1, 1), takeover(4, 2, 1)], [(1, 1), (2, 2), (2, 4)], [(1, 1), (2, 4)]),
        # An epoch without a takeover is in no lineage.
        ([FIRST, takeover(3, 1, 1)], [(1, 1), (2, 2), (2, 3)], [(1, 1), (2, 3)]),
        # A rewind, and what was committed after it.
        ([FIRST, takeover(2, 1, 1)], [(1, 1), (2, 1), (3, 1), (2, 2)], [(1, 1), (2, 2)]),
        # A rewind beyond an earlier start.
        (
            [FIRST, takeover(2, 1, 2), takeover(3, 2, 1)],
            [(1, 1), (2, 1), (3, 2), (2, 3)],
            [(1, 1), (2, 3)],
        ),
        # And forth again.
        ([FIRST, takeover(3, 1, 3)], [(1, 1), (2, 1), (3, 1), (2, 2)], [(1, 1), (2, 1), (3, 1)]),
    ],
)
def test_commits_count_up_to_where_the_next_epoch_builds_on(
    takeovers: list[Takeover], there: list[tuple[int, int]], counted: list[tuple[int, int]]
) -> None:
    """One record per batch counts, in order of time."""
    assert lineage(*takeovers).commits(ids(*there)) == ids(*counted)


@pytest.mark.parametrize(
    ("takeovers", "there", "counted"),
    [
        ([FIRST], [(1, 1), (2, 1)], [(1, 1), (2, 1)]),
        # The batch in flight was taken over; what was begun later is void.
        ([FIRST, takeover(2, 1, 1, (2, 1))], [(1, 1), (2, 1), (3, 1)], [(1, 1), (2, 1)]),
        # Taken over, and begun again.
        ([FIRST, takeover(2, 1, 1, (2, 1))], [(1, 1), (2, 1), (2, 2)], [(1, 1), (2, 2)]),
        # Taken over twice.
        (
            [FIRST, takeover(2, 1, 1, (2, 1)), takeover(3, 2, 1, (2, 1), (3, 2))],
            [(1, 1), (2, 1), (3, 2), (4, 2)],
            [(1, 1), (2, 1), (3, 2)],
        ),
        # Committed by the one that took it over.
        ([FIRST, takeover(2, 1, 1, (2, 1)), takeover(3, 2, 2)], [(1, 1), (2, 1)], [(1, 1), (2, 1)]),
        # Taken over, and gone.
        ([FIRST, takeover(2, 1, 1, (2, 1))], [(1, 1)], [(1, 1)]),
    ],
)
def test_begins_count_that_were_taken_over(
    takeovers: list[Takeover], there: list[tuple[int, int]], counted: list[tuple[int, int]]
) -> None:
    """One begin record per batch counts, in order of time."""
    found = lineage(*takeovers).begins(ids(*there))
    assert list(found.items()) == [(record_id.time_ms, record_id) for record_id in ids(*counted)]


@pytest.mark.parametrize(
    ("takeovers", "there", "counted"),
    [
        ([FIRST], [(0, 1), (5, 1)], [(5, 1), (0, 1)]),
        ([FIRST, takeover(2, 1, None)], [(0, 1)], [(0, 1)]),
        ([FIRST, takeover(2, 1, 3)], [(0, 1), (3, 2), (5, 1)], [(3, 2), (0, 1)]),
        ([FIRST, takeover(2, 1, None), takeover(3, 2, 3)], [(0, 1), (9, 2)], [(0, 1)]),
        ([FIRST, takeover(3, 1, 3)], [(0, 1), (3, 2)], [(0, 1)]),
    ],
)
def test_snapshots_count_that_were_there_when_the_next_epoch_began(
    takeovers: list[Takeover], there: list[tuple[int, int]], counted: list[tuple[int, int]]
) -> None:
    """Newest first, including those before any batch."""
    assert lineage(*takeovers).snapshots(ids(*there)) == ids(*counted)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3), st.booleans()), max_size=8))
def test_a_counted_batch_stays_unless_it_is_taken_back(
    starts: list[tuple[int, int, bool]],
) -> None:
    """Late records of older epochs never change what counted at a start."""
    there: list[RecordId] = []
    takeovers: list[Takeover] = []
    counted: list[RecordId] = []
    for epoch, (new, late, back) in enumerate(starts, 1):
        if takeovers:
            if back and counted:
                counted = counted[:-1]
            upto_ms = counted[-1].time_ms if counted else None
            takeovers.append(takeover(epoch, takeovers[-1].epoch, upto_ms))
        else:
            takeovers.append(takeover(epoch, None, None))
        last_ms = counted[-1].time_ms if counted else 0
        zombies = [RecordId(last_ms + 1 + n, old) for old in range(1, epoch) for n in range(late)]
        own = [RecordId(last_ms + 1 + n, epoch) for n in range(new)]
        there = sorted({*there, *zombies, *own})
        counted = [*counted, *own]
        assert lineage(*takeovers).commits(there) == counted


def test_without_claims_everything_counts() -> None:
    """Of each batch, the record of the newest epoch counts."""
    unclaimed = Lineage((), is_claimed=False)
    assert unclaimed.commits(ids((1, 2), (1, 1), (2, 1))) == ids((1, 2), (2, 1))
    assert unclaimed.begins(ids((1, 1), (1, 2))) == {1: RecordId(1, 2)}
    assert Lineage(()).commits(ids((1, 1))) == []


def test_takeovers_are_written_and_read(tmp_path: Path) -> None:
    """The newest takeover leads to the others, as far as they exist."""
    files = open_at(tmp_path)
    assert read_lineage(files) == Lineage((), is_claimed=False)
    made = [FIRST, takeover(2, 1, 5, (6, 1)), takeover(3, 2, 7)]
    for each in made:
        write_takeover(claim_epoch(files, "stream-1", DriverProcess.of_this_process(0)), each)
    assert without_tokens(read_lineage(files)) == lineage(*made)
    assert read_takeover(files, 2) in read_lineage(files).takeovers
    files.delete("epochs/0000000001.takeover")
    assert without_tokens(read_lineage(files)) == lineage(*made[1:])


def test_a_takeover_is_written_once_by_the_newest_driver(tmp_path: Path) -> None:
    """Other content, or a newer claim, comes from another driver."""
    files = open_at(tmp_path)
    lease = claim_epoch(files, "stream-1", DriverProcess.of_this_process(0))
    write_takeover(lease, FIRST)
    write_takeover(lease, FIRST)
    with pytest.raises(ConcurrentWriterError, match=r"epoch 1 of .* has another takeover already"):
        write_takeover(lease, Takeover("stream-1", 1, 0, 7))
    second = claim_epoch(files, "stream-1", DriverProcess.of_this_process(0))
    claim_epoch(files, "stream-1", DriverProcess.of_this_process(0))
    write_takeover(second, takeover(2, 1, None))
    with pytest.raises(ConcurrentWriterError, match="has taken over"):
        second.check()


def test_a_takeover_under_another_epoch_is_refused(tmp_path: Path) -> None:
    """So is an impossible takeover."""
    files = open_at(tmp_path)
    write_takeover(claim_epoch(files, "stream-1", DriverProcess.of_this_process(0)), FIRST)
    epochs = tmp_path / "epochs"
    (epochs / "0000000002.takeover").write_bytes((epochs / "0000000001.takeover").read_bytes())
    with pytest.raises(CorruptCheckpointError, match=r"0000000002\.takeover is of epoch 1"):
        read_lineage(files)
    with pytest.raises(ValueError, match="the first epoch of a stream builds on no batch"):
        takeover(1, None, 5)
    with pytest.raises(ValueError, match="must build on an older one"):
        takeover(2, 2, 5)
