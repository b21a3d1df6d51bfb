"""Amazon Kinesis as the source asks for it: shards, iterators and records, by boto3.

boto3 is imported when a client is made, and nowhere else. Nothing here puts a key into a text: what
boto3 says in an error is taken over without the keys, and without the error that it was.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlsplit

from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, SourceError
from dstreams.kinesis.aggregation import HashRange

TRIM_HORIZON, LATEST = "TRIM_HORIZON", "LATEST"
CLOSED = "CLOSED"
_TIME = "@"

MAX_RECORDS = 10_000
"""Records that Kinesis gives in one answer at most."""

_CONNECT_S, _READ_S = 10, 20
_OF_CREDENTIALS = {"access_key", "secret_key", "token"}  # fields of botocore's, with or without _
_SLOWER = {"ProvisionedThroughputExceededException", "LimitExceededException"}
_LATER = {
    "InternalFailure",
    "InternalFailureException",
    "KMSThrottlingException",
    "RequestLimitExceeded",
    "ResourceInUseException",
    "ServiceUnavailable",
    "Throttling",
    "ThrottlingException",
    *_SLOWER,
}


class KinesisBusyError(SourceError):
    """Kinesis cannot be reached, or asks to come later: what was asked for may be given then.

    Args:
        message: what was asked for, and what the answer was.
        throttled: whether more was read than the stream may give.
    """

    def __init__(self, message: str, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.throttled = throttled


class ExpiredIteratorError(SourceError):
    """An iterator was not used for five minutes; one from the same position serves as well."""


@dataclass(frozen=True)
class Shard:
    """A shard as Kinesis lists it."""

    name: str
    parents: tuple[str, ...]
    hashes: HashRange
    is_open: bool


@dataclass(frozen=True)
class StreamDescription:
    """What tells a stream from another one of its name, and how long it keeps records."""

    created_ms: int
    retention_hours: int


@dataclass(frozen=True)
class Fetched:
    """An answer of Kinesis.

    Args:
        records: sequence number and data of each record.
        next_iterator: what to go on with; None where the shard is read to its end.
        behind_ms: how long after these records the newest one of the shard came.
    """

    records: Sequence[tuple[str, bytes]]
    next_iterator: str | None
    behind_ms: int


def time_position(time_ms: int) -> str:
    """Return the position of what came at a time, or later."""
    return f"{_TIME}{time_ms}"


@dataclass(frozen=True)
class KinesisConnection:
    """Where a stream is, and as whom it is read.

    Args:
        stream: name of the stream.
        endpoint: URL of the service.
        region: name of the region.
        key_id: id of an access key. None: boto3 looks where it always does.
        key: the access key.
        role: ARN of the role to take on. None: none.
        role_session: name of the session as that role.
        external_id: what the role's trust policy asks for.
        without_keys: keys were given, and left out of a checkpoint.

    Raises:
        InvalidStreamError: *endpoint* is no URL.
    """

    stream: str
    endpoint: str
    region: str
    key_id: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    role: str | None = None
    role_session: str | None = None
    external_id: str | None = field(default=None, repr=False)
    without_keys: bool = False

    def __post_init__(self) -> None:
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname or "@" in url.netloc:
            raise InvalidStreamError(
                f"endpointUrl of stream {self.stream!r} must be the URL of a Kinesis service, such "
                "as 'https://kinesis.us-east-1.amazonaws.com', without user and password"
            )

    @property
    def url(self) -> str:
        """The endpoint, with https where it names no protocol."""
        return self.endpoint if "://" in self.endpoint else f"https://{self.endpoint}"

    def for_checkpoint(self) -> KinesisConnection:
        """Return what a checkpoint may hold: no keys."""
        if self.key is None:
            return self
        return replace(self, key_id=None, key=None, without_keys=True)

    def require_region(self) -> None:
        """Refuse a region that can be none.

        Raises:
            EnvironmentNotReadyError: boto3 is not installed.
            InvalidStreamError: there is no such region.
        """
        _boto3()
        from botocore.exceptions import UnknownRegionError  # noqa: PLC0415
        from botocore.session import get_session  # noqa: PLC0415

        try:
            get_session().get_partition_for_region(self.region)
        except UnknownRegionError:
            raise InvalidStreamError(
                f"Region name '{self.region}' is not valid; give one as 'us-east-1'"
            ) from None

    def open(self, attempts: int) -> KinesisClient:
        """Return a client, which has asked for nothing yet.

        Args:
            attempts: how often a call is tried, by boto3, before it is an error.

        Raises:
            EnvironmentNotReadyError: boto3 is not installed.
        """
        return KinesisClient(self, attempts)


class KinesisClient:
    """Asks Kinesis about one stream; may be used by several threads.

    Raises:
        KinesisBusyError: of all calls, where a later one may be answered.
        SourceError: of all calls, where Kinesis refuses what it was asked for.
    """

    def __init__(self, connection: KinesisConnection, attempts: int) -> None:
        self._connection = connection
        self._session = _session(connection)
        from botocore.config import Config  # noqa: PLC0415

        with self._translated("open a client"):
            self._boto = self._session.client(
                "kinesis",
                region_name=connection.region,
                endpoint_url=connection.url,
                config=Config(
                    retries={"mode": "standard", "total_max_attempts": attempts},
                    connect_timeout=_CONNECT_S,
                    read_timeout=_READ_S,
                    max_pool_connections=16,
                ),
            )

    def described(self) -> StreamDescription:
        """Return what Kinesis says of the stream as a whole."""
        with self._translated("describe the stream"):
            summary = self._boto.describe_stream_summary(StreamName=self._connection.stream)
        described = summary["StreamDescriptionSummary"]
        created: datetime = described["StreamCreationTimestamp"]
        hours = int(described["RetentionPeriodHours"])
        return StreamDescription(round(created.timestamp() * 1000), hours)

    def shards(self) -> dict[str, Shard]:
        """Return the shards that Kinesis still has records of, by name, in its order."""
        with self._translated("list its shards"):
            pages = self._boto.get_paginator("list_shards").paginate(
                StreamName=self._connection.stream
            )
            listed = [shard for page in pages for shard in page["Shards"]]
        return {shard["ShardId"]: _shard(shard) for shard in listed}

    def latest(self, shard: str) -> tuple[str, int]:
        """Return an iterator of what comes from now on, and what time it is at Kinesis.

        The time is in whole seconds, so at most the records of one second before belong to it too.
        """
        answer = self._iterator(shard, ShardIteratorType=LATEST)
        date = answer["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise SourceError(
                f"{self._name} cannot be read from its tip on: {self._connection.url} does not say "
                "what time it is; begin at TRIM_HORIZON"
            )
        return answer["ShardIterator"], round(parsedate_to_datetime(date).timestamp() * 1000)

    def iterator(self, shard: str, position: str) -> str:
        """Return an iterator of what comes after a position in a shard."""
        if position == TRIM_HORIZON:
            asked: dict[str, Any] = {"ShardIteratorType": TRIM_HORIZON}
        elif position.startswith(_TIME):
            time_s = int(position.removeprefix(_TIME)) / 1000
            at = datetime.fromtimestamp(time_s, timezone.utc)
            asked = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
        else:
            asked = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": position,
            }
        return str(self._iterator(shard, **asked)["ShardIterator"])

    def iterator_at(self, shard: str, sequence_number: str) -> str:
        """Return an iterator of a record and what comes after it."""
        answer = self._iterator(
            shard, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=sequence_number
        )
        return str(answer["ShardIterator"])

    def fetch(self, iterator: str) -> Fetched:
        """Return what comes after an iterator, as much as Kinesis gives at once.

        Raises:
            ExpiredIteratorError: the iterator is too old.
        """
        with self._translated("read its records"):
            answer = self._boto.get_records(ShardIterator=iterator, Limit=MAX_RECORDS)
        records = [(record["SequenceNumber"], record["Data"]) for record in answer["Records"]]
        behind_ms = int(answer.get("MillisBehindLatest") or 0)
        return Fetched(records, answer.get("NextShardIterator") or None, behind_ms)

    @property
    def _name(self) -> str:
        return f"the Kinesis stream {self._connection.stream!r} in {self._connection.region}"

    def _iterator(self, shard: str, **asked: Any) -> dict[str, Any]:
        with self._translated(f"read {shard}"):
            answer: dict[str, Any] = self._boto.get_shard_iterator(
                StreamName=self._connection.stream, ShardId=shard, **asked
            )
        return answer

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """Say what boto3 says, by errors of ours."""
        from botocore.exceptions import (  # noqa: PLC0415
            BotoCoreError,
            ClientError,
            CredentialRetrievalError,
            HTTPClientError,
            NoCredentialsError,
            PartialCredentialsError,
        )

        try:
            yield
        except ClientError as error:
            raise self._refused(what, error.response) from None
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise SourceError(
                f"cannot {what} of {self._name}: {error}{_remedy(self._connection)}"
            ) from None
        except HTTPClientError as error:
            text = self._without_keys(f"{type(error).__name__}: {error}")
            raise KinesisBusyError(f"cannot {what} of {self._name}: {text}") from None
        except BotoCoreError as error:
            text = self._without_keys(f"{type(error).__name__}: {error}")
            raise SourceError(f"cannot {what} of {self._name}: {text}") from None

    def _refused(self, what: str, response: Any) -> SourceError:
        code = str(response.get("Error", {}).get("Code", "unknown"))
        said = str(response.get("Error", {}).get("Message", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = f"cannot {what} of {self._name}: {code}: {self._without_keys(said)}"
        if code == "ExpiredIteratorException":
            return ExpiredIteratorError(message)
        if code in _LATER or status >= 500:
            return KinesisBusyError(message, throttled=code in _SLOWER)
        if code == "ResourceNotFoundException":
            return SourceError(
                f"{message}; look for the stream's name, the region, and the endpoint "
                f"{self._connection.url}"
            )
        is_of_keys = "Token" in code or "Signature" in code or "AccessDenied" in code
        return SourceError(message + (_remedy(self._connection) if is_of_keys else ""))

    def _without_keys(self, text: str) -> str:
        keys = {self._connection.key, self._connection.key_id}
        found = getattr(self._session.get_credentials(), "__dict__", {})
        keys |= {value for name, value in found.items() if name.lstrip("_") in _OF_CREDENTIALS}
        for key in keys:
            if isinstance(key, str) and key:
                text = text.replace(key, "***")
        return text


def _remedy(connection: KinesisConnection) -> str:
    if connection.without_keys:
        return (
            "; the keys that the program gave at its first start are in no checkpoint: give "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY to this process and to the workers"
        )
    return "; give awsAccessKeyId and awsSecretKey, or configure keys where boto3 finds them"


def _shard(listed: dict[str, Any]) -> Shard:
    parents = (listed.get("ParentShardId"), listed.get("AdjacentParentShardId"))
    hashes = listed["HashKeyRange"]
    return Shard(
        listed["ShardId"],
        tuple(parent for parent in parents if parent),
        HashRange(int(hashes["StartingHashKey"]), int(hashes["EndingHashKey"])),
        "EndingSequenceNumber" not in listed["SequenceNumberRange"],
    )


def _session(connection: KinesisConnection) -> Any:
    """Return a session of boto3 with the keys of a connection, or as the role that it names."""
    boto3 = _boto3()
    session = boto3.Session(
        aws_access_key_id=connection.key_id,
        aws_secret_access_key=connection.key,
        region_name=connection.region,
    )
    if connection.role is None:
        return session
    from botocore.credentials import (  # noqa: PLC0415
        AssumeRoleCredentialFetcher,
        CredentialProvider,
        CredentialResolver,
        DeferredRefreshableCredentials,
    )
    from botocore.session import get_session  # noqa: PLC0415

    keys = session.get_credentials()
    if keys is None:
        raise SourceError(
            f"cannot take on the role {connection.role}: there are no keys{_remedy(connection)}"
        )
    fetcher = AssumeRoleCredentialFetcher(
        session.client,
        keys,
        connection.role,
        {"RoleSessionName": connection.role_session, "ExternalId": connection.external_id},
    )

    class RoleProvider(CredentialProvider):  # type: ignore[misc]
        METHOD = "assume-role"

        def load(self) -> Any:
            return DeferredRefreshableCredentials(fetcher.fetch_credentials, self.METHOD)

    as_role = get_session()
    as_role.register_component("credential_provider", CredentialResolver([RoleProvider()]))
    return boto3.Session(botocore_session=as_role, region_name=connection.region)


def _boto3() -> Any:
    try:
        import boto3  # noqa: PLC0415
    except ImportError:
        raise EnvironmentNotReadyError(
            f"Kinesis is read by boto3, which {sys.executable} does not have; install it with: "
            "pip install 'dstreams[kinesis]'"
        ) from None
    return boto3
