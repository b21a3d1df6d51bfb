"""Options of the JVMs that tests start: each lives for a minute, and there are many."""

from __future__ import annotations

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""No second compiler and one collector: half the processor time until the first job has run."""

ENVIRONMENT = {"SPARK_SUBMIT_OPTS": SHORT_LIVED}
"""For programs that start Spark on their own; what they set for their JVM comes after it."""
