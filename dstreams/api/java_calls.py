"""``StreamingContext._jssc``: what old programs and test harnesses call on the JVM's context."""

from __future__ import annotations

from typing import Any, Protocol

from pyspark import SparkContext


class _Context(Protocol):
    """What a call is passed on to."""

    @property
    def sparkContext(self) -> SparkContext: ...

    def start(self) -> None: ...

    def stop(self, stopSparkContext: bool = True, stopGraceFully: bool = False) -> None: ...

    def awaitTermination(self, timeout: float | None = None) -> None: ...

    def awaitTerminationOrTimeout(self, timeout: float | None = None) -> bool: ...

    def getState(self) -> Any: ...


class JavaCalls:
    """Stands where ``pyspark.streaming`` keeps the JavaStreamingContext, which is not public there.

    It has the calls that begin, end and watch a context, with the arguments and units of Java.
    Others fail with a word on where to look: streams are made in Python here, so there is no stream
    of the JVM to be had.

    Args:
        context: the context that calls are passed on to.

    Semantics: Spark's JavaStreamingContext (4.3), as Spark's own Python suites use it.
    """

    def __init__(self, context: _Context) -> None:
        self._context = context

    def start(self) -> None:
        """Start the streams."""
        self._context.start()

    def stop(self, stopSparkContext: bool = True, stopGracefully: bool = False) -> None:
        """Stop the streams, and the SparkContext unless asked not to."""
        self._context.stop(stopSparkContext, stopGracefully)

    def close(self) -> None:
        """Stop the streams and the SparkContext."""
        self._context.stop()

    def awaitTermination(self) -> None:
        """Wait until the streams are stopped."""
        self._context.awaitTermination()

    def awaitTerminationOrTimeout(self, timeout: int) -> bool:
        """Wait at most *timeout* milliseconds, and say whether the streams are stopped."""
        return self._context.awaitTerminationOrTimeout(timeout / 1000)

    def getState(self) -> Any:
        """Return where the context is in its life."""
        return self._context.getState()

    def sparkContext(self) -> Any:
        """Return the JavaSparkContext."""
        return self._context.sparkContext._jsc

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(
            f"_jssc has no {name!r}: no streaming class of the JVM is used here; call what the "
            "StreamingContext itself has"
        )
