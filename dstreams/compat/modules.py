"""Replaces the modules of ``pyspark.streaming`` by the classes of dstreams.

After :func:`install`, every import of ``pyspark.streaming`` in this process, and of its modules in
:data:`NAMES`, returns the names of dstreams; nothing of Spark's own streaming is loaded. Workers
are other processes, where these imports are still those of the installed PySpark.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from pyspark import StorageLevel

from dstreams import DStream, StreamingContext, StreamingListener
from dstreams.compat import kafka24 as kafka
from dstreams.compat.kafka24_messages import KafkaMessageAndMetadata
from dstreams.compat.kinesis_utils import InitialPositionInStream, KinesisUtils, MetricsLevel
from dstreams.kafka.decoders import utf8_decoder
from dstreams.util import rddToFileName

PACKAGE = "pyspark.streaming"

NAMES: Mapping[str, Mapping[str, Any]] = {
    PACKAGE: {
        "StreamingContext": StreamingContext,
        "DStream": DStream,
        "StreamingListener": StreamingListener,
    },
    f"{PACKAGE}.context": {"StreamingContext": StreamingContext},
    f"{PACKAGE}.dstream": {"DStream": DStream},
    f"{PACKAGE}.kafka": {
        "Broker": kafka.Broker,
        "KafkaMessageAndMetadata": KafkaMessageAndMetadata,
        "KafkaUtils": kafka.KafkaUtils24,
        "OffsetRange": kafka.OffsetRange24,
        "TopicAndPartition": kafka.TopicAndPartition,
        "utf8_decoder": utf8_decoder,
    },
    f"{PACKAGE}.kinesis": {
        "KinesisUtils": KinesisUtils,
        "InitialPositionInStream": InitialPositionInStream,
        "MetricsLevel": MetricsLevel,
        "utf8_decoder": utf8_decoder,
    },
    f"{PACKAGE}.listener": {"StreamingListener": StreamingListener},
    f"{PACKAGE}.util": {"rddToFileName": rddToFileName},
}
"""The public names of each module; the package also has its modules as attributes."""

_UNLISTED: Mapping[str, Mapping[str, Any]] = {
    f"{PACKAGE}.kafka": {"KafkaDStream": kafka.KafkaDStream24, "KafkaRDD": kafka.KafkaRDD24},
}
"""Further names, which ``import *`` does not import."""

OLD_LEVELS: Mapping[str, StorageLevel] = {
    "MEMORY_ONLY_SER": StorageLevel.MEMORY_ONLY,
    "MEMORY_ONLY_SER_2": StorageLevel.MEMORY_ONLY_2,
    "MEMORY_AND_DISK_SER": StorageLevel.MEMORY_AND_DISK,
    "MEMORY_AND_DISK_SER_2": StorageLevel.MEMORY_AND_DISK_2,
}
"""Storage levels of PySpark up to 2.4, and the levels that they were aliases of."""

_ELSEWHERE = {
    "flume": (
        "Spark removed it in 3.0; let Flume's Kafka sink write to a topic and read that with "
        f"{PACKAGE}.kafka, or read Flume with your own dstreams.Receiver in ssc.receiverStream"
    ),
}

logger = logging.getLogger(__name__)


def install() -> None:
    """Make every later import of ``pyspark.streaming`` return the names of dstreams.

    Replaces modules that were imported before, with a warning: names already imported from them
    remain Spark's.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    before = [name for name in sys.modules if _is_below(name) and not _is_ours(name)]
    for name in before:
        del sys.modules[name]
    if before:
        logger.warning(
            "%s was imported before dstreams replaced it; names already imported from it remain "
            "Spark's own: import it later",
            PACKAGE,
        )
    for name in NAMES:
        import_module(name)
    _add_old_levels()


def _add_old_levels() -> None:
    """Add the storage levels that PySpark no longer has."""
    for name, level in OLD_LEVELS.items():
        if not hasattr(StorageLevel, name):
            setattr(StorageLevel, name, level)


class _Finder(MetaPathFinder):
    """Finds the modules in :data:`NAMES`; for others of the package the error says what to do."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        if fullname in NAMES:
            return spec_from_loader(fullname, _LOADER, is_package=fullname == PACKAGE)
        if _is_below(fullname):
            raise ModuleNotFoundError(_missing(fullname), name=fullname)
        return None


class _Loader(Loader):
    """Fills a module with its names."""

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None  # an ordinary module

    def exec_module(self, module: ModuleType) -> None:
        names = NAMES[module.__name__]
        module.__doc__ = f"Replaces Spark's {module.__name__} by names of dstreams."
        more = _UNLISTED.get(module.__name__, {})
        module.__dict__.update(names, **more, __all__=list(names))


_LOADER = _Loader()


def _is_below(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def _is_ours(name: str) -> bool:
    return getattr(sys.modules[name], "__loader__", None) is _LOADER


def _missing(fullname: str) -> str:
    module = fullname.removeprefix(f"{PACKAGE}.")
    has = ", ".join(name.removeprefix(f"{PACKAGE}.") for name in list(NAMES)[1:])
    why = _ELSEWHERE.get(module, f"its modules of {PACKAGE} are {has}")
    return f"dstreams has no {fullname}: {why}"
