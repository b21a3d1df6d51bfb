"""Answers that depend on the arguments of a call."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from dstreams.compat.check.answers import Answer, Kind
from dstreams.compat.check.table import NO_HDFS, ROUNDED

_BROKERS = ("metadata.broker.list", "bootstrap.servers")
NO_BROKERS = Answer(
    Kind.SET,
    "The call names ZooKeeper alone, which Kafka has no more.",
    "Name the brokers: dstreams run --conf "
    "spark.dstreams.kafka.bootstrapServers=HOST:PORT app.py, or "
    "kafkaParams={'metadata.broker.list': 'HOST:PORT'} in the call.",
    ("`pyspark.streaming.kafka`",),
)
MAY_HAVE_NO_BROKERS = Answer(
    Kind.SET,
    "The brokers are asked for, where kafkaParams may not have them.",
    "Where neither metadata.broker.list nor bootstrap.servers is in it: dstreams run --conf "
    "spark.dstreams.kafka.bootstrapServers=HOST:PORT app.py.",
    ("`pyspark.streaming.kafka`",),
)


def answers_of_call(name: str, call: ast.Call) -> Iterator[Answer]:
    """Yield what is to be said of a call beside what is said of its name."""
    if name == "StreamingContext":
        yield from _durations(_argument(call, 1, "batchDuration"))
    elif name in ("StreamingContext.checkpoint", "StreamingContext.getOrCreate"):
        if _text(_argument(call, 0, "directory", "checkpointPath")).startswith("hdfs:"):
            yield NO_HDFS
    elif name == "KafkaUtils.createStream":
        given = _argument(call, 4, "kafkaParams")
        if given is None or (isinstance(given, ast.Dict) and not _has_brokers(given)):
            yield NO_BROKERS
        elif not isinstance(given, ast.Dict):
            yield MAY_HAVE_NO_BROKERS


def _argument(call: ast.Call, place: int, *names: str) -> ast.expr | None:
    named = next((one.value for one in call.keywords if one.arg in names), None)
    if named is not None:
        return named
    return call.args[place] if place < len(call.args) else None


def _durations(given: ast.expr | None) -> Iterator[Answer]:
    if isinstance(given, ast.Constant) and isinstance(given.value, float):
        ms = given.value * 1000
        if int(ms) != round(ms):
            yield ROUNDED


def _text(given: ast.expr | None) -> str:
    """Return a text as far as it is written there, its beginning at least."""
    if isinstance(given, ast.JoinedStr) and given.values:
        given = given.values[0]
    if isinstance(given, ast.BinOp):
        return _text(given.left)
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str) else ""


def _has_brokers(given: ast.Dict) -> bool:
    return any(key is None or _text(key) in _BROKERS for key in given.keys)
