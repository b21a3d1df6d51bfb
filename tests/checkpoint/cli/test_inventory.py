"""list and show: the streams of a checkpoint, and the contents of one."""

from __future__ import annotations

from pathlib import Path

import pytest

from checkpoint import (
    BeginRecord,
    CommitRecord,
    DriverProcess,
    GraphSnapshot,
    RecordId,
    open_files,
    take_over,
    write_graph,
)
from checkpoint.cli.main import main
from tests.checkpoint.cli.conftest import Run
from tests.support.stream_model import STREAM, Driver, World


def test_streams_are_listed_oldest_first(run: Run, url: Path) -> None:
    """Each stream is listed with its last batch and the state of its driver."""
    Driver(open_files(url / "stream-9000-00000002"), World())
    status, data, _ = run("list", url)
    assert status == 0
    first, second = data["streams"]
    assert first == {
        "stream": STREAM, "zero_ms": 0, "last": 7000, "epochs": 2, "driver": "stopped"
    }  # fmt: skip
    assert (second["stream"], second["last"]) == ("stream-9000-00000002", None)
    assert "process" in second["driver"]
    assert second["driver"].endswith("running")
    status, lines, _ = run("list", url, as_json=False)
    assert lines[0].startswith("stream-0-00000001: began 1970-01-01T00:00:00Z (0 ms), last batch ")


def test_an_empty_place_has_no_streams(run: Run, tmp_path: Path) -> None:
    """An empty directory has no streams; a missing one is an error, and is not created."""
    assert run("list", tmp_path, as_json=False) == (0, [f"{tmp_path} has no streams"], "")
    status, _, error = run("list", tmp_path / "missing", as_json=False)
    assert status == 2
    assert "missing is not a directory; give the location of a checkpoint" in error
    assert not (tmp_path / "missing").exists()
    assert run("show", tmp_path)[0] == 2


def test_one_stream_is_listed_alone(run: Run, url: Path) -> None:
    """The location of a single stream, as of a query, lists that stream."""
    status, data, _ = run("list", url / STREAM)
    assert status == 0
    assert [(each["stream"], each["last"]) for each in data["streams"]] == [
        (str(url / STREAM), 7000)
    ]
    assert run("show", url / STREAM)[0] == 0


def test_directories_of_any_name_are_listed(run: Run, url: Path) -> None:
    """Directories of queries are listed after the streams, with their first start."""
    for name in ("queries/counts", "sums"):
        take_over(
            open_files(url / name), "an id", DriverProcess.of_this_process(5000)
        ).lease.release()
    _, data, _ = run("list", url)
    found = [(each["stream"], each["zero_ms"], each["driver"]) for each in data["streams"]]
    assert found == [
        (STREAM, 0, "stopped"), ("queries/counts", 5000, "stopped"), ("sums", 5000, "stopped")
    ]  # fmt: skip


def test_a_stream_is_shown(run: Run, url: Path) -> None:
    """show prints epochs, operators, progress and the graph."""
    status, data, _ = run("show", url)
    assert status == 0
    assert data["last_batch"] == {
        "batch_id": 6,
        "time_ms": 7000,
        "epoch": 2,
        "writer": {},
        "facts": {},
    }
    assert [(each["epoch"], each["counts"], each["ended"]) for each in data["epochs"]] == [
        (1, True, True), (2, True, True)
    ]  # fmt: skip
    snapshots = [(each["operator"], each["snapshot_ms"]) for each in data["operators"]]
    assert snapshots == [("counts", 6000), ("sums", 6000)]
    assert data["watermarks"] == {"w": 7000}
    assert set(data["graph"]["description"]["operators"]) == {"counts", "sums"}
    status, lines, _ = run("show", url, as_json=False)
    assert "last batch: 6 at 1970-01-01T00:00:07Z (7000 ms), epoch 2" in lines


def test_the_graph_is_shown_in_lines(run: Run, tmp_path: Path) -> None:
    """A node, setting or step of a plan has a line of its own, without what it lacks."""
    description = {
        "batch_ms": 1000,
        "conf": [["spark.master", "local[2]"], ["spark.password", None]],
        "operators": [
            {"uid": "words", "is_chosen": False, "parents": [], "slide_ms": 0, "state": "none"},
            {"uid": "counts", "is_chosen": True, "parents": ["words"], "partitions": None},
        ],
        "plan": ["Aggregate", "+- Scan"],
        "rdds": {},
        "states": {"counts": {"kind": "map"}},
        "versions": {"python": "3.13"},
    }
    owned = take_over(open_files(tmp_path), STREAM, DriverProcess.of_this_process(0))
    write_graph(owned.lease, GraphSnapshot(STREAM, 0, 1, description, b""))
    _, lines, _ = run("show", tmp_path, as_json=False)
    assert lines[lines.index("graph of 1970-01-01T00:00:00Z (0 ms), epoch 1:") + 1 :] == [
        "  batch_ms: 1000",
        "  conf:",
        "    spark.master: local[2]",
        "    spark.password: null",
        "  operators:",
        "    words: slide_ms 0, state none",
        '    counts: is_chosen true, parents ["words"]',
        "  plan:",
        "    Aggregate",
        "    +- Scan",
        "  rdds: {}",
        "  states:",
        "    counts: kind map",
        "  versions:",
        "    python: 3.13",
    ]


