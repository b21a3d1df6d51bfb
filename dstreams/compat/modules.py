"""``pyspark.streaming`` as programs import it, made of the classes of dstreams.

After :func:`install` every import of ``pyspark.streaming`` in this process, and of its modules in
:data:`NAMES`, gives the names of dstreams; of Spark's own streaming nothing is loaded. Workers are
other processes, and are left alone: what a function there imports under this name is Spark's own,
if the installed PySpark has it.
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
"""What each module has for programs; the package also has its modules, as attributes."""

_UNLISTED: Mapping[str, Mapping[str, Any]] = {
    f"{PACKAGE}.kafka": {"KafkaDStream": kafka.KafkaDStream24, "KafkaRDD": kafka.KafkaRDD24},
}
"""What modules have beside, for who asks for it by name."""

OLD_LEVELS: Mapping[str, StorageLevel] = {
    "MEMORY_ONLY_SER": StorageLevel.MEMORY_ONLY,
    "MEMORY_ONLY_SER_2": StorageLevel.MEMORY_ONLY_2,
    "MEMORY_AND_DISK_SER": StorageLevel.MEMORY_AND_DISK,
    "MEMORY_AND_DISK_SER_2": StorageLevel.MEMORY_AND_DISK_2,
}
"""Storage levels of PySpark up to 2.4, which were other names of these."""

_ELSEWHERE = {
    "flume": (
        "Spark removed it in 3.0; let Flume's Kafka sink write to a topic and read that by "
        f"{PACKAGE}.kafka, or read it by a dstreams.Receiver of your own in ssc.receiverStream"
    ),
}

logger = logging.getLogger(__name__)


def install() -> None:
    """Make every later import of ``pyspark.streaming`` one of dstreams.

    Modules of it that were imported before are replaced, and a warning says so: what was taken from
    them until now stays Spark's.
    """
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())
    before = [name for name in sys.modules if _is_below(name) and not _is_ours(name)]
    for name in before:
        del sys.modules[name]
    if before:
        logger.warning(
            "%s was imported before dstreams took its place: what was taken from it stays Spark's "
            "own; import it after dstreams has been started",
            PACKAGE,
        )
    for name in NAMES:
        import_module(name)
    _add_old_levels()


def _add_old_levels() -> None:
    """Give the storage levels that PySpark has no more, by which programs persist streams."""
    for name, level in OLD_LEVELS.items():
        if not hasattr(StorageLevel, name):
            setattr(StorageLevel, name, level)


class _Finder(MetaPathFinder):
    """Finds the modules in :data:`NAMES`, and says of others below the package what to do."""

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
        module.__doc__ = f"Stands for Spark's {module.__name__}: the names are those of dstreams."
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
    why = _ELSEWHERE.get(module, f"of {PACKAGE} it has {has}")
    return f"dstreams has no {fullname}: {why}"
