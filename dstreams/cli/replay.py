"""The command ``dstreams replay``."""

# ruff: noqa: PLC0415 - a command loads only what it runs
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from checkpoint import CommitLog, open_files, without_secrets
from checkpoint.cli import SILENT, CommandParser, Progress, progress_on
from dstreams.cli.common import FAILED, MISUSED, SUCCEEDED, complain, file, number_type
from dstreams.common.durations import batch_datetime
from dstreams.errors import InvalidStreamError, StreamError

if TYPE_CHECKING:
    from checkpoint import RecordId
    from dstreams.engine.replay import Replay, ReplayedBatch

    _Earlier = tuple[Sequence[ReplayedBatch], Any, Mapping[int, RecordId]]

DIFFERENT = 4

_STATUS = """\
Compared with the recorded code (--compare): the streams in the checkpoint run again over the same
input, and the outputs and states of both are compared after each batch. Otherwise states are
compared with those that the checkpoint keeps; it keeps no outputs. Records of an output are those
that it receives. The checkpoint of a query has no code: give the program that made it (--old).

exit status:
  0    no difference
  1    the program failed, a batch failed, or the checkpoint does not fit
  2    usage error
  3    Java or Spark is missing on this machine
  4    there are differences
  130  interrupted by Ctrl-C
"""


def configure_replay(command: CommandParser) -> None:
    """Add the arguments of ``dstreams replay``."""
    from checkpoint.cli import time_ms

    command.description = (
        "Runs recorded batches of a stream or query again with a new version of its program, in a "
        "copy of the checkpoint: the same input at the same batch times. The program runs up to "
        "the start of its streams or query, as under dstreams run. The checkpoint is only read."
    )
    command.add_below(
        [
            "/data/app --app app.py --compare",
            "/data/query --app app.py --old old.py",
            "/data/app --app app.py --from 2026-11-23T20:15:00Z",
        ],
        _STATUS,
    )
    command.add_argument("url", metavar="CHECKPOINT", help="path or URL of the checkpoint")
    command.add_argument("--app", type=file, metavar="app.py", help="the program, a Python file")
    command.add_argument(
        "--from",
        type=time_ms,
        dest="first_ms",
        metavar="TIME",
        help="time of the first batch (default: the oldest possible)",
    )
    command.add_argument(
        "--to",
        type=time_ms,
        dest="last_ms",
        metavar="TIME",
        help="time of the last batch (default: the newest)",
    )
    command.add_argument(
        "--compare", action="store_true", help="compare with the recorded code, run again as well"
    )
    command.add_argument(
        "--old",
        type=file,
        metavar="old.py",
        help="compare with this program, run again as well; for queries, which record no code",
    )
    command.add_argument(
        "--run-outputs",
        action="store_true",
        help="call the outputs of the program, too: they write where it says",
    )
    command.add_argument(
        "--allow-removed",
        action="append",
        default=[],
        metavar="UID",
        help="an operator or input whose state or progress may be dropped; can be repeated",
    )
    command.add_argument(
        "--fork",
        metavar="DIR",
        help="empty directory for the copy, which is kept; on a cluster one that all hosts reach",
    )
    command.add_argument(
        "--record",
        metavar="FILE",
        help="instead: write these batches with their input to a new file, to replay it elsewhere",
    )
    command.add_argument(
        "--samples",
        type=number_type(0, "samples", int),
        default=3,
        metavar="N",
        help="differences to print of each output and state in a batch (default: 3)",
    )
    command.add_argument("--json", action="store_true", help="a JSON object for each batch")
    command.add_argument("--results", help=argparse.SUPPRESS)  # of the program in --old
    command.add_argument(
        "arguments", nargs="*", metavar="args", help="arguments of the program, after --"
    )
    command.set_defaults(run=_run)


def _run(options: argparse.Namespace) -> int:
    if options.record is not None:
        return _record(options)
    if options.app is None:
        return complain("replay", "which program? dstreams replay CHECKPOINT --app app.py", MISUSED)
    from dstreams.compat.run import run_program
    from dstreams.engine.replay import taking

    others = []

    def take(context: Any) -> None:
        try:
            if not _is_replayed(options.url, context):
                others.append(context)
                return
            status = _replay(options, context)
        except StreamError as error:
            status = complain("replay", error, FAILED)
        raise SystemExit(status)

    with taking(take):
        status = run_program(options.app, options.arguments, {}, is_quiet=True)
    if status and not others:
        return status
    if not others:
        missing = f"{options.app} starts no stream; call ssc.start()"
    else:
        started = ", ".join(map(_name_of, others))
        made = without_secrets(options.url)
        missing = f"{options.app} starts {started}, but {made} is the checkpoint of another one"
    return complain("replay", missing, FAILED)


