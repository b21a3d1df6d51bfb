"""python -m checkpoint on the directory of a query: show, verify and repair."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checkpoint import CorruptCheckpointError, files_in, open_files
from checkpoint.cli.main import IN_USE, MISUSED, SUCCEEDED, main
from dstreams.engine.inputs import InputOffsets
from dstreams.errors import RestartError
from dstreams.structured.execution.query_checkpoint import QueryCheckpoint
from dstreams.structured.execution.query_records import batch_end, batch_start
from dstreams.structured.execution.watermarks import Watermarks
from tests.dstreams.structured.execution.test_query_checkpoint import STORE, Batches, OpenedQuery
from tests.support.stream_model import STREAM, Driver, World
from tests.support.surroundings import reads

Run = Callable[..., tuple[int, Any, str]]

VERIFY_PROBLEMS = 3


class Reading:
    """A fake reader of a file source: each batch has read one file."""

    def snapshot_size(self) -> int:
        return 0

    def snapshot(self, end: int | None) -> dict[str, Any]:
        return {"files": [] if end is None else [f"/in/{number}" for number in range(end + 1)]}

    def retire(self, end: int | None) -> None: ...


def ends_of_reading() -> InputOffsets:
    reader: Any = Reading()
    return InputOffsets({"source-0": reader}, {}, 0)


def files_of(query: OpenedQuery) -> list[str]:
    """Return the files that batches before a run have read."""
    past = query.log.past("source-0")
    later = (facts for ms, facts in past.batches.items() if ms > past.upto_ms)
    return [path for facts in (past.facts, *later) for path in files_in(facts)]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Run the command; returns its status, its JSON, and what it complains of."""

    def call(*arguments: object) -> tuple[int, Any, str]:
        words = [str(argument) for argument in arguments]
        status = main(words if words[0] == "state" else [*words, "--json"])
        shown = capsys.readouterr()
        if words[0] == "state":
            return status, shown.out.splitlines(), shown.err
        if words[0] in ("read", "diff"):
            return status, [json.loads(line) for line in shown.out.splitlines()], shown.err
        return status, json.loads(shown.out) if shown.out else None, shown.err

    return call


@pytest.fixture
def query(tmp_path: Path) -> Path:
    """The checkpoint of a query that died in its sixth batch; its batches are of 1, 2, 3 ... ms."""
    batches = Batches(tmp_path, 100, 2)
    batches.query.log.begin_inputs(ends_of_reading())
    for number in range(4):
        batches.run(number, files=[f"/in/{number}"])
    marks = Watermarks(500, (500,), (4,))
    batches.query.begin(4, batch_start(0, 100, 50, reads(5), {"conf": "1"}))
    batches.query.commit(4, (), batch_end(marks, -1, {"output_rows": 3}))
    batches.query.begin(5, batch_start(0, 500, 100, reads(6)))
    batches.query.checkpoint.close()
    return tmp_path / "checkpoint"


def test_list(run: Run, query: Path) -> None:
    """A query is known by its directory, and listed from above as well."""
    for url in (query, query.parent):
        status, data, _ = run("list", url)
        assert status == SUCCEEDED
        (found,) = data["streams"]
        assert (found["last"], found["driver"]) == (5, "stopped")


def test_show(run: Run, query: Path) -> None:
    """Its progress, offsets, watermarks, operators, and what it is."""
    status, data, _ = run("show", query)
    assert status == SUCCEEDED
    assert data["stream"] == "query"
    assert data["last_batch"]["batch_id"] == 4
    assert data["last_batch"]["facts"]["progress"] == {"output_rows": 3}
    assert data["inputs"] == {"source-0": {"start": None, "end": 6}}
    assert data["files_needed_no_more"] == {"source-0": ["/in/0", "/in/1", "/in/2", "/in/3"]}
    assert data["in_flight_ms"] == [6]
    assert data["watermarks"] == {"query": 500, "watermark-0": 500}
    assert data["graph"]["description"] == {}
    main(["show", str(query)])


def test_contents(run: Run, query: Path) -> None:
    """The state after a batch, and how that of two batches differs."""
    _, rows, _ = run("read", query, "--at", 4)
    assert {"key": "batch", "value": 3} in rows
    _, rows, _ = run("diff", query, "--from", 2, "--to", 3)
    assert sorted(rows, key=lambda row: row["change"]) == [
        {"change": "+", "key": 2, "new": 2},
        {"change": "~", "key": "batch", "old": 1, "new": 2},
    ]


def test_verify(run: Run, query: Path) -> None:
    """Every file of a query is known, and verified."""
    status, data, _ = run("verify", query)
    assert (status, data["problems"]) == (SUCCEEDED, [])
    assert data["checked_files"] == sum(path.is_file() for path in query.rglob("*"))


@pytest.mark.parametrize(
    "pattern",
    [
        "batches/*4-e1.begin",
        "commits/*4-e1.commit",
        "commits/*2-e1.commit",
        "epochs/*1.claim",
        "epochs/*1.takeover",
        "graph/*.graph",
        "inputs/*.inputs",
    ],
)
def test_damage_is_found(run: Run, query: Path, pattern: str) -> None:
    """Wherever a byte has changed, verify says in which file."""
    (path,) = query.glob(pattern)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(content)
    status, data, _ = run("verify", query)
    assert status == VERIFY_PROBLEMS
    assert path.as_uri() in [problem["file"] for problem in data["problems"]]


