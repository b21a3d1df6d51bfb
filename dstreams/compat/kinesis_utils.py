"""Streams of Kinesis, with the API of ``pyspark.streaming.kinesis`` (Spark 2.4 to 4.3).

Needs the package boto3: ``pip install 'dstreams[kinesis]'``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, TypeVar

from pyspark import StorageLevel

from dstreams.common.callables import require_arity
from dstreams.common.durations import require_duration_ms
from dstreams.context import StreamingContext
from dstreams.dstream import DStream
from dstreams.errors import InvalidStreamError
from dstreams.kafka.decoders import utf8_decoder
from dstreams.kinesis.kinesis_client import LATEST, TRIM_HORIZON, KinesisConnection
from dstreams.kinesis.kinesis_source import KinesisSource

__all__ = ["InitialPositionInStream", "KinesisUtils", "MetricsLevel", "utf8_decoder"]

_CREATE = "KinesisUtils.createStream"


class InitialPositionInStream:
    """The first position of a stream without a checkpoint: its tip, or its oldest record."""

    LATEST: ClassVar[int] = 0
    TRIM_HORIZON: ClassVar[int] = 1


class MetricsLevel:
    """The metrics that Amazon's library sends to CloudWatch; dstreams sends none."""

    DETAILED: ClassVar[int] = 0
    SUMMARY: ClassVar[int] = 1
    NONE: ClassVar[int] = 2


_INITIAL = {InitialPositionInStream.LATEST: LATEST, 1: TRIM_HORIZON}


_CreateStream = TypeVar("_CreateStream", bound=Callable[..., Any])

_PLACE_OF_METRICS_LEVEL = 7


def _as_in_2_4(create: _CreateStream) -> _CreateStream:
    """Accept positional arguments in the order of Spark 2.4, without *metricsLevel*."""

    @wraps(create)
    def called(*arguments: Any, **named: Any) -> Any:
        before, rest = arguments[:_PLACE_OF_METRICS_LEVEL], arguments[_PLACE_OF_METRICS_LEVEL:]
        if rest and isinstance(rest[0], StorageLevel):
            rest = (MetricsLevel.DETAILED, *rest)
        return create(*before, *rest, **named)

    return called  # type: ignore[return-value]


class KinesisUtils:
    """Creates streams of Kinesis."""

    @staticmethod
    @_as_in_2_4
    def createStream(
        ssc: StreamingContext,
        kinesisAppName: str,
        streamName: str,
        endpointUrl: str,
        regionName: str,
        initialPositionInStream: int,
        checkpointInterval: float,
        metricsLevel: int = MetricsLevel.DETAILED,
        storageLevel: StorageLevel = StorageLevel.MEMORY_AND_DISK_2,
        awsAccessKeyId: str | None = None,
        awsSecretKey: str | None = None,
        decoder: Callable[[bytes], Any] = utf8_decoder,
        stsAssumeRoleArn: str | None = None,
        stsSessionName: str | None = None,
        stsExternalId: str | None = None,
    ) -> DStream[Any]:
        """Create a stream of the records of a Kinesis stream.

        The driver reads the shards with boto3. The begin record of a batch has the sequence numbers
        that it reads, and a restart reads the same records from Kinesis again: with a checkpoint
        directory, no record is lost or counted twice while Kinesis retains it. Records aggregated
        by the Kinesis Producer Library are returned one by one.

        Args:
            ssc: the streaming context.
            kinesisAppName: has no effect: DynamoDB is not used, as the checkpoint of the stream has
                its progress.
            streamName: name of the Kinesis stream.
            endpointUrl: URL of the service, for example ``https://kinesis.us-east-1.amazonaws.com``.
            regionName: name of the region, for example ``us-east-1``.
            initialPositionInStream: the first position if there is no checkpoint: the oldest record
                (``InitialPositionInStream.TRIM_HORIZON``) or only new ones
                (``InitialPositionInStream.LATEST``).
            checkpointInterval: seconds. Has no effect: progress is durable with every batch.
            metricsLevel: has no effect: nothing is sent to CloudWatch. Spark 2.4 does not have this
                parameter; positional arguments may omit it.
            storageLevel: has no effect, as for every receiver.
            awsAccessKeyId: id of an access key. None: boto3 finds one in the environment, a
                profile or the role of the machine.
            awsSecretKey: the access key. Unlike in Spark, it is not in the checkpoint: after
                ``getOrCreate`` boto3 must find a key, as without these parameters.
            decoder: ``f(bytes) -> record``; ``lambda data: data`` for the bytes.
            stsAssumeRoleArn: ARN of a role to assume with STS; requires the session name and the
                external id. Its keys are renewed before they expire.
            stsSessionName: name of the session.
            stsExternalId: the external id that the trust policy of the role requires.

        Raises:
            InvalidStreamError: a parameter is invalid.
            EnvironmentNotReadyError: boto3 is not installed. Workers need it too, after a restart.

        Rate limits: ``spark.streaming.receiver.maxRate`` and backpressure.
        Semantics: pyspark.streaming.kinesis.KinesisUtils (4.3, and calls as in 2.4).
        """
        if not isinstance(ssc, StreamingContext):
            raise InvalidStreamError(
                f"ssc of {_CREATE} must be a StreamingContext, got {type(ssc).__name__}"
            )
        for name, value in {
            "kinesisAppName": kinesisAppName,
            "streamName": streamName,
            "endpointUrl": endpointUrl,
            "regionName": regionName,
        }.items():
            if not isinstance(value, str) or not value:
                raise InvalidStreamError(f"{name} of {_CREATE} must be a text, got {value!r}")
        initial = _initial_position(initialPositionInStream)
        require_duration_ms(checkpointInterval, f"checkpointInterval of {_CREATE}")
        _require_all_or_none(stsAssumeRoleArn, stsSessionName, stsExternalId)
        _require_both(awsAccessKeyId, awsSecretKey)
        require_arity(decoder, (1,), _CREATE, "decoder(bytes) -> record")
        connection = KinesisConnection(
            streamName,
            endpointUrl,
            regionName,
            awsAccessKeyId,
            awsSecretKey,
            stsAssumeRoleArn,
            stsSessionName,
            stsExternalId,
        )
        connection.require_region()
        return ssc._input(KinesisSource(connection, initial), _CREATE).map(decoder)


def _initial_position(position: object) -> str:
    if isinstance(position, bool) or not isinstance(position, int) or position not in _INITIAL:
        raise InvalidStreamError(
            "Illegal InitialPositionInStream. Please use InitialPositionInStream.LATEST or "
            f"InitialPositionInStream.TRIM_HORIZON, got {position!r}"
        )
    return _INITIAL[position]


def _require_all_or_none(*sts: str | None) -> None:
    if any(value is None for value in sts) != all(value is None for value in sts):
        raise InvalidStreamError(
            "stsAssumeRoleArn, stsSessionName, and stsExternalId must all be defined or all be null"
        )


def _require_both(key_id: str | None, key: str | None) -> None:
    if key_id is None and key is not None:
        raise InvalidStreamError("awsSecretKey is set but awsAccessKeyId is null; give both")
    if key_id is not None and key is None:
        raise InvalidStreamError("awsAccessKeyId is set but awsSecretKey is null; give both")
