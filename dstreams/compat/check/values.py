"""What an expression of a program stands for, as far as its file says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from dstreams.compat.check.table import ANSWERS, MODULES, PACKAGE, PRIVATE


class Value(NamedTuple):
    """One of the things that an expression may be.

    Args:
        kind: ``module``, ``class``, ``instance``, ``callable`` (all by their names in the table of
            answers), ``local`` (a function or class of the file, by a number), ``object`` (an
            instance of such a class), or ``other`` (of another package).
        name: which one.
    """

    kind: str
    name: str


Values = frozenset[Value]

NOTHING: Values = frozenset()
OTHER: Values = frozenset([Value("other", "")])
STREAM, CONTEXT = Value("instance", "DStream"), Value("instance", "StreamingContext")

_NO_STREAM = ("foreachRDD", "pprint", "saveAsTextFiles", "slice", "")
_RETURNS: Mapping[str, Value] = {
    **{
        name: STREAM
        for name in ANSWERS
        if name.startswith("DStream.") and name.partition(".")[2] not in _NO_STREAM
    },
    "DStream.context": CONTEXT,
    **dict.fromkeys(
        (
            "StreamingContext.getActive",
            "StreamingContext.getActiveOrCreate",
            "StreamingContext.getOrCreate",
        ),
        CONTEXT,
    ),
    **dict.fromkeys(
        (
            "StreamingContext.binaryRecordsStream",
            "StreamingContext.queueStream",
            "StreamingContext.socketTextStream",
            "StreamingContext.textFileStream",
            "StreamingContext.transform",
            "StreamingContext.union",
            "FlumeUtils.createPollingStream",
            "FlumeUtils.createStream",
            "KafkaUtils.createDirectStream",
            "KafkaUtils.createStream",
            "KinesisUtils.createStream",
            "MQTTUtils.createStream",
        ),
        STREAM,
    ),
    "KafkaUtils.createRDD": Value("instance", "KafkaRDD"),
}
_CLASSES = frozenset(name for name in ANSWERS if "." not in name and name[:1].isupper())
_BASES = {"KafkaDStream": "DStream", "KafkaTransformedDStream": "DStream"}
_BASES["TransformedDStream"] = "DStream"

ONLY_OF_STREAMING = {
    **{
        name: f"DStream.{name}"
        for name in (
            *("countByValueAndWindow", "countByWindow", "foreachRDD", "groupByKeyAndWindow"),
            *("reduceByKeyAndWindow", "reduceByWindow", "saveAsTextFiles", "transformWith"),
            *("updateStateByKey", "_jdstream"),
        )
    },
    **{
        name: f"StreamingContext.{name}"
        for name in (
            *("addStreamingListener", "awaitTerminationOrTimeout", "binaryRecordsStream"),
            *("queueStream", "socketTextStream", "textFileStream", "_jssc"),
        )
    },
}
"""Names that nothing else has, so that they are known also where the object is not."""


def imported(module: str, name: str | None = None) -> Values:
    """Return what an import gives: of a module, or of a name in it."""
    if name is None:
        ours = module in MODULES or module.split(".", maxsplit=1)[0] == "pyspark"
        return frozenset([Value("module", module)]) if ours else OTHER
    return member(Value("module", module), name)


def member(value: Value, name: str) -> Values:
    """Return what an attribute of a value is."""
    if value.kind == "module":
        return _of_module(value.name, name)
    if value.kind in ("class", "instance"):
        full = qualified(value.name, name)
        if full == "StreamingContext.sparkContext":
            return OTHER
        return frozenset([Value("callable", full)]) if full in ANSWERS else NOTHING
    return OTHER if value.kind == "other" else NOTHING


def qualified(owner: str, name: str) -> str:
    """Return the key of a member, which may be of a class above."""
    full = f"{owner}.{name}"
    if full not in ANSWERS and owner in _BASES:
        return f"{_BASES[owner]}.{name}"
    return full


def _of_module(module: str, name: str) -> Values:
    full = f"{module}.{name}"
    if full in MODULES or (module == "pyspark" and full == PACKAGE):
        return frozenset([Value("module", full)])
    if name in MODULES.get(module, ()):
        return frozenset([Value("class" if name in _CLASSES else "callable", name)])
    return NOTHING if module in MODULES else OTHER


def called(value: Value) -> Values:
    """Return what a call of a value returns."""
    if value.kind == "class":
        return frozenset([Value("instance", _BASES.get(value.name, value.name))])
    if value.kind == "callable" and value.name in _RETURNS:
        return frozenset([_RETURNS[value.name]])
    return OTHER if value.kind == "other" else NOTHING


def is_known(name: str) -> bool:
    """Whether there is an answer for a name."""
    return name in ANSWERS or name in PRIVATE
