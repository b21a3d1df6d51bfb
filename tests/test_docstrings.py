"""The examples of docstrings run, and every public method of a stream has one."""

from __future__ import annotations

import ast
import doctest
import importlib
import operator
from collections.abc import Callable
from operator import add
from pathlib import Path
from typing import Any

import pytest
from pyspark import SparkContext

from checkpoint import open_files
from checkpoint.state_store import LmdbBackend, StateStore, StoreId
from dstreams import DStream, StreamingContext, StreamingContextState
from dstreams.spark.blocks import Side
from dstreams.spark.partitioner import StablePartitioner
from dstreams.spark.reduction import Reduction, reduce_pairs
from dstreams.spark.shuffle import BlockPairsRDD
from dstreams.testing import ManualClock, run_batches

ROOT = Path(__file__).parents[1]

# Packages whose examples are run; others show programs that a network, a directory or the user's
# own data belong to.
RUN = (
    "dstreams.dstream.block_dstream",
    "dstreams.dstream",
    "dstreams.context",
    "dstreams.arrow.aggregates.",
    "dstreams.arrow",
    "dstreams.spark",
    "dstreams.state",
    "dstreams.structured.named_rows",
    "dstreams.structured.operators",
    "dstreams.structured.plan.result_names",
    "checkpoint",
    "dstreams.common.callables",
    "dstreams.common.imports",
    "dstreams.kafka.decoders",
    "dstreams.kafka.decoding",
)

SHOWN = {
    "dstreams.arrow.aggregates": "aggregates the blocks of a user",
    "dstreams.spark.rdd_files": "writes where the caller says",
    "checkpoint": "run by a test of its own, because it writes to a file system all share",
}

WITHOUT_EXAMPLE = {
    "cache": "that of persist",
    "checkpoint": "that of persist",
    "context": "a plain attribute",
    "is_cached": "a plain attribute",
    "is_checkpointed": "a plain attribute",
}


def modules_with_examples() -> list[str]:
    """Names of the modules whose docstrings have examples."""
    found = []
    for package in ("dstreams", "checkpoint"):
        for path in sorted((ROOT / package).rglob("*.py")):
            docstrings = (
                ast.get_docstring(node) or ""
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            )
            if any(">>>" in text for text in docstrings):
                relative = path.relative_to(ROOT).with_suffix("")
                found.append(".".join(relative.parts).removesuffix(".__init__"))
    return [name for name in found if name.startswith(RUN) and name not in SHOWN]


def run_on(spark: SparkContext) -> Callable[..., list[Any]]:
    """Return ``run`` of the examples: batches in, sorted batches out."""

    def run(
        batches: list[Any], operation: Callable[..., DStream[Any]], *others: list[Any]
    ) -> list[Any]:
        results = run_batches(spark, batches, operation, *others)
        return [None if batch is None else sorted(batch, key=repr) for batch in results]

    return run


@pytest.fixture
def names(sc: SparkContext, tmp_path: Path) -> dict[str, Any]:
    """What the examples take for granted."""
    bases = LmdbBackend(open_files(str(tmp_path / "files")), str(tmp_path / "local"))
    partitioner, both = StablePartitioner(2), Reduction(add, "sum")
    monday = reduce_pairs(sc.parallelize([("a", 1), ("b", 2)]), both, partitioner)
    tuesday = reduce_pairs(sc.parallelize([("b", 7)]), both, partitioner)
    return {
        "run": run_on(sc),
        "spark": sc,
        "operator": operator,
        "partitioner": partitioner,
        "words": sc.parallelize([("a", 1), ("a", 3), ("b", 2)]),
        "monday": monday,
        "tuesday": tuesday,
        "BlockPairsRDD": BlockPairsRDD,
        "Side": Side,
        "store": StateStore(bases),
        "store_id": StoreId("examples", "counts-0", "default", 0, 2),
    }


def examples_of(module: str) -> list[doctest.DocTest]:
    finder = doctest.DocTestFinder(exclude_empty=True)
    return [test for test in finder.find(importlib.import_module(module)) if test.examples]


@pytest.mark.deep
@pytest.mark.parametrize("module", modules_with_examples())
def test_examples(module: str, names: dict[str, Any], sc: SparkContext, tmp_path: Path) -> None:
    """What an example prints is what stands below it."""
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    said: list[str] = []
    for number, test in enumerate(examples_of(module)):
        ssc = StreamingContext(sc, 1, clock=ManualClock())
        directory = str(tmp_path / str(number))
        test.globs.update(names, ssc=ssc, directory=directory)
        runner.run(test, out=said.append)
        if ssc.getState() is StreamingContextState.ACTIVE:
            ssc.stop(stopSparkContext=False)
    assert runner.summarize(verbose=False).failed == 0, "".join(said)
    assert runner.tries > 0


def test_every_method_has_an_example() -> None:
    """A method of DStream shows how it is used, or says here why not."""
    methods = [name for name in dir(DStream) if not name.startswith("_")]
    without = [name for name in methods if ">>>" not in (getattr(DStream, name).__doc__ or "")]
    assert sorted(without) == sorted(WITHOUT_EXAMPLE)
