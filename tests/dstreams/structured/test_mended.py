"""A query resumes from a checkpoint that the tools have rewound or copied."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from checkpoint import CommitLog, open_files
from checkpoint.cli.main import SUCCEEDED, main
from dstreams.structured import StreamingQueryException, StreamSession
from dstreams.structured.sources.committed_files import committed_lines
from tests.dstreams.structured.test_killed import EXPECTED, FILES, run_killed, start
from tests.dstreams.structured.test_recovery import windowed


class CopyRun:
    """A windowed count of the lines of files, file by file, into files."""

    def __init__(self, session: StreamSession, directory: Path) -> None:
        self._session = session
        self._inputs = directory / "inputs"
        self._inputs.mkdir()
        self.output = directory / "output"

    def add(self, number: int, seconds: list[int]) -> None:
        path = self._inputs / f"{number}.txt"
        path.write_text("".join(f"{second}\n" for second in seconds))
        os.utime(path, (number, number))

    def run(self, checkpoint: Path) -> dict[int, list[str]]:
        """Read what there is, and return what came out, by batch."""
        lines = self._session.readStream.text(str(self._inputs), maxFilesPerTrigger=1)
        writer = windowed(lines.map(int)).writeStream.format("text").trigger(availableNow=True)
        query = writer.start(str(self.output), checkpointLocation=str(checkpoint))
        assert query.awaitTermination(300)
        found = committed_lines(str(self.output))
        return {batch: sorted(lines) for batch, lines in found.items() if lines}


@pytest.mark.deep
def test_rewound_and_moved(
    session: StreamSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From an earlier batch, and in another directory, the same comes out as before."""
    run = CopyRun(session, tmp_path)
    for number, seconds in enumerate(FILES[:3]):
        run.add(number, seconds)
    checkpoint = tmp_path / "checkpoint"
    before = run.run(checkpoint)
    assert sorted(line for lines in before.values() for line in lines) == ["10:2", "15:1"]
    first, *_, last = CommitLog(open_files(checkpoint)).times()

    assert main(["show", "--all", str(checkpoint)]) == SUCCEEDED
    shown = capsys.readouterr().out
    assert f"FileStreamSource[{tmp_path / 'inputs'}]" in shown
    said = '{"description": "no new files", "end": 3, "records": 0}'
    assert f"input source-0 of the newest batch: {said}" in shown
    assert "watermark of watermark-0: 1970-01-01T00:00:21Z (21000 ms)" in shown
    assert "stateStoreSave" in shown

    shutil.rmtree(run.output)
    assert main(["rewind", str(checkpoint), "--to", str(first)]) == SUCCEEDED
    assert run.run(checkpoint) == before
    assert CommitLog(open_files(checkpoint)).times()[-1] == last

    other = tmp_path / "other"
    assert main(["export", str(checkpoint), str(tmp_path / "moved")]) == SUCCEEDED
    assert main(["import", str(tmp_path / "moved"), str(other), "--here"]) == SUCCEEDED
    shutil.rmtree(checkpoint)
    run.add(3, FILES[3])
    after = run.run(other)
    assert sorted(line for lines in after.values() for line in lines) == EXPECTED
    for command in (["verify"], ["gc", "--void"], ["verify"]):
        assert main([command[0], str(other), *command[1:]]) == SUCCEEDED, command


@pytest.mark.deep
def test_copy_beside_its_original(session: StreamSession, tmp_path: Path) -> None:
    """One of a checkpoint and its copies writes to a directory; the others fail."""
    run = CopyRun(session, tmp_path)
    run.add(0, FILES[0])
    original, copy, older = (tmp_path / name for name in ("original", "copy", "older"))
    run.run(original)
    for target in (copy, older):
        assert main(["export", str(original), str(tmp_path / f"{target.name}.file")]) == SUCCEEDED
        exported = str(tmp_path / f"{target.name}.file")
        assert main(["import", exported, str(target), "--here"]) == SUCCEEDED
    run.add(1, FILES[1])
    after = run.run(copy)
    message = r"output has batch 2 of .*Another history of the checkpoint has written there"
    for other in (original, original, older):
        with pytest.raises(StreamingQueryException, match=message):
            run.run(other)
    assert run.run(copy) == after


@pytest.mark.slow
def test_killed_and_rewound(tmp_path: Path) -> None:
    """The checkpoint of a killed query is complete, and can be rewound."""
    assert run_killed(tmp_path, "state.done@1") == EXPECTED
    checkpoint = tmp_path / "checkpoint"
    assert main(["verify", str(checkpoint)]) == SUCCEEDED
    first = CommitLog(open_files(checkpoint)).times()[0]
    assert main(["rewind", str(checkpoint), "--to", str(first)]) == SUCCEEDED
    shutil.rmtree(tmp_path / "output" / "_committed")
    inputs = tmp_path / "inputs"
    shutil.copytree(Path(f"{tmp_path}/archive{inputs}"), inputs, dirs_exist_ok=True)
    assert start(tmp_path) == 0
    found = committed_lines(str(tmp_path / "output"))
    assert sorted(line for lines in found.values() for line in lines) == EXPECTED
