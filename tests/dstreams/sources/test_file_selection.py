"""Which file belongs to which batch, by names, times and what was taken before."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint import InputPast
from dstreams.common.settings import UNLIMITED_MS
from dstreams.sources.file_listing import FileStamp
from dstreams.sources.file_selection import FileRules, FileSelection, Listing, Selection


def there(modified_ms: dict[str, int], size: int = 1) -> Listing:
    return {path: FileStamp(path, time_ms, size) for path, time_ms in modified_ms.items()}


def begin(
    since_ms: int = 0, window_ms: int = 1000, before: Iterable[FileStamp] = (), **rules: Any
) -> FileSelection:
    """A selection of a first run, batches of one millisecond unless the rules say otherwise."""
    given_rules: dict[str, Any] = {"batch_ms": 1, **rules}
    return FileSelection(FileRules(window_ms=window_ms, **given_rules), since_ms, 0, tuple(before))


def resumed(
    rules: FileRules, records: dict[int, Selection], since_ms: int = 0, settled_ms: int = 0
) -> FileSelection:
    """A selection of a later run, of batches whose offsets are their times."""
    new = FileSelection(rules, since_ms, settled_ms)
    batches = {
        time_ms: {"end": time_ms, "files": selected.files, "settled_ms": selected.settled_ms}
        for time_ms, selected in records.items()
    }
    return FileSelection.resumed(rules, InputPast(-1, new.snapshot(None), batches))


def decide(selection: FileSelection, listing: Listing, time_ms: int) -> Selection:
    selected = selection.select(listing, time_ms)
    selection.take(selected, time_ms, time_ms)
    return selected


def paths(selected: Selection) -> list[str]:
    return [stamp.path for stamp in selected.files]


def test_the_window_excludes_its_start_and_includes_the_batch_time() -> None:
    """A file counts when its time is after the lower bound and not after the batch time."""
    listing = there({"/9": 9000, "/8": 9001, "/7": 10_000, "/6": 10_001})
    selected = decide(begin(), listing, 10_000)
    assert paths(selected) == ["/8", "/7"]
    assert selected.ignored == {
        "/9": "modified at 1970-01-01T00:00:09.000+00:00, which is not after "
        "1970-01-01T00:00:09.000+00:00: too old; to read it, raise maxFileAge"
    }


def test_only_new_files_count() -> None:
    """Files that existed at the start are ignored."""
    selected = decide(begin(5000, 60_000), there({"/old": 5000, "/new": 5001}), 6000)
    assert paths(selected) == ["/new"]
    assert selected.ignored == {
        "/old": "modified at 1970-01-01T00:00:05.000+00:00, which is not after "
        "1970-01-01T00:00:05.000+00:00: not new; to read it, set newFilesOnly=False"
    }


def test_a_file_from_the_future_is_taken_when_its_time_has_come() -> None:
    """It is not ignored meanwhile."""
    selection = begin()
    early = decide(selection, there({"/a": 2500}), 2000)
    assert (paths(early), early.ignored) == ([], {})
    assert paths(decide(selection, there({"/a": 2500}), 3000)) == ["/a"]


def test_files_are_as_old_as_a_clock_that_was_set_back_says() -> None:
    """New files come under its times, and count by it; what was decided before stays decided.

    A restart has not seen which files were not new, so the time since which files are stays.
    """
    selection = begin(5000)
    before = {"/old": 4000, "/a": 9500}
    assert paths(decide(selection, there(before), 10_000)) == ["/a"]
    listing = there({**before, "/b": 2500, "/c": 2000})
    selected = selection.select(listing, 10_001, ahead_ms=7000)
    assert paths(selected) == ["/b"]
    assert list(selected.ignored) == ["/c"]
    selection.take(selected, 10_001, 2)
    assert paths(decide(selection, there({"/d": 10_500}), 11_000)) == ["/d"]
    later = resumed(FileRules(batch_ms=1, window_ms=1000), {}, 5000, 9000)
    listing = there({"/old": 4000, "/a": 5500})
    assert paths(later.select(listing, 10_000, ahead_ms=7000)) == ["/a"]


def test_with_a_maximum_age_times_decide_about_age_alone() -> None:
    """From the future, from 1970, from before it: each is taken at once, and the oldest first."""
    selection = begin(5000, max_age_ms=UNLIMITED_MS)
    listing = there({"/future": 99_000, "/1970": 0, "/before": -5, "/now": 6000})
    assert paths(decide(selection, listing, 6000)) == ["/before", "/1970", "/now", "/future"]
    limited = begin(5000, max_age_ms=1000, batch_ms=1000)
    selected = decide(limited, listing, 6500)
    assert paths(selected) == ["/now", "/future"]
    assert list(selected.ignored) == ["/1970", "/before"]


def test_what_was_there_before_is_not_new_until_it_changes() -> None:
    """With a maximum age the names at the start decide, and a changed file has new records."""
    before = FileStamp("/a", 10, 1)
    selection = begin(5000, before=[before], max_age_ms=UNLIMITED_MS)
    first = decide(selection, {"/a": before}, 6000)
    assert (paths(first), first.ignored) == ([], {})
    assert paths(decide(selection, there({"/a": 20}), 7000)) == ["/a"]


def test_a_file_is_taken_once_and_named_when_it_changes() -> None:
    """Written again, by time or by size, it is named, once, and never read again."""
    selection = begin(0, 3000)
    assert paths(decide(selection, there({"/a": 500}), 1000)) == ["/a"]
    again = decide(selection, there({"/a": 1500}), 2000)
    assert (paths(again), again.changed) == ([], ("/a",))
    for time_ms in (3000, 90_000):
        later = decide(selection, there({"/a": time_ms - 1}, size=time_ms), time_ms)
        assert (paths(later), later.changed, later.ignored) == ([], (), {})


def test_a_change_of_size_alone_is_a_change() -> None:
    """A copy may keep the time."""
    selection = begin()
    decide(selection, there({"/a": 500}), 1000)
    assert decide(selection, there({"/a": 500}, size=2), 2000).changed == ("/a",)


def test_a_file_that_was_gone_for_a_window_is_new() -> None:
    """Shorter, and it may be a listing that was not whole."""
    selection = begin(0, 1000)
    decide(selection, there({"/a": 500, "/b": 500}), 1000)
    decide(selection, there({"/b": 500}), 2000)
    assert paths(decide(selection, there({"/a": 500, "/b": 500}), 2999)) == []
    for time_ms in (3000, 4000):
        decide(selection, {}, time_ms)
    assert paths(decide(selection, there({"/a": 4500, "/b": 500}), 5000)) == ["/a"]


def test_a_taken_file_is_never_named_as_ignored() -> None:
    """It grows older than the window, but it was read."""
    selection = begin()
    decide(selection, there({"/a": 500}), 1000)
    for time_ms in range(2000, 9000, 1000):
        selected = decide(selection, there({"/a": 500}), time_ms)
        assert (paths(selected), selected.ignored, selected.changed) == ([], {}, ())


def test_an_ignored_file_is_named_once() -> None:
    """Not again in each batch, but again when it comes back after it was gone."""
    selection = begin(500)
    assert list(decide(selection, there({"/a": 500}), 1000).ignored) == ["/a"]
    assert decide(selection, there({"/a": 500}), 2000).ignored == {}
    assert decide(selection, {}, 3000).ignored == {}
    assert list(decide(selection, there({"/a": 500}), 4000).ignored) == ["/a"]


def test_an_ignored_file_that_is_written_again_is_taken() -> None:
    """Nothing of it was read."""
    selection = begin(500)
    decide(selection, there({"/a": 500}), 1000)
    assert paths(decide(selection, there({"/a": 1500}), 2000)) == ["/a"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (".x", "name begins with ."),
        ("_SUCCESS", "name begins with _"),
        ("a.txt._COPYING_", "name ends in ._COPYING_"),
        ("a.txt.tmp", "name ends in .tmp"),
    ],
)
def test_unfinished_names_are_left_out_once_and_the_finished_one_is_taken(
    name: str, reason: str
) -> None:
    """However often the file is written meanwhile, and not as if something was wrong."""
    selection = begin(max_age_ms=UNLIMITED_MS)
    first = decide(selection, there({f"/in/{name}": 500}), 1000)
    assert (first.unfinished, first.ignored) == ({f"/in/{name}": reason}, {})
    again = decide(selection, there({f"/in/{name}": 1500}, size=2), 2000)
    assert (paths(again), again.unfinished) == ([], {})
    assert paths(decide(selection, there({"/in/a.txt": 1500}), 3000)) == ["/in/a.txt"]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("12:30.txt", "a colon in the name, which Hadoop's file systems cannot open"),
        ("\udcff.txt", "a name that is not UTF-8, which cannot be passed to Spark"),
    ],
)
def test_a_name_that_spark_cannot_open_is_ignored_with_its_reason(name: str, reason: str) -> None:
    """One such file must not fail the batch, and colons in front of the name are fine."""
    listing = there({f"hdfs://host:1/{name}": 500, "hdfs://host:1/ü": 500})
    selected = decide(begin(), listing, 900)
    assert paths(selected) == ["hdfs://host:1/ü"]
    assert selected.ignored == {f"hdfs://host:1/{name}": reason}


def test_the_filter_is_asked_once_about_each_file_that_counts() -> None:
    """Not about hidden names, not about files that are too old, and never named in the log."""
    asked: list[str] = []

    def is_csv(path: str) -> bool:
        asked.append(path)
        return path.endswith(".csv")

    selection = begin(100, accepts=is_csv)
    listing = there({"/a.csv": 500, "/b.txt": 500, "/.c.csv": 500, "/old.csv": 50})
    for time_ms in (1000, 2000):
        selected = decide(selection, listing, time_ms)
        assert paths(selected) == (["/a.csv"] if time_ms == 1000 else [])
        assert "/b.txt" not in selected.ignored
    assert sorted(asked) == ["/a.csv", "/b.txt"]


def test_a_file_that_cannot_be_read_is_refused_once_and_the_others_are_taken() -> None:
    """When it is written again it is judged again."""

    def odd(stamp: FileStamp) -> str | None:
        return "odd" if stamp.size_bytes % 2 else None

    selection = begin(refuses=odd)
    listing = {**there({"/odd": 500}, 3), **there({"/even": 500}, 2)}
    first = selection.select(listing, 1000)
    assert first.refused == {"/odd": "odd"}
    second = decide(selection, listing, 2000 - 600)
    assert (paths(second), second.refused) == (["/even"], {})
    assert paths(decide(selection, there({"/odd": 1600}, 4), 2000)) == ["/odd"]


def test_a_limit_takes_the_oldest_and_the_others_wait_however_old_they_grow() -> None:
    """Accepted files are not lost if batches are small."""
    selection = begin(0, 1000, max_files=2, batch_ms=1000)
    listing = there({"/c": 1, "/b": 3, "/d": 2, "/a": 2, "/e": 900})
    taken = [paths(decide(selection, listing, time_ms)) for time_ms in (1000, 9000, 17_000, 25_000)]
    assert taken == [["/c", "/a"], ["/d", "/b"], ["/e"], []]
    assert not selection.is_waiting


def test_a_decision_that_was_not_taken_is_made_again() -> None:
    """The record could not be written, so the next batch takes the files."""
    selection = begin(0, 1000, batch_ms=1000)
    listing = there({"/a": 500})
    assert paths(selection.select(listing, 1000)) == ["/a"]
    assert paths(decide(selection, listing, 2000)) == ["/a"]


def test_files_that_came_while_listings_failed_are_not_too_old() -> None:
    """The window begins before the gap."""
    selection = begin(0, 1000, batch_ms=1000)
    decide(selection, {}, 1000)
    assert paths(decide(selection, there({"/a": 1001, "/b": 7000}), 9000)) == ["/a", "/b"]


def test_a_restart_takes_what_came_meanwhile_and_nothing_twice() -> None:
    """The window begins before the last record, and what waited then is among it."""
    rules = FileRules(batch_ms=1000, window_ms=1000, max_files=1)
    first = FileSelection(rules, 0, 0)
    listing = there({"/a": 300, "/b": 400, "/c": 900})
    selected = decide(first, listing, 1000)
    assert (selected.files, selected.settled_ms) == ((listing["/a"],), 399)
    assert [stamp.path for stamp in selected.waiting] == ["/b", "/c"]
    second = resumed(rules, {1000: selected})
    listing = {**listing, **there({"/d": 5000})}
    taken = [paths(decide(second, listing, time_ms)) for time_ms in (90_000, 91_000, 92_000)]
    assert taken == [["/b"], ["/c"], ["/d"]]


def test_a_snapshot_holds_what_was_taken_up_to_an_offset() -> None:
    """And of what was there before, what nothing has happened to."""
    before = [FileStamp("/x", 1, 1), FileStamp("/y", 1, 1)]
    selection = begin(5, before=before, max_age_ms=UNLIMITED_MS)
    listing = {**there({"/a": 10}), "/x": before[0]}
    decide(selection, listing, 1000)
    decide(selection, {**listing, **there({"/b": 20})}, 2000)
    assert selection.snapshot(1000) == {
        "new_since_ms": 5,
        "settled_ms": 1000,
        "there_before": (before[0],),
        "files": (listing["/a"],),
    }


def test_what_was_forgotten_is_not_kept() -> None:
    """Memory follows the directory, not the life of the stream."""
    selection = begin(batch_ms=1000)
    for time_ms in range(1000, 100_000, 1000):
        decide(selection, there({f"/{time_ms}": time_ms, f"/{time_ms}:": time_ms}), time_ms)
    assert selection.taken_count <= 2
    assert max(map(len, (selection._ignored, selection._gone_ms, selection._changed))) <= 1


TIMES = st.integers(0, 40)


@given(
    files=st.dictionaries(st.integers(0, 30), st.tuples(TIMES, TIMES)),
    window=st.integers(1, 20),
    since=st.integers(0, 10),
    limit=st.integers(1, 5) | st.none(),
)
def test_by_sparks_rule_a_file_is_in_the_first_batch_that_can_have_it(
    files: dict[int, tuple[int, int]], window: int, since: int, limit: int | None
) -> None:
    """Taken, in order where batches are limited, when it is listed in time; otherwise never."""
    selection = begin(since, window, max_files=limit)
    batches = {
        time: paths(
            decide(
                selection,
                there({f"/{name:02}": m for name, (m, seen) in files.items() if seen <= time}),
                time,
            )
        )
        for time in range(80)
    }
    queue: list[tuple[int, str]] = []
    for time, taken in batches.items():
        for name, (modified, seen) in files.items():
            first = max(modified, seen)
            if first == time and modified > max(since, first - window):
                queue.append((modified, f"/{name:02}"))
        queue.sort()
        expected, queue = queue[:limit], queue[limit:] if limit else []
        assert taken == [path for _, path in expected]


@given(
    files=st.dictionaries(st.integers(0, 20), st.tuples(TIMES, st.integers(-50, 90)), min_size=1),
    limits=st.lists(st.integers(1, 4) | st.none(), min_size=1, max_size=4),
    events=st.lists(st.sampled_from(["batch", "failed", "restart", "skip"]), max_size=60),
    by_age=st.booleans(),
)
def test_every_file_is_in_exactly_one_batch_over_failures_limits_and_restarts(
    files: dict[int, tuple[int, int]],
    limits: list[int | None],
    events: list[str],
    by_age: bool,
) -> None:
    """The order of arrival does not matter; with Spark's rule, a file arrives at its time."""
    arrivals = {
        f"/{name}": (seen, modified if by_age else seen) for name, (seen, modified) in files.items()
    }
    records: dict[int, Selection] = {}

    def opened(number: int) -> FileSelection:
        age_ms = UNLIMITED_MS if by_age else None
        rules = FileRules(1, 5, age_ms, limits[number % len(limits)])
        is_new = number == 0
        return FileSelection(rules, -1000, -1) if is_new else resumed(rules, records, -1000, -1)

    selection, starts = opened(0), 0
    for time, event in enumerate(["failed", *events, *["batch"] * 100]):
        if event == "restart":
            starts += 1
            selection = opened(starts)
        if event in ("skip", "restart"):
            continue
        listed = {path: m for path, (seen, m) in arrivals.items() if seen <= time}
        selected = selection.select(there(listed), time)
        if event == "batch":
            if selected.files:
                records[time] = selected
            selection.take(selected, time, time)
    taken = sorted(path for selected in records.values() for path in paths(selected))
    assert taken == sorted(arrivals)
