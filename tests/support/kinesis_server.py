"""A Kinesis on loopback: moto's server in this process, with what it lacks of the service.

moto (5.2) moves the records of a shard that is split or merged, though its own iterators stay where
they were; goes on to put records into closed shards; gives an iterator behind the last record of a
closed shard; and knows neither the retention of records, nor throttling, nor iterators that expire.
Here shards keep their records, close, and are listed; and a test says which faults there are.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

REGION = "us-east-1"
ACCOUNT = "123456789012"
KEY_ID, KEY = "AKIATESTTESTTESTTEST", "the-secret-of-the-tests"

_names = itertools.count(1)


class KinesisServer:
    """The server, and what a test does at it.

    Args:
        url: its address.
        client: a client of boto3.
    """

    def __init__(self, url: str, client: Any) -> None:
        self.url = url
        self.client = client
        self.calls: list[str] = []
        self.key_ids: list[str] = []  # of who has called
        self._faults: list[tuple[str, str, int]] = []
        self._lock = threading.Lock()

    def create(self, shards: int = 1) -> str:
        """Make a stream of a name of its own."""
        name = f"stream-{next(_names)}"
        self.client.create_stream(StreamName=name, ShardCount=shards)
        return name

    def put(self, stream: str, records: Iterable[object]) -> None:
        """Put records, each by its text as data and partition key, in this order."""
        for record in map(str, records):
            self.client.put_record(StreamName=stream, Data=record.encode(), PartitionKey=record)

    def put_data(self, stream: str, data: bytes, hash_key: int = 0) -> None:
        """Put one record into the shard of a hash key."""
        self.client.put_record(
            StreamName=stream, Data=data, PartitionKey="key", ExplicitHashKey=str(hash_key)
        )

    def shards(self, stream: str) -> list[Any]:
        """The shards of the service, with their records."""
        return list(self.stream(stream).shards.values())

    def stream(self, name: str) -> Any:
        from moto.kinesis.models import kinesis_backends  # noqa: PLC0415

        return kinesis_backends[ACCOUNT][REGION].streams[name]

    def split(self, stream: str, shard: Any) -> None:
        """Split a shard in the middle."""
        middle = (shard.starting_hash + shard.ending_hash) // 2
        self.client.split_shard(
            StreamName=stream, ShardToSplit=shard.shard_id, NewStartingHashKey=str(middle)
        )

    def merge(self, stream: str, one: Any, other: Any) -> None:
        """Merge two shards that lie side by side."""
        self.client.merge_shards(
            StreamName=stream, ShardToMerge=one.shard_id, AdjacentShardToMerge=other.shard_id
        )

    def forget(self, stream: str, records: int) -> None:
        """Let the oldest records of each shard be older than the retention period."""
        for shard in self.shards(stream):
            for number in list(shard.records)[:records]:
                del shard.records[number]

    def fail(self, operation: str, code: str, times: int = 1) -> None:
        """Answer the next calls of an operation by an error."""
        with self._lock:
            self._faults += [(operation, code, 1)] * times

    def next_fault(self, operation: str) -> str | None:
        """Take the error with which a call is answered."""
        with self._lock:
            self.calls.append(operation)
            for fault in self._faults:
                if fault[0] == operation:
                    self._faults.remove(fault)
                    return fault[1]
        return None

    def faults_left(self) -> int:
        with self._lock:
            return len(self._faults)


@contextmanager
def running_kinesis() -> Iterator[KinesisServer]:
    """Start the server; skips where moto or boto3 is missing."""
    pytest.importorskip("boto3", reason="boto3 comes with dstreams[kinesis]")
    pytest.importorskip("moto.server", reason="install moto[server]")
    import boto3  # noqa: PLC0415
    from moto.server import ThreadedMotoServer  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("werkzeug"), "disabled", True)
        moto = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        moto.start()
        try:
            host, port = moto.get_host_and_port()
            url = f"http://{host}:{port}"
            client = boto3.client(
                "kinesis",
                region_name=REGION,
                endpoint_url=url,
                aws_access_key_id=KEY_ID,
                aws_secret_access_key=KEY,
            )
            server = KinesisServer(url, client)
            _complete(patch, server)
            yield server
            client.close()
        finally:
            moto.stop()


def _complete(patch: pytest.MonkeyPatch, server: KinesisServer) -> None:
    """Let moto's shards behave as those of the service."""
    from moto.core.exceptions import JsonRESTError  # noqa: PLC0415
    from moto.kinesis.models import KinesisBackend, Shard, Stream  # noqa: PLC0415
    from moto.kinesis.responses import KinesisResponse  # noqa: PLC0415

    def shard_for(self: Stream, partition_key: str, explicit_hash_key: str) -> Shard:
        from moto.utilities.utils import md5_hash  # noqa: PLC0415

        digest = md5_hash(partition_key.encode()).hexdigest()
        key = int(explicit_hash_key) if explicit_hash_key else int(digest, 16)
        return next(
            shard
            for shard in self.shards.values()
            if shard.is_open and shard.starting_hash <= key <= shard.ending_hash
        )

    def child(self: Stream, first: int, last: int, *parents: Shard) -> None:
        number = max(shard._shard_id for shard in self.shards.values()) + 1
        names = [parent.shard_id for parent in parents]
        made = Shard(number, first, last, *names)
        self.shards[made.shard_id] = made
        for parent in parents:
            parent.is_open = False

    def split(self: Stream, shard_to_split: str, new_starting_hash_key: str) -> None:
        shard, middle = self.shards[shard_to_split], int(new_starting_hash_key)
        child(self, shard.starting_hash, middle - 1, shard)
        child(self, middle, shard.ending_hash, shard)

    def merge(self: Stream, shard_to_merge: str, adjacent_shard_to_merge: str) -> None:
        one, other = self.shards[shard_to_merge], self.shards[adjacent_shard_to_merge]
        first = min(one.starting_hash, other.starting_hash)
        child(self, first, max(one.ending_hash, other.ending_hash), one, other)

    sequence = itertools.count(10**20)

    def put(self: Shard, partition_key: str, data: str, explicit_hash_key: str) -> str:
        from moto.kinesis.models import Record  # noqa: PLC0415

        number = next(sequence)
        self.records[number] = Record(partition_key, data, number, explicit_hash_key)
        return str(number)

    real_fetch = KinesisBackend.get_records

    def fetch(
        self: KinesisBackend, stream_arn: str | None, shard_iterator: str, limit: int | None
    ) -> tuple[str | None, list[Any], int]:
        from moto.kinesis.utils import decompose_shard_iterator  # noqa: PLC0415

        following, records, behind_ms = real_fetch(self, stream_arn, shard_iterator, limit)
        name, shard_id, position = decompose_shard_iterator(following)
        shard = self.describe_stream(stream_arn=stream_arn, stream_name=name).get_shard(shard_id)
        is_read = int(position) >= shard.get_max_sequence_number()
        return (None if is_read and not shard.is_open else following), records, behind_ms

    def faulty(operation: str) -> None:
        real = getattr(KinesisResponse, operation)

        def answer(self: KinesisResponse) -> Any:
            server.key_ids.append(self.access_key)
            code = server.next_fault(operation)
            if code is not None:
                raise JsonRESTError(code, f"{code} for {KEY_ID}, signed by {KEY}")
            return real(self)

        patch.setattr(KinesisResponse, operation, answer)

    patch.setattr(Stream, "get_shard_for_key", shard_for)
    patch.setattr(Stream, "split_shard", split)
    patch.setattr(Stream, "merge_shards", merge)
    patch.setattr(Shard, "put_record", put)
    patch.setattr(KinesisBackend, "get_records", fetch)
    for operation in ("get_records", "get_shard_iterator", "list_shards"):
        faulty(operation)