def test_stores_are_shown(run: Run, stored: Path) -> None:
    """show prints version and keys of stores, and the batch in flight."""
    _, data, _ = run("show", stored)
    assert [(each["store"], each["version"], each["keys"]) for each in data["stores"]] == [
        ("default", 4, 10)
    ]
    assert data["in_flight_ms"] == [5000]
    _, lines, _ = run("show", stored, as_json=False)
    assert "operator sessions, store default: version 4, 10 keys, 2 partitions by stable" in lines


def test_a_stream_is_chosen_by_its_id(run: Run, url: Path) -> None:
    """The default is the newest stream that can resume."""
    newer = "stream-9000-00000002"
    take_over(open_files(url / newer), newer, DriverProcess.of_this_process(0))
    assert run("show", url)[1]["stream"] == STREAM
    assert run("show", url, "--stream", newer)[1]["stream"] == newer
    status, _, error = run("show", url, "--stream", "x")
    assert status == 2
    assert f"has no stream 'x'; it has {STREAM}, {newer}" in error


def test_names_cannot_change_what_the_terminal_shows(run: Run, tmp_path: Path) -> None:
    """Control characters in names that a program chose are escaped."""
    files = open_files(tmp_path)
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    description = {"name": "a\x1b[2J\u202eb"}
    write_graph(owned.lease, GraphSnapshot(STREAM, 0, 1, description, b""))
    _, lines, _ = run("show", tmp_path, as_json=False)
    assert "  name: a\\x1b[2J\\u202eb" in lines


def test_a_damaged_stream_is_an_error_that_names_the_file(run: Run, url: Path) -> None:
    """A damaged stream is reported, without a traceback."""
    path = url / STREAM / "epochs" / "0000000002.takeover"
    path.write_bytes(b"")
    status, _, error = run("show", url)
    assert status == 1
    assert str(path) in error


def test_help_documents_the_exit_status(capsys: pytest.CaptureFixture[str]) -> None:
    """The help lists exit statuses, whatever the command is called."""
    with pytest.raises(SystemExit):
        main(["--help"], prog="dstreams checkpoint")
    shown = capsys.readouterr().out
    assert "usage: dstreams checkpoint" in shown
    assert "4  refused, because a driver of the stream may be running" in shown


def test_looking_changes_nothing(run: Run, url: Path) -> None:
    """Reading commands change nothing, and work on a read-only directory."""
    before = {path: path.stat().st_mtime_ns for path in url.rglob("*")}
    for command in (["list", url], ["show", url], ["verify", url]):
        assert run(*command)[0] == 0
    assert run("read", url, "--operator", "sums")[0] == 0
    assert {path: path.stat().st_mtime_ns for path in url.rglob("*")} == before


def test_an_object_store_is_looked_at_without_a_probe(run: Run) -> None:
    """Reading commands need no permission to write."""
    files = open_files("memory://tools-look/checkpoint")
    Driver(open_files(f"{files.url}/{STREAM}"), World()).run(3000)
    names = files.list("")
    assert run("list", "memory://tools-look/checkpoint")[1]["streams"][0]["last"] == 3000
    assert run("show", "memory://tools-look/checkpoint")[0] == 0
    assert run("verify", "memory://tools-look/checkpoint")[0] == 0
    assert files.list("") == names


def test_a_stream_of_many_parts_fits_a_screen(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long sections are cut with the number of omitted lines; --all shows all lines."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "24")
    files = open_files(tmp_path / ("deep" * 30))
    owned = take_over(files, STREAM, DriverProcess.of_this_process(0))
    many = {f"operator {number} with a name": {"kind": "state" * 30} for number in range(50)}
    write_graph(owned.lease, GraphSnapshot(STREAM, 0, 1, {"operators": many}, b""))
    inputs = {f"topic-{number}": {"end": {"0": number}, "records": 1} for number in range(30)}
    owned.begins.begin(BeginRecord(STREAM, 0, 1000, 1, inputs, graph=RecordId(0, 1)))
    watermarks = {f"query-{number}": number for number in range(20)}
    owned.commits.commit(CommitRecord(STREAM, 0, 1000, 1, {}, {}, watermarks=watermarks))
    _, whole, _ = run("show", files.root, as_json=False)
    assert len(whole) == 4 + 30 + 20 + 1 + 52  # a pipe gets everything
    monkeypatch.setattr("checkpoint.cli.show._is_terminal", lambda: True)
    _, lines, _ = run("show", files.root, as_json=False)
    assert len(lines) == 23
    assert max(map(len, lines)) == 80
    assert [line for line in lines if line.endswith("; --all shows them")] == [
        "25 more inputs; --all shows them",
        "15 more watermarks; --all shows them",
        "47 more lines of the graph; --all shows them",
    ]
    assert "last batch: 0 at 1970-01-01T00:00:01Z (1000 ms), epoch 1" in lines
    assert run("show", files.root, "--all", as_json=False)[1] == whole
    assert f"in {files.url}" in whole
    monkeypatch.setenv("LINES", "300")
    monkeypatch.setenv("COLUMNS", "300")
    assert run("show", files.root, as_json=False)[1] == whole