def _name_of(program: Any) -> str:
    settings = getattr(program, "settings", None)
    return "streams" if settings is None else f"query {settings.name or 'without a name'}"


def _is_replayed(url: str, program: Any) -> bool:
    """Return whether a program that starts is the one of a checkpoint: a stream, or a query."""
    from dstreams.structured.api.writer import DataStreamWriter
    from dstreams.structured.execution.replay import query_in

    name = query_in(url)
    if name is None or not isinstance(program, DataStreamWriter):
        return (name is None) != isinstance(program, DataStreamWriter)
    return not name or program.settings.name in (None, name)


def _record(options: argparse.Namespace) -> int:
    """Record batches with their input, as the recorded streams read it."""
    from dstreams.context import StreamingContext
    from dstreams.structured.execution.replay import query_in

    if query_in(options.url) is not None:
        return complain("replay", "--record is for streams; this is a query", FAILED)
    span = {"first_ms": options.first_ms, "last_ms": options.last_ms}
    with StreamingContext._replay(options.url, **span) as opened:
        batches = len(opened.left_ms)
        size_bytes = opened.record(options.record)
    sys.stdout.write(f"{options.record}: {batches} batches with their input, {size_bytes} bytes\n")
    return SUCCEEDED


def _replay(options: argparse.Namespace, context: Any) -> int:
    """Replay the streams of a context, and print the report."""
    comparison = Comparison(
        options.url,
        context,
        options.first_ms,
        options.last_ms,
        tuple(options.allow_removed),
        options.fork,
        options.old,
        tuple(options.arguments),
        progress_on(sys.stderr, "dstreams replay", as_json=options.json),
    )
    with comparison.opened, comparison.progress:
        if options.results is not None:
            return comparison.write_results(options.results)
        reports = comparison.run(compare=options.compare, run_outputs=options.run_outputs)
    for report in reports:
        text = report.lines(options.samples, comparison.old_code)
        for line in [json.dumps(report.as_json())] if options.json else text:
            sys.stdout.write(f"{line}\n")
    for note in comparison.notes:
        complain("replay", note, FAILED)
    differing = sum(report.differs for report in reports)
    if not options.json:
        found = f"{differing} differ" if differing else "no difference"
        if not (options.compare or options.old):
            found += f"; compared: {_compared(reports)}"
        sys.stdout.write(f"{len(reports)} batches compared with {comparison.with_what}: {found}\n")
    if not any(report.is_compared for report in reports):
        return complain("replay", f"nothing could be compared; add {comparison.remedy}", FAILED)
    return DIFFERENT if differing or comparison.notes else SUCCEEDED


def _compared(reports: Sequence[BatchReport]) -> str:
    """Return in how many batches each state was compared."""
    counts = Counter(uid for report in reports for uid in report.states)
    kept = Counter(
        uid for report in reports for uid, found in report.states.items() if found is not None
    )
    shown = ", ".join(f"{uid} in {kept[uid]} of {counts[uid]}" for uid in counts)
    return shown or "no state"


