"""Running programs, many of them in one StreamingContext, on either side.

Nothing here knows which side it is on: the StreamingContext and the way to let a batch pass are
handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from tempfile import TemporaryDirectory
from typing import Any

from pyspark import RDD, SparkContext
from pyspark.resultiterable import ResultIterable

from tests.conformance.programs import Program

REMEMBERED_S = 3600


@dataclass(frozen=True)
class Failed:
    """A batch, or a definition, that ended with an error.

    Args:
        error: name of the error's class.
        text: what it says; not compared.
    """

    error: str
    text: str = field(default="", compare=False)


Batch = list[Any] | Failed | None
"""The records of a batch, None for a batch without an RDD."""


@dataclass(frozen=True)
class Run:
    """What came out of a program.

    Args:
        batches: each batch of the output; fewer than asked for after one whose RDDs could not be
            made. A definition that was refused is one failed batch.
        slices: for each slice, the records of its RDDs.
    """

    batches: list[Batch]
    slices: list[list[list[Any]]] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return any(isinstance(batch, Failed) for batch in self.batches)


class Collector:
    """Keeps the RDDs of the outputs of one batch, and collects them all in one Spark job."""

    def __init__(self, spark: SparkContext) -> None:
        self.runs: dict[int, list[Batch]] = {}
        self._spark = spark
        self._rdds: dict[int, RDD[Any]] = {}
        self._slices: list[tuple[int, Any, int, int]] = []
        self.passed = 0

    def define(self, ssc: Any, index: int, program: Program) -> None:
        self.runs[index] = []

        def output(stream: Any) -> None:
            stream.foreachRDD(lambda rdd: self._rdds.__setitem__(index, rdd))

        def slices(stream: Any, begin: int, end: int) -> None:
            self._slices.append((index, stream, begin, end))

        program.define(ssc, output, slices)

    def end_batch(self) -> None:
        """Collect what the outputs of a batch were given; the last output of a batch calls it."""
        for index, batch in self._collected().items():
            self.runs[index].append(batch)
        self._rdds.clear()
        self.passed += 1

    def slices(self) -> dict[int, list[list[list[Any]]]]:
        """Collect the slices that programs ask for."""
        found: dict[int, list[list[list[Any]]]] = {index: [] for index in self.runs}
        for index, stream, begin, end in self._slices:
            found[index].append([plain(rdd.collect()) for rdd in stream.slice(begin, end)])
        return found

    def _collected(self) -> dict[int, Batch]:
        found: dict[int, Batch] = dict.fromkeys(self.runs)
        found.update((index, []) for index in self._rdds)
        if not self._rdds:
            return found
        tagged = [rdd.mapPartitions(partial(_tagged, index)) for index, rdd in self._rdds.items()]
        try:
            records = self._spark.union(tagged).collect()
        except Exception:
            return found | {index: _collected(rdd) for index, rdd in self._rdds.items()}
        for index, record in records:
            found[index].append(plain(record))  # type: ignore[union-attr]
        return found


def _tagged(index: int, records: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    return ((index, record) for record in records)


def _collected(rdd: RDD[Any]) -> Batch:
    try:
        return plain(rdd.collect())  # type: ignore[no-any-return]
    except Exception as error:
        return failure(error)


def failure(error: BaseException) -> Failed:
    return Failed(type(error).__name__, str(error)[-3000:])


def text_of(batch: Batch, ordered: bool) -> str:
    """Return a text that is equal for equal batches: 1, 1.0 and True are three things."""
    if isinstance(batch, Failed):
        return repr(Failed(batch.error))
    if batch is None or ordered:
        return repr(batch)
    return repr(sorted(batch, key=repr))


def plain(value: Any) -> Any:
    """Return a value of plain lists and tuples; groups have no order, so they are sorted."""
    if isinstance(value, ResultIterable):
        return ["group", *sorted(map(plain, value), key=repr)]
    if type(value) in (list, tuple):
        return type(value)(map(plain, value))
    return value


def run_programs(
    spark: SparkContext,
    programs: Sequence[Program],
    open_context: Callable[[], Any],
    let_batch_pass: Callable[[Any, Callable[[], bool]], None],
) -> list[Run]:
    """Run programs in one StreamingContext, as many batches as the longest asks for.

    Args:
        spark: the SparkContext.
        programs: what to run. One whose RDDs cannot be made ends the run of all: such a program is
            to be run alone.
        open_context: makes a StreamingContext with batches of a second, the first at 1 s.
        let_batch_pass: lets the next batch become due and waits until the function given to it
            says that its last output was called; raises when that cannot happen any more.
    """
    with TemporaryDirectory() as directory:
        spark.setCheckpointDir(directory)
        ssc = open_context()
        collector = Collector(spark)
        try:
            return _run(ssc, collector, programs, let_batch_pass)
        finally:
            ssc.stop(stopSparkContext=False)


def _run(
    ssc: Any,
    collector: Collector,
    programs: Sequence[Program],
    let_batch_pass: Callable[[Any, Callable[[], bool]], None],
) -> list[Run]:
    try:
        for index, program in enumerate(programs):
            collector.define(ssc, index, program)
    except Exception as error:
        return [Run([failure(error)]) for _ in programs]
    ssc.remember(REMEMBERED_S)
    last = ssc.queueStream([ssc.sparkContext.emptyRDD()])
    last.foreachRDD(lambda rdd: collector.end_batch())
    broken: list[Batch] = []
    for number in range(max(program.batches for program in programs)):
        try:
            if not number and not hasattr(ssc, "step"):
                ssc.start()
            let_batch_pass(ssc, lambda wanted=number: collector.passed > wanted)
        except Exception as error:
            broken.append(failure(error))
            break
    slices = collector.slices()
    return [
        Run([*collector.runs[index], *broken][: program.batches], slices[index])
        for index, program in enumerate(programs)
    ]
