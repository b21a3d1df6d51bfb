"""Kinesis: streams of it, by the names of ``pyspark.streaming.kinesis`` (Spark 2.4 to 4.3).

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
from dstreams.kinesis.client import LATEST, TRIM_HORIZON, KinesisConnection
from dstreams.kinesis.source import KinesisSource

__all__ = ["InitialPositionInStream", "KinesisUtils", "MetricsLevel", "utf8_decoder"]

_CREATE = "KinesisUtils.createStream"


class InitialPositionInStream:
    """Where a stream begins that has no checkpoint: at its tip, or at its oldest record."""

    LATEST: ClassVar[int] = 0
    TRIM_HORIZON: ClassVar[int] = 1


class MetricsLevel:
    """What Amazon's library sends to CloudWatch; nothing is sent there here."""

    DETAILED: ClassVar[int] = 0
    SUMMARY: ClassVar[int] = 1
    NONE: ClassVar[int] = 2


_INITIAL = {InitialPositionInStream.LATEST: LATEST, 1: TRIM_HORIZON}


_CreateStream = TypeVar("_CreateStream", bound=Callable[..., Any])

_PLACE_OF_METRICS_LEVEL = 7


def _as_in_2_4(create: _CreateStream) -> _CreateStream:
    """Take calls by position as Spark 2.4 has them, where the storage level comes first."""

    @wraps(create)
    def called(*arguments: Any, **named: Any) -> Any:
        before, rest = arguments[:_PLACE_OF_METRICS_LEVEL], arguments[_PLACE_OF_METRICS_LEVEL:]
        if rest and isinstance(rest[0], StorageLevel):
            rest = (MetricsLevel.DETAILED, *rest)
        return create(*before, *rest, **named)

    return called  # type: ignore[return-value]


class KinesisUtils:
    """Makes streams of Kinesis."""

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

        The driver reads the shards, by boto3. What a batch has read stands in its begin record as
        sequence numbers, and a restart reads the same from Kinesis again; so with a checkpoint
        directory no record is lost and none counts twice, as long as Kinesis keeps it. Records that
        the Kinesis Producer Library put together come one by one.

        Args:
            ssc: the streaming context.
            kinesisAppName: has no effect: no table of this name is made in DynamoDB, because the
                progress is in the checkpoint of the stream.
            streamName: name of the Kinesis stream.
            endpointUrl: URL of the service, for example ``https://kinesis.us-east-1.amazonaws.com``.
            regionName: name of the region, for example ``us-east-1``.
            initialPositionInStream: where to begin, unless there is a checkpoint: with the oldest
                record (``InitialPositionInStream.TRIM_HORIZON``), or with what comes from now on
                (``InitialPositionInStream.LATEST``).
            checkpointInterval: seconds. Has no effect: progress is durable with every batch.
            metricsLevel: has no effect: nothing is sent to CloudWatch. Spark 2.4 has no such
                parameter; a call by position may leave it out, as there.
            storageLevel: has no effect, as with every receiver here.
            awsAccessKeyId: id of an access key. None: boto3 finds one, in the environment, a
                profile or the role of the machine.
            awsSecretKey: the access key. No checkpoint has it, as that of Spark has: after
                ``getOrCreate`` boto3 has to find one, as without these parameters.
            decoder: ``f(bytes) -> record``; ``lambda data: data`` for the bytes.
            stsAssumeRoleArn: ARN of a role to take on by STS; then the session and the external id
                are needed too. Its keys are made anew before they run out.
            stsSessionName: name of the session.
            stsExternalId: what the role's trust policy asks for.

        Raises:
            InvalidStreamError: a parameter can be none of these.
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