@dataclass(frozen=True)
class BatchReport:
    """The differences of one batch; of states None if they could not be compared."""

    batch_id: int
    batch_time_ms: int
    duration_ms: int
    old_duration_ms: int | None
    rows: Mapping[str, int]
    outputs: Mapping[str, list[dict[str, Any]]]
    states: Mapping[str, list[dict[str, Any]] | None]

    @property
    def differs(self) -> bool:
        """Whether an output or state differs."""
        return any(self.outputs.values()) or any(self.states.values())

    @property
    def is_compared(self) -> bool:
        """Whether anything was compared."""
        return bool(self.outputs) or any(found is not None for found in self.states.values())

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON."""
        return {**vars(self), "differs": self.differs}

    def lines(self, samples: int, old_code: str = "recorded code") -> Iterator[str]:
        """Yield the report as text."""
        old = "" if self.old_duration_ms is None else f", {old_code} {self.old_duration_ms} ms"
        at = f"{batch_datetime(self.batch_time_ms)} ({self.batch_time_ms} ms)"
        yield f"batch {self.batch_id} at {at}: {self.duration_ms} ms{old}"
        for kind, found in (("output", self.outputs), ("state", self.states)):
            for uid, differences in found.items():
                if differences:
                    yield f"  {kind} {uid}: {_counts(differences)}"
                    yield from (f"    {_line(one)}" for one in differences[:samples])


def _counts(differences: Sequence[Mapping[str, Any]]) -> str:
    counts = Counter(one["change"] for one in differences)
    names = {"+": "added", "-": "removed", "~": "changed", "?": "not comparable"}
    return ", ".join(f"{counts[sign]} {name}" for sign, name in names.items() if counts[sign])


def _line(difference: Mapping[str, Any]) -> str:
    key = f" {json.dumps(difference['key'])}:" if "key" in difference else ""
    sides = (json.dumps(difference[side]) for side in ("old", "new") if side in difference)
    return f"{difference['change']}{key} {' -> '.join(sides)}"


@dataclass
class Comparison:
    """Runs a program and, if requested, the old code over the same batches.

    The checkpoint of a stream has the old code. That of a query is the program *old*, which another
    process runs with *arguments*, as two programs in one process would share modules. *notes* say
    why a comparison may be wrong, *with_what* what the program was compared with. Close *opened*
    and *progress* at the end.
    """

    url: str
    context: Any
    first_ms: int | None = None
    last_ms: int | None = None
    allow_removed: tuple[str, ...] = ()
    fork: str | None = None
    old: Path | None = None
    arguments: tuple[str, ...] = ()
    progress: Progress = SILENT
    notes: list[str] = field(default_factory=list)
    with_what: str = "the states that the checkpoint keeps (it keeps no outputs)"
    opened: ExitStack = field(default_factory=ExitStack)

    def run(self, *, compare: bool = False, run_outputs: bool = False) -> list[BatchReport]:
        """Return the differences of each batch."""
        before: Sequence[ReplayedBatch | None]
        if self.old is not None and not self._is_query:
            raise InvalidStreamError(
                "--old is for queries: the checkpoint of a stream has its code, so use --compare"
            )
        if compare and self.old is None and self._is_query:
            raise InvalidStreamError(
                f"the checkpoint of a query does not have its code: {self.remedy} instead of "
                "--compare"
            )
        new = self._open(
            "new",
            lambda: self.context,
            write_states=True,
            run_outputs=run_outputs,
            allow_removed=self.allow_removed,
        )
        if compare or self.old is not None:
            self.with_what = f"the {self.old_code}, run again over the same input"
            # Opened before anything runs, so that what prevents it is reported at once.
            self.first_ms, self.last_ms = new.left_ms[0], new.left_ms[-1]
            before, files, ids = self._run_recorded() if self.old is None else self._run_old()
        else:
            before, files, ids = [None] * len(new.left_ms), new.files, new.original
        after = self._steps(new, "running the program")
        states = _state_differences(files, ids, new, after)
        reports = [
            _report(one, other, states[one.batch_time_ms])
            for one, other in zip(after, before, strict=True)
        ]
        if self._is_query and files is new.files:
            self._check_repeatable(reports, "program", lambda: self.context)
        return reports

    @property
    def _is_query(self) -> bool:
        from dstreams.structured.api.writer import DataStreamWriter

        return isinstance(self.context, DataStreamWriter)

    @property
    def old_code(self) -> str:
        """The code that the program is compared with."""
        return "recorded code" if self.old is None else f"program {self.old}"

    @property
    def remedy(self) -> str:
        """The options that compare with code."""
        return "--old with the program that made it" if self._is_query else "--compare"

    def _run_recorded(self, setup: Callable[[], Any] | None = None) -> _Earlier:
        """Run the recorded code, or the program as the old code of a query."""
        old = self._open("old", setup, write_states=True)
        ran = self._steps(old, f"running the {'old program' if setup else 'recorded code'}")
        kept = _state_differences(old.files, old.original, old, ran)
        reports = [_report(batch, None, kept[batch.batch_time_ms]) for batch in ran]
        self._check_repeatable(reports, "old program" if setup else "recorded code", setup)
        return ran, old.files, old.commit_ids()

    def _run_old(self) -> _Earlier:
        """Run the program *old* in another process."""
        from dstreams.engine.replay import ReplayedBatch

        scratch = self.opened.enter_context(TemporaryDirectory(prefix="dstreams-replay-"))
        fork, results = self.fork or scratch, os.path.join(scratch, "results.json")
        span = ["--from", str(self.first_ms), "--to", str(self.last_ms)]
        command = ["replay", self.url, "--app", str(self.old), *span, "--fork", fork]
        process = [sys.executable, "-m", "dstreams", *command, "--results", results, "--"]
        done = subprocess.run([*process, *self.arguments], stdout=sys.stderr, check=False)
        if done.returncode:
            raise InvalidStreamError(f"{self.old} cannot be compared with; see its error above")
        found = json.loads(Path(results).read_text(encoding="utf-8"))
        self.notes += found["notes"]
        files = open_files(_below(fork, "old"))
        ids = {one.time_ms: one for one in CommitLog(files).ids()}
        return [ReplayedBatch(**batch, states={}) for batch in found["batches"]], files, ids

    def write_results(self, file: str) -> int:
        """Run the program as the old code of a query; write its results for :meth:`run`."""
        from checkpoint.cli import shown_rows

        ran, _, _ = self._run_recorded(lambda: self.context)
        batches = [
            {
                "batch_id": batch.batch_id,
                "batch_time_ms": batch.batch_time_ms,
                "outputs": {uid: shown_rows(rows) for uid, rows in batch.outputs.items()},
                "duration_ms": batch.duration_ms,
            }
            for batch in ran
        ]
        found = json.dumps({"batches": batches, "notes": self.notes})
        Path(file).write_text(found, encoding="utf-8")
        return SUCCEEDED

    def _open(self, name: str, setup: Callable[[], Any] | None, **options: Any) -> Replay:
        fork = None if self.fork is None else _below(self.fork, name)
        options = {"first_ms": self.first_ms, "last_ms": self.last_ms, "fork": fork, **options}
        replay: Replay = type(self.context)._replay(self.url, setup, **options)
        return self.opened.enter_context(replay)

    def _steps(self, replay: Replay, stage: str) -> list[ReplayedBatch]:
        """Run all batches of a replay."""
        batches = self.progress.over(list(replay.left_ms), stage)
        return [batch for _ in batches for batch in replay.step(states=False)]

    def _check_repeatable(
        self, reports: Sequence[BatchReport], code: str, setup: Callable[[], Any] | None
    ) -> None:
        """Note where code, run again, does not make the states that the checkpoint keeps.

        The *program* may be changed code: only if two runs of it differ, it is not repeatable.
        """
        for batch in reports:
            uids = [uid for uid, found in batch.states.items() if found]
            if uids:
                first = self._first_operator(batch.batch_time_ms, setup)
                if first is None and code == "program":
                    return
                self.notes.append(
                    f"the {code}, run again, does not make the states that the checkpoint "
                    f"keeps: from batch {batch.batch_id} on, first in "
                    f"{first or f'the state {uids[0]}'}; so some of the "
                    "differences may be due to functions that read a clock, random numbers or "
                    "another system"
                )
                return

    def _first_operator(self, upto_ms: int, setup: Callable[[], Any] | None) -> str | None:
        """Return the first operator that makes other records when it runs twice, if any."""
        from checkpoint.cli import row_differences

        runs = []
        for name in ("again-1", "again-2"):
            again = self._open(name, setup, record_operators=True, last_ms=upto_ms)
            runs.append(self._steps(again, "looking for what is not repeatable"))
        for one, other in zip(*runs, strict=True):
            for uid, operator in again.operators.items():
                rows = (batch.outputs.get(uid, []) for batch in (one, other))
                if row_differences(*rows):
                    return operator
        return None


def _below(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}"


def _state_differences(
    old_files: Any,
    old_ids: Mapping[int, RecordId],
    new: Replay,
    batches: Sequence[ReplayedBatch],
) -> dict[int, dict[str, list[dict[str, Any]] | None]]:
    """Return the differences of each state, in the order of the graph, by batch time and uid."""
    from checkpoint.cli import state_differences, states_after

    new_ids = new.commit_ids()
    order = {uid: number for number, uid in enumerate(new.operators)}
    found: dict[int, dict[str, list[dict[str, Any]] | None]] = {}
    for batch in batches:
        time_ms = batch.batch_time_ms
        states = states_after(new.files, new_ids[time_ms])
        kept = states_after(old_files, old_ids[time_ms]) if time_ms in old_ids else {}
        of_batch: dict[str, list[dict[str, Any]] | None] = {}
        for key in sorted(states, key=lambda one: (order.get(one[0], 0), one)):
            name = key[0] if key[1] in ("", "default") else f"{key[0]} ({key[1]})"
            if key in kept:
                pairs = (kept[key].pairs(), states[key].pairs())
                of_batch[name] = list(state_differences(*pairs))
            else:
                of_batch[name] = None
        found[time_ms] = of_batch
    return found


def _report(
    new: ReplayedBatch,
    old: ReplayedBatch | None,
    states: Mapping[str, list[dict[str, Any]] | None],
) -> BatchReport:
    from checkpoint.cli import row_differences

    outputs = {}
    if old is not None:
        uids = sorted({*old.outputs, *new.outputs})
        outputs = {
            uid: row_differences(old.outputs.get(uid, []), new.outputs.get(uid, [])) for uid in uids
        }
    return BatchReport(
        new.batch_id,
        new.batch_time_ms,
        new.duration_ms,
        None if old is None else old.duration_ms,
        {uid: len(rows) for uid, rows in new.outputs.items()},
        outputs,
        states,
    )