@pytest.mark.parametrize(
    "pattern", ["commits/*5-e1.commit", "stores/**/*.changes", "epochs/*.takeover"]
)
def test_loss_is_found(run: Run, query: Path, pattern: str) -> None:
    """Verification names files that a restart misses, and begun batches without commit."""
    for path in query.glob(pattern):
        path.unlink()
    status, data, _ = run("verify", query)
    if pattern.startswith("commits"):
        assert run("show", query)[1]["in_flight_ms"] == [5, 6]
    else:
        assert status == VERIFY_PROBLEMS
        assert any("is missing" in problem["found"] for problem in data["problems"])


def test_rewind(run: Run, query: Path) -> None:
    """After a rewind, later batches run again with the same input, on the earlier state."""
    status, data, _ = run("rewind", query, "--to", 2)
    assert (status, data["runs_again_ms"]) == (SUCCEEDED, [3, 4, 5, 6])
    again = OpenedQuery(query)
    recovered = again.recovered
    assert again.checkpoint.query_id == "query"
    (store,) = again.log.plan.stores
    assert store.partitions[0].version_id.version == 2
    assert store.operator_uid == STORE.operator_uid
    assert [record.batch_id for record in recovered.unfinished] == [2, 3, 4, 5]
    assert files_of(again) == ["/in/0", "/in/1", "/in/2", "/in/3"]
    again.commit(2)
    again.checkpoint.close()
    assert run("show", query)[1]["last_batch"]["batch_id"] == 2
    assert run("verify", query)[0] == SUCCEEDED


def test_refused_while_it_runs(run: Run, query: Path) -> None:
    """Nothing is changed under a query that is running, nor gone to that is not there."""
    status, _, error = run("rewind", query, "--to", 99)
    assert status == MISUSED
    assert "(99 ms) is committed" in error
    running = OpenedQuery(query)
    for command in (["rewind", query, "--to", 1], ["gc", query]):
        status, _, error = run(*command)
        assert status == IN_USE
        assert "is running; stop it first" in error
    running.checkpoint.close()


def test_garbage(run: Run, query: Path) -> None:
    """Unreferenced files are deleted, and superseded records on request."""
    run("rewind", query, "--to", 4)
    lost = next(iter(query.glob("stores/**/*4-*.changes")))
    shutil.copy(lost, lost.with_name(lost.name.replace(lost.name[-24:-8], "ab" * 8)))
    before = len(list(query.rglob("*.*")))
    status, data, _ = run("gc", query, "--void")
    assert status == SUCCEEDED
    assert str(next(iter(data["files"]))) != ""
    assert len(list(query.rglob("*.*"))) == before - len(data["files"])
    assert run("verify", query)[1]["problems"] == []


@pytest.mark.parametrize("here", [True, False])
def test_export_and_import(run: Run, query: Path, tmp_path: Path, here: bool) -> None:
    """A query resumes from an exported file, in a directory of any name."""
    file = tmp_path / "query.export"
    assert run("export", query, file)[0] == SUCCEEDED
    other = tmp_path / "other"
    status, data, _ = run("import", file, other, *(["--here"] if here else []))
    assert status == SUCCEEDED
    assert data["url"] == (other if here else other / "query").as_uri()
    again = OpenedQuery(other if here else other / "query")
    recovered = again.recovered
    assert again.checkpoint.query_id == "query"
    assert recovered.newest is not None
    assert recovered.newest.ends == (6,)
    assert files_of(again) == ["/in/0", "/in/1", "/in/2", "/in/3"]
    assert run("verify", data["url"])[1]["problems"] == []


def test_with_a_snapshot_of_inputs(run: Run, tmp_path: Path) -> None:
    """It replaces deleted records of batches; every command recognizes such a file."""
    batches = Batches(tmp_path, 5, 2)
    batches.ends = ends_of_reading()
    batches.query.log.begin_inputs(batches.ends)
    for number in range(33):
        batches.run(number, files=[f"/in/{number}"])
    batches.query.checkpoint.close()
    query, moved = tmp_path / "checkpoint", tmp_path / "moved"
    (path,) = query.glob("inputs/*.inputs")
    kept = sorted(int(name.stem.partition("-")[0]) for name in query.glob("batches/*"))
    snapshot_ms = int(path.stem.partition("-")[0])
    assert kept == list(range(snapshot_ms + 1, 34))
    assert 10 <= snapshot_ms < 26
    files = [f"/in/{number}" for number in range(33)]
    data = run("show", query)[1]
    assert data["last_batch"]["batch_id"] == 32
    assert data["files_needed_no_more"] == {"source-0": files}
    assert run("export", query, tmp_path / "exported")[0] == SUCCEEDED
    assert run("import", tmp_path / "exported", moved, "--here")[0] == SUCCEEDED
    assert run("rewind", query, "--to", 29)[0] == SUCCEEDED
    for place, found in ((query, files), (moved, files)):
        assert run("verify", place)[:1] == (SUCCEEDED,)
        again = OpenedQuery(place)
        assert files_of(again) == found
        again.checkpoint.close()
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b"/in/7", b"/in/8"))
    assert path.as_uri() in [found["file"] for found in run("verify", query)[1]["problems"]]
    path.unlink()
    assert path.as_uri() in [found["file"] for found in run("verify", query)[1]["problems"]]
    with pytest.raises(CorruptCheckpointError, match=f"{path.name} is missing"):
        OpenedQuery(query).log.past("source-0")


def test_of_a_stream(tmp_path: Path) -> None:
    """The directory of a stream is refused as the checkpoint of a query."""
    Driver(open_files(tmp_path / STREAM), World()).run(3000)
    with pytest.raises(RestartError, match=f"the checkpoint is of {STREAM}, which is not a query"):
        QueryCheckpoint(str(tmp_path / STREAM), "query", "run").recovered()
