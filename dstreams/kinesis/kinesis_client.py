"""A client for Amazon Kinesis: shards, iterators and records, by boto3.

A record that the Kinesis Producer Library (KPL) has aggregated is four magic bytes, a protobuf
message and the message's MD5. The message has a table of partition keys, one of explicit hash keys,
and the producer's records, each with its indices into these tables (Amazon's "KPL aggregated record
format"). As in the Kinesis Client Library, anything else is a record of its own.

boto3 is imported when a client is created. Error messages never contain access keys: the messages
of boto3 are masked, and its exceptions are not chained.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from hashlib import md5
from typing import Any
from urllib.parse import urlsplit

from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, SourceError

TRIM_HORIZON, LATEST = "TRIM_HORIZON", "LATEST"
CLOSED = "CLOSED"
_TIME = "@"

MAX_RECORDS = 10_000
"""Largest number of records in one response of Kinesis."""

_CONNECT_S, _READ_S = 10, 20
_OF_CREDENTIALS = {"access_key", "secret_key", "token"}  # fields of botocore, with or without _
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

_MAGIC = b"\xf3\x89\x9a\xc2"
_DIGEST_BYTES = 16

_KEYS, _HASH_KEYS, _RECORDS = 1, 2, 3  # fields of the message
_KEY_INDEX, _HASH_KEY_INDEX, _DATA = 1, 2, 3  # fields of a record in it

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types of protobuf


class KinesisBusyError(SourceError):
    """Kinesis is unavailable or throttles requests; a later request may succeed."""

    def __init__(self, message: str, *, throttled: bool = False) -> None:
        super().__init__(message)
        self.throttled = throttled


class ExpiredIteratorError(SourceError):
    """An iterator was not used for five minutes; request a new one for the same position."""


@dataclass(frozen=True)
class HashRange:
    """The hash keys of a shard, including *last*."""

    first: int = 0
    last: int = 2**128 - 1

    def __contains__(self, hash_key: int) -> bool:
        return self.first <= hash_key <= self.last


@dataclass(frozen=True)
class Shard:
    """A shard."""

    name: str
    parents: tuple[str, ...]
    hashes: HashRange
    is_open: bool


@dataclass(frozen=True)
class StreamDescription:
    """The creation time of a stream, which identifies it, and its retention period."""

    created_ms: int
    retention_hours: int


@dataclass(frozen=True)
class Fetched:
    """A response of Kinesis.

    Args:
        records: sequence number and data of each record.
        next_iterator: iterator of the next records; None at the end of the shard.
        behind_ms: age of these records compared with the newest one of the shard.
    """

    records: Sequence[tuple[str, bytes]]
    next_iterator: str | None
    behind_ms: int


def time_position(time_ms: int) -> str:
    """Return the position of the first record at a time or later."""
    return f"{_TIME}{time_ms}"


@dataclass(frozen=True)
class KinesisConnection:
    """The location of a stream, and the credentials for it.

    Args:
        stream: name of the stream.
        endpoint: URL of the service.
        region: name of the region.
        key_id: id of an access key; None for the credentials that boto3 finds.
        key: the secret key.
        role: ARN of the role to assume, or None.
        role_session: session name of the role.
        external_id: external id that the role's trust policy requires, or None.
        without_keys: whether keys were given and are not in the checkpoint.

    Raises:
        InvalidStreamError: *endpoint* is not a URL.
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
        """The endpoint, with https unless it has a scheme."""
        return self.endpoint if "://" in self.endpoint else f"https://{self.endpoint}"

    def for_checkpoint(self) -> KinesisConnection:
        """Return the connection without keys."""
        if self.key is None:
            return self
        return replace(self, key_id=None, key=None, without_keys=True)

    def require_region(self) -> None:
        """Check the region.

        Raises:
            EnvironmentNotReadyError: boto3 is not installed.
            InvalidStreamError: the region is unknown.
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
        """Return a client without sending a request; boto3 tries each call *attempts* times.

        Raises:
            EnvironmentNotReadyError: boto3 is not installed.
        """
        return KinesisClient(self, attempts)


class KinesisClient:
    """Sends requests about one stream; safe between threads.

    Raises:
        KinesisBusyError: in all methods, if a later call may succeed.
        SourceError: in all methods, if Kinesis rejects the request.
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
        """Return the description of the stream."""
        with self._translated("describe the stream"):
            summary = self._boto.describe_stream_summary(StreamName=self._connection.stream)
        described = summary["StreamDescriptionSummary"]
        created: datetime = described["StreamCreationTimestamp"]
        hours = int(described["RetentionPeriodHours"])
        return StreamDescription(round(created.timestamp() * 1000), hours)

    def shards(self) -> dict[str, Shard]:
        """Return the shards that still have records, by name, in the order of Kinesis."""
        with self._translated("list its shards"):
            pages = self._boto.get_paginator("list_shards").paginate(
                StreamName=self._connection.stream
            )
            listed = [shard for page in pages for shard in page["Shards"]]
        return {shard["ShardId"]: _shard(shard) for shard in listed}

    def latest(self, shard: str) -> tuple[str, int]:
        """Return an iterator of new records, and the time of Kinesis in whole seconds."""
        response = self._iterator(shard, ShardIteratorType=LATEST)
        date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
        if date is None:
            raise SourceError(
                f"{self._name} cannot be read from LATEST: {self._connection.url} sends no date; "
                "start at TRIM_HORIZON"
            )
        return response["ShardIterator"], round(parsedate_to_datetime(date).timestamp() * 1000)

    def iterator(self, shard: str, position: str) -> str:
        """Return an iterator of the records after a position in a shard."""
        if position == TRIM_HORIZON:
            start: dict[str, Any] = {"ShardIteratorType": TRIM_HORIZON}
        elif position.startswith(_TIME):
            time_s = int(position.removeprefix(_TIME)) / 1000
            at = datetime.fromtimestamp(time_s, timezone.utc)
            start = {"ShardIteratorType": "AT_TIMESTAMP", "Timestamp": at}
        else:
            start = {
                "ShardIteratorType": "AFTER_SEQUENCE_NUMBER",
                "StartingSequenceNumber": position,
            }
        return str(self._iterator(shard, **start)["ShardIterator"])

    def iterator_at(self, shard: str, sequence_number: str) -> str:
        """Return an iterator of a record and those after it."""
        response = self._iterator(
            shard, ShardIteratorType="AT_SEQUENCE_NUMBER", StartingSequenceNumber=sequence_number
        )
        return str(response["ShardIterator"])

    def fetch(self, iterator: str) -> Fetched:
        """Return the records after an iterator, as many as Kinesis returns at once.

        Raises:
            ExpiredIteratorError: the iterator is too old.
        """
        with self._translated("read its records"):
            response = self._boto.get_records(ShardIterator=iterator, Limit=MAX_RECORDS)
        records = [(record["SequenceNumber"], record["Data"]) for record in response["Records"]]
        behind_ms = int(response.get("MillisBehindLatest") or 0)
        return Fetched(records, response.get("NextShardIterator") or None, behind_ms)

    @property
    def _name(self) -> str:
        return f"the Kinesis stream {self._connection.stream!r} in {self._connection.region}"

    def _iterator(self, shard: str, **start: Any) -> dict[str, Any]:
        with self._translated(f"read {shard}"):
            response: dict[str, Any] = self._boto.get_shard_iterator(
                StreamName=self._connection.stream, ShardId=shard, **start
            )
        return response

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Raise the errors of boto3 as errors of this module."""
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
            raise self._refused(action, error.response) from None
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError) as error:
            raise SourceError(
                f"cannot {action} of {self._name}: {error}{_remedy(self._connection)}"
            ) from None
        except HTTPClientError as error:
            text = self._without_keys(f"{type(error).__name__}: {error}")
            raise KinesisBusyError(f"cannot {action} of {self._name}: {text}") from None
        except BotoCoreError as error:
            text = self._without_keys(f"{type(error).__name__}: {error}")
            raise SourceError(f"cannot {action} of {self._name}: {text}") from None

    def _refused(self, action: str, response: Any) -> SourceError:
        code = str(response.get("Error", {}).get("Code", "unknown"))
        text = str(response.get("Error", {}).get("Message", ""))
        status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        message = f"cannot {action} of {self._name}: {code}: {self._without_keys(text)}"
        if code == "ExpiredIteratorException":
            return ExpiredIteratorError(message)
        if code in _LATER or status >= 500:
            return KinesisBusyError(message, throttled=code in _SLOWER)
        if code == "ResourceNotFoundException":
            return SourceError(
                f"{message}; check the name of the stream, the region, and the endpoint "
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
            "; a checkpoint does not contain the keys that the program passed at its first start: "
            "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY for this process and for the workers"
        )
    return "; pass awsAccessKeyId and awsSecretKey, or configure keys where boto3 finds them"


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
    """Return a session of boto3 with the keys or the role of a connection."""
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
            f"cannot assume the role {connection.role}: found no keys{_remedy(connection)}"
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
            f"Kinesis needs boto3, which is not installed for {sys.executable}; run: "
            "pip install 'dstreams[kinesis]'"
        ) from None
    return boto3


def producer_records(data: bytes, hashes: HashRange) -> list[bytes]:
    """Return the producer's records in one record of Kinesis.

    Records whose hash key is outside the range of the shard are skipped: the producer aggregated
    them before the shard was split or merged, and sends them to the right shard again.
    """
    message = data[len(_MAGIC) : -_DIGEST_BYTES]
    if not data.startswith(_MAGIC) or _digest(message) != data[-_DIGEST_BYTES:]:
        return [data]
    try:
        tables: dict[int, list[Any]] = defaultdict(list)
        for number, value in _fields(message):
            tables[number].append(value)
        records = [dict(_fields(record)) for record in tables[_RECORDS]]
        return [bytes(record[_DATA]) for record in records if _hash_key(tables, record) in hashes]
    except (IndexError, KeyError, TypeError, ValueError):
        return [data]  # not a message of the producer, although the digest fits


def _digest(message: bytes) -> bytes:
    return md5(message, usedforsecurity=False).digest()


def _hash_key(tables: dict[int, list[Any]], record: dict[int, Any]) -> int:
    if _HASH_KEY_INDEX in record:
        return int(tables[_HASH_KEYS][record[_HASH_KEY_INDEX]])
    return int.from_bytes(_digest(tables[_KEYS][record[_KEY_INDEX]]), "big")


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Yield number and value of each field of a protobuf message."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        kind = tag & 7
        value: bytes | int
        if kind == _VARINT:
            value, at = _varint(message, at)
        else:
            if kind == _BYTES:
                size, at = _varint(message, at)
            else:
                size = {_FIXED64: 8, _FIXED32: 4}[kind]
            value, at = message[at : at + size], at + size
            if at > len(message):
                raise ValueError("truncated field")
        yield tag >> 3, value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """Return the number at an index, and the index after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
