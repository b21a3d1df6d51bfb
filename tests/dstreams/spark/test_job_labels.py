"""Descriptions in Spark's UI of jobs that do not belong to a batch."""

from __future__ import annotations

from pyspark import SparkContext

from dstreams.spark.job_labels import DESCRIPTION, described_jobs


def test_jobs_of_no_batch_say_what_they_are_for(sc: SparkContext) -> None:
    """Names of a program are text in Spark's page; what was said before is said again behind it."""
    sc.setLocalProperty(DESCRIPTION, "mine")
    try:
        with described_jobs(sc, "state of <b>"):
            assert sc.getLocalProperty(DESCRIPTION) == "state of &lt;b&gt;"
        assert sc.getLocalProperty(DESCRIPTION) == "mine"
    finally:
        sc.setLocalProperty(DESCRIPTION, None)  # type: ignore[arg-type]
