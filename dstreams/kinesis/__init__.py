"""Read Amazon Kinesis streams with the API of ``pyspark.streaming.kinesis``.

Needs the package boto3: ``pip install 'dstreams[kinesis]'``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dstreams.common.imports import lazy_names

if TYPE_CHECKING:
    from dstreams.compat.kinesis_utils import InitialPositionInStream as InitialPositionInStream
    from dstreams.compat.kinesis_utils import KinesisUtils as KinesisUtils
    from dstreams.compat.kinesis_utils import MetricsLevel as MetricsLevel
    from dstreams.kafka.decoders import utf8_decoder as utf8_decoder

_HOMES = {
    "InitialPositionInStream": "dstreams.compat.kinesis_utils",
    "KinesisUtils": "dstreams.compat.kinesis_utils",
    "MetricsLevel": "dstreams.compat.kinesis_utils",
    "utf8_decoder": "dstreams.kafka.decoders",
}

__all__ = list(_HOMES)
__getattr__, __dir__ = lazy_names(__name__, _HOMES)
