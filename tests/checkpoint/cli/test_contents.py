"""read and diff: state as JSON lines, without running anything in a pickle."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from checkpoint import (
    BeginRecord,
    CommitRecord,
    DriverProcess,
    OperatorSnapshot,
    StateFileId,
    open_files,
    take_over,
    write_state_file,
)
from checkpoint.log.batch_records import StoreCommit
from checkpoint.state_store import (
    EMPTY,
    DataValues,
    LmdbBackend,
    PickleValues,
    Shapes,
    StateStore,
    StoreId,
    ValueCodec,
)
from dstreams.spark.blocks import Side, encode_block
from tests.checkpoint.cli.conftest import Run
from tests.support.stream_model import STREAM


class Tripwire:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.write_text, (self.path, "unpickled"))


class Point:
    """A class of a program."""

    def __init__(self, x: int) -> None:
        self.x = x


def commit(root: Path, *batches: dict[Any, Any]) -> Path:
    """Commit a batch for each state, as a stream writes it: columns of keys and values."""
    files = open_files(root)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    begins, commits = owned.begins, owned.commits
    for number, state in enumerate(batches):
        time_ms = 1000 * (number + 1)
        begins.begin(BeginRecord(STREAM, number, time_ms, 1, {}))
        file_id = StateFileId(STREAM, "counts", time_ms, 0, 1, "stable", 1, f"a{number}")
        block = encode_block(Side.STATE, list(state), list(state.values()))
        ref = write_state_file(files, file_id, [(block, len(state))])
        operators = {"counts": OperatorSnapshot("stable", (ref,))}
        commits.commit(CommitRecord(STREAM, number, time_ms, 1, operators, {}))
    owned.lease.release()
    return root


def rows(run: Run, *arguments: object) -> list[Any]:
    status, found, error = run(*arguments)
    assert (status, error) == (0, "")
    return list(found)


def test_state_is_read_as_json_lines(run: Run, tmp_path: Path) -> None:
    """read prints all keys of the last batch, one key, or the keys of an earlier batch."""
    shared = [1]
    root = commit(tmp_path, {"a": 1}, {"a": shared, ("u", 2): shared, 3: {"x": None}, "3": 1.5})
    assert rows(run, "read", root) == [
        {"key": "a", "value": [1]},
        {"key": ["u", 2], "value": [1]},
        {"key": 3, "value": {"x": None}},
        {"key": "3", "value": 1.5},
    ]
    for key in "('u', 2)", '["u", 2]':
        assert rows(run, "read", root, "--key", key) == [{"key": ["u", 2], "value": [1]}]
    assert rows(run, "read", root, "--key", "a", "--at", 1000) == [{"key": "a", "value": 1}]
    status, _, error = run("read", root, "--key", "missing")
    assert (status, "no key 'missing' in " in error) == (1, True)
    assert len(rows(run, "read", root, "--limit", 2)) == 2


def test_a_range_of_keys_is_read(run: Run, tmp_path: Path, stored: Path) -> None:
    """Keys from --start to before --stop, of a snapshot or a store; others are of no kind there."""
    root = commit(tmp_path / "snapshot", {"a": 1, "b": 2, "c": 3, 5: 4})
    assert rows(run, "read", root, "--start", "b") == [
        {"key": "b", "value": 2},
        {"key": "c", "value": 3},
    ]
    assert rows(run, "read", root, "--stop", "b") == [{"key": "a", "value": 1}]
    assert rows(run, "read", root, "--start", "3", "--stop", "6") == [{"key": 5, "value": 4}]
    found = rows(run, "read", stored, "--start", "(0, 2)", "--stop", "(1, 1)")
    assert [row["key"] for row in found] == [[0, 2], [0, 3], [1, 0]]
    status, _, error = run("read", stored, "--start", "1", "--stop", "a")
    assert (status, "must be between two" in error) == (1, True)
    status, _, error = run("read", root, "--start", "b", "--key", "a")
    assert (status, "--key is one key" in error) == (2, True)


def test_states_that_are_tuples_are_read(run: Run, tmp_path: Path) -> None:
    """Columns that were written field by field are read as tuples."""
    root = commit(tmp_path, {"a": (1, (2, "x")), "b": (3, (4, "y"))})
    assert rows(run, "read", root) == [
        {"key": "a", "value": [1, [2, "x"]]},
        {"key": "b", "value": [3, [4, "y"]]},
    ]


def test_a_store_is_read(run: Run, stored: Path) -> None:
    """read also prints the state in a store."""
    found = rows(run, "read", stored, "--operator", "sessions", "--key", "(1, 2)")
    assert found == [{"key": [1, 2], "value": {"n": 2}}]
    assert len(rows(run, "read", stored)) == 10
    assert len(rows(run, "read", stored, "--at", 1000)) == 4


def test_nothing_that_a_pickle_names_is_run(run: Run, tmp_path: Path) -> None:
    """Objects are shown as class and parts, unless --unpickle is given."""
    wire = tmp_path / "wire"
    root = commit(tmp_path / "c", {"point": Point(7), "wire": Tripwire(wire)})
    point, trip = rows(run, "read", root)
    assert point["value"] == {"class": f"{Point.__module__}.Point", "state": {"x": 7}}
    assert trip["value"]["class"].endswith("Path.write_text")
    assert not wire.exists()
    rows(run, "read", root, "--unpickle")
    assert wire.read_text() == "unpickled"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"junk", "cannot be shown without unpickling it"),
        (pickle.dumps([1])[:-1], "cannot be shown"),
        (b"\x80\x05\x8e" + b"\xff" * 7 + b"\x7f.", "cannot be shown"),
    ],
)
def test_what_is_no_state_is_an_error(run: Run, tmp_path: Path, content: bytes, said: str) -> None:
    """Damaged payloads are errors, also a pickle that asks for too much memory."""
    files = open_files(tmp_path)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    file_id = StateFileId(STREAM, "counts", 1000, 0, 1, "stable", 1, "a")
    ref = write_state_file(files, file_id, [(content, 0)])
    operators = {"counts": OperatorSnapshot("stable", (ref,))}
    owned.commits.commit(CommitRecord(STREAM, 0, 1000, 1, operators, {}))
    status, _, error = run("read", tmp_path)
    assert status == 1
    assert said in error


def blocks(root: Path, *batches: list[bytes]) -> Path:
    """Commit a batch for each list of blocks."""
    files = open_files(root)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    commits = owned.commits
    for number, contents in enumerate(batches):
        time_ms = 1000 * (number + 1)
        owned.begins.begin(BeginRecord(STREAM, number, time_ms, 1, {}))
        file_id = StateFileId(STREAM, "counts", time_ms, 0, 1, "stable", 1, f"a{number}")
        ref = write_state_file(files, file_id, [(content, 1) for content in contents])
        operators = {"counts": OperatorSnapshot("stable", (ref,))}
        commits.commit(CommitRecord(STREAM, number, time_ms, 1, operators, {}))
    owned.lease.release()
    return root


HOSTILE = b"\x80\x05Nr\xff\xff\xff\x0f0]."


def test_rows_after_one_that_cannot_be_shown_are_shown(run: Run, tmp_path: Path) -> None:
    """One row that cannot be shown sets the exit status; the other rows are shown."""
    root = blocks(
        tmp_path,
        [pickle.dumps([("a", 10**5000)]), HOSTILE, pickle.dumps([("b", 2)])],
    )
    status, found, error = run("read", root)
    assert status == 1
    assert "1 rows could not be shown completely; the first: it cannot be shown" in error
    assert [row["key"] for row in found][::2] == ["a", "b"]
    assert found[0]["value"] == {"int": hex(10**5000)}
    assert "more than its size allows" in found[1]["key"]["not shown"]
    assert run("read", root, "--limit", 1)[0] == 0
    assert run("read", root, "--limit", 2)[0] == 1


def test_what_cannot_be_shown_cannot_be_compared(run: Run, tmp_path: Path) -> None:
    """diff marks values that cannot be shown with a question mark, and compares the rest."""
    good = pickle.dumps([("a", 1), ("b", 2)])
    root = blocks(tmp_path, [good, HOSTILE], [pickle.dumps([("a", 1), ("b", 3)]), HOSTILE])
    status, found, _ = run("diff", root, "--from", 1000)
    assert status == 1
    assert [row["change"] for row in found] == ["?", "~", "?"]
    assert found[1] == {"change": "~", "key": "b", "old": 2, "new": 3}


class RawData(DataValues):
    """A codec whose values are bytes that are already encoded."""

    def encoder(self, shapes: Shapes) -> Any:
        encode = super().encoder(shapes)
        return lambda value: value if isinstance(value, bytes) else encode(value)


class RawPickles(PickleValues):
    """A codec whose values are bytes that are already pickled."""

    def encoder(self, shapes: Shapes) -> Any:
        encode = super().encoder(shapes)
        return lambda value: value if isinstance(value, bytes) else encode(value)


@pytest.mark.parametrize("codec", [RawData(), RawPickles()])
def test_values_of_a_store_beside_one_that_cannot_be_shown_are_shown(
    run: Run, tmp_path: Path, codec: ValueCodec
) -> None:
    """One value of a store that cannot be shown does not hide the others."""
    (tmp_path / "local").mkdir(mode=0o700)
    files = open_files(tmp_path / "stream")
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    backend = LmdbBackend(files, str(tmp_path / "local"), 1)
    store = StoreId(STREAM, "sessions", "default", 0, 1)
    with StateStore(backend, codec).writer(store, EMPTY) as writer:
        for key, value in {"a": [1], "bad": HOSTILE, "c": [3]}.items():
            writer.put(key, value)
        partitions = (writer.commit(),)
    owned.begins.begin(BeginRecord(STREAM, 0, 1000, 1, {}))
    stores = (StoreCommit("sessions", "default", "stable", partitions),)
    owned.commits.commit(CommitRecord(STREAM, 0, 1000, 1, {}, {}, stores))
    status, found, _ = run("read", tmp_path / "stream")
    assert status == 1
    values = {row["key"]: row["value"] for row in found}
    assert "more than its size allows" in values.pop("bad")["not shown"]
    assert values == {"a": [1], "c": [3]}


def test_objects_are_made_only_of_what_others_cannot_write(run: Run, tmp_path: Path) -> None:
    """--unpickle refuses a checkpoint that others can write."""
    root = commit(tmp_path / "c", {"point": Point(7)})
    assert run("read", root, "--unpickle")[0] == 0
    root.chmod(0o777)
    assert run("read", root)[0] == 0
    status, found, error = run("read", root, "--unpickle")
    assert (status, found) == (1, [])
    assert "can be written by others" in error


def test_two_versions_are_compared(run: Run, tmp_path: Path) -> None:
    """diff lists added, removed and changed keys; keys of different types differ."""
    root = commit(tmp_path, {"a": 1, "b": [2], 1: 0}, {"a": 1, "b": [3], "1": 0})
    assert rows(run, "diff", root, "--from", 1000) == [
        {"change": "~", "key": "b", "old": [2], "new": [3]},
        {"change": "+", "key": "1", "new": 0},
        {"change": "-", "key": 1, "old": 0},
    ]
    assert rows(run, "diff", root, "--from", 2000, "--to", 2000) == []
    assert len(rows(run, "diff", root, "--from", 1000, "--limit", 1)) == 1


def test_versions_of_a_store_are_compared(run: Run, stored: Path) -> None:
    """diff also compares versions of a store."""
    found = rows(run, "diff", stored, "--from", 3000, "--to", 4000)
    assert sorted(each["change"] for each in found) == ["+", "+", "~", "~"]
    assert {"change": "~", "key": ["last", 1], "old": 3000, "new": 4000} in found


def test_what_is_not_there_is_a_usage_error(run: Run, url: Path) -> None:
    """Errors for missing objects list the existing ones."""
    for arguments, said in (
        (["read", url], "several operators have state; give --operator"),
        (["read", url, "--operator", "x"], "counts and sums"),
        (
            ["read", url, "--at", "1"],
            "no batch at 1970-01-01T00:00:00.001Z (1 ms) is committed; the nearest are 1970",
        ),
    ):
        status, _, error = run(*arguments)
        assert status == 2
        assert said in error


def test_a_batch_before_the_first_snapshot_has_no_state(run: Run, tmp_path: Path) -> None:
    """The error explains when snapshots of state are written."""
    files = open_files(tmp_path)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    owned.begins.begin(BeginRecord(STREAM, 0, 1000, 1, {}))
    owned.commits.commit(CommitRecord(STREAM, 0, 1000, 1, {}, {}))
    owned.lease.release()
    status, _, error = run("read", tmp_path)
    assert status == 2
    assert "no state has been written up to the batch at 1970-01-01T00:00:01Z (1000 ms); " in error
    assert "at each checkpoint interval" in error


def test_a_snapshot_that_is_older_than_the_batch_says_so(run: Run, url: Path) -> None:
    """A note names the batch of the snapshot if it is older than the requested one."""
    status, shown, note = run("read", url, "--operator", "sums")
    assert (status, len(shown)) == (0, 2)
    assert (
        "state of sums as of the batch at 1970-01-01T00:00:06Z (6000 ms) (its newest snapshot)"
        in note
    )
    assert "the stream is at 1970-01-01T00:00:07Z" in note
    assert run("read", url, "--operator", "sums", "--at", 6000)[2] == ""
