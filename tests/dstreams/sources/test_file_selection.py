"""Which file belongs to which batch, by times alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dstreams.sources.file_selection import FileSelection


def test_the_window_excludes_its_start_and_includes_the_batch_time() -> None:
    """A file counts when its time is after the lower bound and not after the batch time."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    taken, ignored = selection.select({"/9": 9000, "/8": 9001, "/7": 10_000, "/6": 10_001}, 10_000)
    assert taken == ("/8", "/7")
    assert list(ignored) == ["/9"]


def test_only_new_files_count() -> None:
    """What was there when the stream began is ignored, however short ago."""
    selection = FileSelection(new_since_ms=5000, remember_ms=60_000)
    taken, ignored = selection.select({"/old": 5000, "/new": 5001}, 6000)
    assert taken == ("/new",)
    assert ignored == {
        "/old": "modified at 1970-01-01T00:00:05.000+00:00, "
        "which is not after 1970-01-01T00:00:05.000+00:00"
    }


def test_a_file_from_the_future_is_taken_when_its_time_has_come() -> None:
    """It is not ignored meanwhile."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    assert selection.select({"/a": 2500}, 2000) == ((), {})
    assert selection.select({"/a": 2500}, 3000) == (("/a",), {})


def test_a_file_is_taken_once() -> None:
    """Also when it is written again within the window, or removed and put back."""
    selection = FileSelection(new_since_ms=0, remember_ms=3000)
    assert selection.select({"/a": 500}, 1000).taken == ("/a",)
    assert selection.select({"/a": 1500}, 2000).taken == ()
    assert selection.select({}, 3000).taken == ()
    assert selection.select({"/a": 3500}, 4000).taken == ()


def test_a_file_written_again_after_the_window_is_new() -> None:
    """As in Spark, which has forgotten it by then."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    assert selection.select({"/a": 500}, 1000).taken == ("/a",)
    assert selection.select({"/a": 4500}, 5000).taken == ("/a",)


def test_a_taken_file_is_never_named_as_ignored() -> None:
    """It grows older than the window, but it was read."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    selection.select({"/a": 500}, 1000)
    for time_ms in range(2000, 9000, 1000):
        assert selection.select({"/a": 500}, time_ms) == ((), {})


def test_an_ignored_file_is_named_once() -> None:
    """Not again in each batch, but again when it comes back after it was gone."""
    selection = FileSelection(new_since_ms=500, remember_ms=1000)
    assert list(selection.select({"/a": 500}, 1000).ignored) == ["/a"]
    assert selection.select({"/a": 500}, 2000).ignored == {}
    assert selection.select({}, 3000).ignored == {}
    assert list(selection.select({"/a": 500}, 4000).ignored) == ["/a"]


def test_an_ignored_file_that_is_written_again_is_taken() -> None:
    """Being ignored is about its time, not about its name."""
    selection = FileSelection(new_since_ms=500, remember_ms=1000)
    selection.select({"/a": 500}, 1000)
    assert selection.select({"/a": 1500}, 2000).taken == ("/a",)


def test_a_name_with_a_colon_is_ignored_with_its_reason() -> None:
    """No file system of Hadoop's can open it, and one such file must not fail the batch."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    taken, ignored = selection.select({"hdfs://host:1/12:30.txt": 500, "hdfs://host:1/a": 500}, 900)
    assert taken == ("hdfs://host:1/a",)
    assert ignored == {
        "hdfs://host:1/12:30.txt": "a colon in the name, which Hadoop's file systems cannot open"
    }


def test_files_are_taken_oldest_first() -> None:
    """Order does not depend on how the directory lists them."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    assert selection.select({"/c": 1, "/b": 3, "/d": 2, "/a": 2}, 10).taken == (
        "/c",
        "/a",
        "/d",
        "/b",
    )


def test_what_was_forgotten_is_not_kept() -> None:
    """Memory follows the directory, not the life of the stream."""
    selection = FileSelection(new_since_ms=0, remember_ms=1000)
    for time_ms in range(1000, 100_000, 1000):
        selection.select({f"/{time_ms}": time_ms, f"/{time_ms}:": time_ms}, time_ms)
    assert len(selection._taken) <= 2
    assert len(selection._ignored) <= 1


@given(
    files=st.dictionaries(st.integers(0, 30), st.tuples(st.integers(0, 40), st.integers(0, 40))),
    remember=st.integers(1, 20),
    since=st.integers(0, 10),
)
def test_a_file_that_is_not_written_again_is_in_exactly_one_batch(
    files: dict[int, tuple[int, int]], remember: int, since: int
) -> None:
    """Taken when it is listed in time, in the first batch that can; otherwise never."""
    selection = FileSelection(since, remember)
    batches = {
        time: selection.select(
            {f"/{name}": modified for name, (modified, seen) in files.items() if seen <= time}, time
        ).taken
        for time in range(60)
    }
    for name, (modified, seen) in files.items():
        first = max(modified, seen)
        in_time = modified > max(since, first - remember)
        expected = [first] if in_time else []
        assert [time for time, taken in batches.items() if f"/{name}" in taken] == expected
