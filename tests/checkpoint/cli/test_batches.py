"""batches: the batches that a stream can be rewound to, and whether a restart is possible there."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import BeginRecord, CommitRecord, DriverProcess, open_files, take_over
from checkpoint.cli.main import main
from tests.checkpoint.cli.conftest import Run
from tests.checkpoint.cli.test_verify import FILES, flip, one
from tests.support.stream_model import STREAM


def test_all_that_a_rewind_would_take(run: Run, url: Path) -> None:
    """Batches are listed newest first, and a rewind accepts exactly the sound ones."""
    status, data, _ = run("batches", url)
    assert status == 0
    assert [(each["time_ms"], each["epoch"], each["sound"]) for each in data["batches"]] == [
        (7000, 2, True), (6000, 2, True), (5000, 1, True), (4000, 1, True), (3000, 1, False)
    ]  # fmt: skip
    assert [each["snapshots"] for each in data["batches"]] == [
        [], ["counts", "sums"], [], ["sums"], ["counts"]
    ]  # fmt: skip
    for each in data["batches"]:
        is_sound = run("rewind", url, "--to", each["time_ms"], "--dry-run")[0] == 0
        assert each["sound"] == is_sound
        assert (each["problem"] is None) == is_sound


def test_the_table(run: Run, url: Path) -> None:
    """The table has a row for each batch, and the reason if one is not sound."""
    flip(0.5)(one(url / STREAM, FILES["state"]))
    status, lines, _ = run("batches", url, as_json=False)
    assert status == 0
    assert lines[:4] == [
        "batch time                  batch  epoch             read  snapshot        sound",
        "1970-01-01T00:00:07Z            6      2                ?  -               no",
        "1970-01-01T00:00:06Z            5      2                ?  counts, sums    no",
        "1970-01-01T00:00:05Z            4      1                ?  -               yes",
    ]
    assert lines[6].startswith(f"not sound: {one(url / STREAM, FILES['state']).as_uri()} is dam")
    assert max(map(len, lines[:6])) <= 80


def test_without_looking_into_it(run: Run, url: Path) -> None:
    """With --no-verify, the column does not say whether a batch is sound."""
    flip(0.5)(one(url / STREAM, FILES["state"]))
    _, data, _ = run("batches", url, "--no-verify")
    assert {each["sound"] for each in data["batches"]} == {None}


def test_what_was_taken_back(run: Run, url: Path) -> None:
    """Rewound batches are listed, and marked as not counting."""
    assert run("rewind", url, "--to", 5000)[0] == 0
    _, data, _ = run("batches", url)
    assert [(each["time_ms"], each["counts"]) for each in data["batches"]] == [
        (7000, False), (6000, False), (5000, True), (4000, True), (3000, True)
    ]  # fmt: skip
    _, lines, _ = run("batches", url, as_json=False)
    assert "   (2) " in lines[1]
    assert lines[-1].startswith("(epoch): superseded or rewound; a rewind can make it count again")


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ({"end": 9, "start": 4, "records": 5}, "5 records"),
        ({"end": 9, "start": 4}, "5 offsets"),
        ({"end": 9}, "0 offsets"),
        ({"end": {"t": {"0": 9, "1": 5}}, "start": {"t": {"0": 4}}}, "10 offsets"),
        ({"end": "sequence"}, "?"),
        ({"files": [["/in/a", 1, 9]], "end": 1}, "1 files"),
    ],
)
def test_what_was_read(run: Run, tmp_path: Path, said: dict[str, object], read: str) -> None:
    """The amount read is in records if the input has them, otherwise in offsets or files."""
    owned = take_over(open_files(tmp_path), STREAM, DriverProcess.of_this_process(0))
    for number in range(20):
        time_ms = 500 * (number + 1)
        owned.begins.begin(BeginRecord(STREAM, number, time_ms, 1, {"in": said}))
        owned.commits.commit(CommitRecord(STREAM, number, time_ms, 1, {}, {}))
    _, lines, _ = run("batches", tmp_path, as_json=False)
    assert lines[2].split("  ")[0] == "1970-01-01T00:00:09.500Z"
    assert lines[1][43:58].strip() == read
    assert lines[-1] == "2 older batches; --all lists them"
    assert len(lines) == 20
    assert len(run("batches", tmp_path, "--all", as_json=False)[1]) == 21


def test_no_batches(run: Run, tmp_path: Path) -> None:
    """A stream without a committed batch has no batches to list."""
    take_over(open_files(tmp_path), STREAM, DriverProcess.of_this_process(0))
    lines = ["no batch to rewind to"]
    assert run("batches", tmp_path, as_json=False) == (0, lines, "")


def test_the_newest_that_is_good(run: Run, url: Path) -> None:
    """newest-good finds the newest sound batch; the damaged later ones become void."""
    flip(0.5)(one(url / STREAM, FILES["state"]))
    status, data, _ = run("rewind", url, "--to", "newest-good")
    assert (status, data["to_ms"], data["from_ms"]) == (0, 5000, 7000)
    assert run("batches", url)[1]["batches"][0]["sound"] is False
    status, data, _ = run("rewind", url, "--to", "newest-good", "--dry-run")
    assert (data["to_ms"], data["from_ms"]) == (5000, 5000)


def test_none_is_good(run: Run, url: Path) -> None:
    """Without a sound batch nothing is changed."""
    one(url / STREAM, "graph/*").unlink()
    epochs = sorted((url / STREAM / "epochs").iterdir())
    status, _, error = run("rewind", url, "--to", "newest-good")
    assert status == 1
    assert "has no batch after which a restart is possible; verify lists the problems" in error
    assert sorted((url / STREAM / "epochs").iterdir()) == epochs
    status, _, error = run("rewind", url, "--to", "newest-good", "--epoch", 1)
    assert status == 2
    assert "--epoch needs the time of a batch" in error


def test_no_such_destination(url: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The error names both kinds of destination."""
    with pytest.raises(SystemExit):
        main(["rewind", str(url), "--to", "newest"])
    error = capsys.readouterr().err
    assert "must be a time such as 2026-11-23T20:15:00Z" in error
    assert error.endswith("or newest-good\n")
