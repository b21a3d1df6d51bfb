"""What a SparkContext keeps beyond a test, taken back."""

from __future__ import annotations

from typing import Any

from pyspark import SparkContext


def set_checkpoint_directory(spark: SparkContext, directory: Any) -> Any:
    """Set the checkpoint directory to a Scala Option, None for an empty one; return the old."""
    jvm: Any = spark._jvm
    context: Any = spark._jsc.sc()
    known = context.checkpointDir()
    setter = getattr(context, "checkpointDir_$eq")
    setter(jvm.scala.Option.empty() if directory is None else directory)
    return known


def forget_all(spark: SparkContext) -> None:
    """Forget the checkpoint directory and all persisted RDDs."""
    set_checkpoint_directory(spark, None)
    for rdd in spark._jsc.getPersistentRDDs().values():
        rdd.unpersist(False)
    vars(spark).pop("_dstreams_pinned", None)  # or these would be taken for persisted
