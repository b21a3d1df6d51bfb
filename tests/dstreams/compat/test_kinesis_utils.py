"""``pyspark.streaming.kinesis`` of Spark 2.4: names, defaults and errors, on moto's server."""

from __future__ import annotations

import inspect
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkContext, StorageLevel

from dstreams import DStream, StreamingContext
from dstreams.compat.kinesis_utils import InitialPositionInStream, KinesisUtils
from dstreams.compat.modules import NAMES
from dstreams.engine.recovery.graph_snapshot import pickle_graph
from dstreams.errors import EnvironmentNotReadyError, InvalidStreamError, SourceError
from dstreams.kafka.decoders import utf8_decoder
from tests.support.kinesis_server import KEY, KEY_ID, REGION, KinesisServer, running_kinesis
from tests.support.waiting import wait_for

ARN = "arn:aws:iam::123456789012:role/reader"


@pytest.fixture(scope="module")
def kinesis() -> Iterator[KinesisServer]:
    with running_kinesis() as server:
        yield server


@pytest.fixture
def ssc(sc: SparkContext) -> Iterator[StreamingContext]:
    made = StreamingContext(sc, 1)
    yield made
    made.stop(stopSparkContext=False)


def create(ssc: Any, url: str = "https://kinesis.example.com", **changed: Any) -> Any:
    arguments = {
        "kinesisAppName": "app",
        "streamName": "some-stream",
        "endpointUrl": url,
        "regionName": REGION,
        "initialPositionInStream": InitialPositionInStream.TRIM_HORIZON,
        "checkpointInterval": 2,
        "awsAccessKeyId": KEY_ID,
        "awsSecretKey": KEY,
        **changed,
    }
    return KinesisUtils.createStream(ssc, **arguments)


def test_names_of_the_module() -> None:
    """Those of 2.4 and those that came since, and what they are."""
    names = NAMES["pyspark.streaming.kinesis"]
    assert list(names) == [
        "KinesisUtils",
        "InitialPositionInStream",
        "MetricsLevel",
        "utf8_decoder",
    ]
    assert (InitialPositionInStream.LATEST, InitialPositionInStream.TRIM_HORIZON) == (0, 1)
    assert names["utf8_decoder"] is utf8_decoder
    assert utf8_decoder(None) is None
    assert utf8_decoder("Käse".encode()) == "Käse"


def test_signature() -> None:
    """Parameters have the order and defaults of 4.3."""
    parameters = inspect.signature(KinesisUtils.createStream).parameters
    assert list(parameters)[:7] == [
        "ssc",
        "kinesisAppName",
        "streamName",
        "endpointUrl",
        "regionName",
        "initialPositionInStream",
        "checkpointInterval",
    ]
    assert {name: one.default for name, one in list(parameters.items())[7:]} == {
        "metricsLevel": 0,
        "storageLevel": StorageLevel.MEMORY_AND_DISK_2,
        "awsAccessKeyId": None,
        "awsSecretKey": None,
        "decoder": utf8_decoder,
        "stsAssumeRoleArn": None,
        "stsSessionName": None,
        "stsExternalId": None,
    }
    assert list(parameters)[7:] == [
        "metricsLevel",
        "storageLevel",
        "awsAccessKeyId",
        "awsSecretKey",
        "decoder",
        "stsAssumeRoleArn",
        "stsSessionName",
        "stsExternalId",
    ]


@pytest.mark.parametrize("more", [(), (StorageLevel.MEMORY_ONLY,), (2, StorageLevel.MEMORY_ONLY)])
def test_calls_by_position(ssc: StreamingContext, more: tuple[Any, ...]) -> None:
    """The storage level may have its position of 2.4 or of 4.3."""
    place = ("app", "some-stream", "https://kinesis.example.com", REGION, 1, 2)
    keys = (KEY_ID, KEY) if more else ()
    made = KinesisUtils.createStream(ssc, *place, *more, *keys, decoder=len)
    source: Any = ssc._graph.inputs[-1].source
    assert (source.connection.key_id, source.connection.key) == (keys or (None, None))
    assert isinstance(made, DStream)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"initialPositionInStream": 2}, "Illegal InitialPositionInStream. Please use Init"),
        ({"initialPositionInStream": "LATEST"}, "Illegal InitialPositionInStream.*'LATEST'"),
        ({"initialPositionInStream": True}, "Illegal InitialPositionInStream.*True"),
        ({"awsAccessKeyId": None}, "awsSecretKey is set but awsAccessKeyId is null"),
        ({"awsSecretKey": None}, "awsAccessKeyId is set but awsSecretKey is null"),
        (
            {"stsAssumeRoleArn": ARN},
            "stsAssumeRoleArn, stsSessionName, and stsExternalId must all be defined or all be nul",
        ),
        ({"regionName": "nowhere"}, "Region name 'nowhere' is not valid; give one as 'us-east-1'"),
        ({"streamName": ""}, "streamName of KinesisUtils.createStream must be a text, got ''"),
        ({"kinesisAppName": None}, "kinesisAppName of KinesisUtils.createStream must be a text"),
        ({"endpointUrl": "ftp://host"}, "endpointUrl of stream 'some-stream' must be the URL of"),
        ({"endpointUrl": "https://a:b@host"}, "without user and password"),
        ({"checkpointInterval": 0}, "checkpointInterval of KinesisUtils.createStream must be a p"),
        ({"decoder": None}, r"KinesisUtils.createStream.*decoder\(bytes\) -> record"),
        ({"decoder": lambda: 1}, r"KinesisUtils.createStream calls decoder\(bytes\) -> record"),
    ],
)
def test_what_is_refused(ssc: StreamingContext, changed: dict[str, Any], message: str) -> None:
    """Errors are raised at the definition, with the messages of 2.4, without keys."""
    with pytest.raises(InvalidStreamError, match=message) as caught:
        create(ssc, **changed)
    assert KEY not in str(caught.value)


def test_no_context() -> None:
    """The first argument must be a context."""
    with pytest.raises(InvalidStreamError, match="must be a StreamingContext, got NoneType"):
        create(None)


def test_without_boto3(ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install, and for which Python."""
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(EnvironmentNotReadyError, match=r"pip install 'dstreams\[kinesis\]'") as no:
        create(ssc)
    assert sys.executable in str(no.value)


def step_until(ssc: StreamingContext, seen: list[Any], wanted: list[Any]) -> None:
    def is_there() -> bool:
        ssc.step()
        return sorted(seen) == wanted

    wait_for(is_there)


def test_a_stream(kinesis: KinesisServer, ssc: StreamingContext) -> None:
    """Records are decoded as UTF-8."""
    stream = kinesis.create(shards=2)
    kinesis.put(stream, ["one", "two", "Käse"])
    seen: list[str] = []
    texts = create(ssc, kinesis.url, streamName=stream)
    texts.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    step_until(ssc, seen, ["Käse", "one", "two"])


def test_a_decoder_of_ones_own(kinesis: KinesisServer, ssc: StreamingContext) -> None:
    """It is given bytes."""
    stream = kinesis.create()
    kinesis.put(stream, ["ab"])
    seen: list[tuple[str, int]] = []
    pairs = create(
        ssc, kinesis.url, streamName=stream, decoder=lambda data: (type(data).__name__, len(data))
    )
    pairs.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    step_until(ssc, seen, [("bytes", 2)])


def test_no_such_stream(kinesis: KinesisServer, ssc: StreamingContext) -> None:
    """The start fails, with the name of the stream and what to look for."""
    create(ssc, kinesis.url, streamName="missing").pprint()
    with pytest.raises(SourceError, match="of the Kinesis stream 'missing' in us-east-1") as caught:
        ssc.step()
    assert "ResourceNotFoundException" in str(caught.value)
    assert f"check the name of the stream, the region, and the endpoint {kinesis.url}" in str(
        caught.value
    )
    assert KEY not in str(caught.value)


def test_nobody_answers(ssc: StreamingContext) -> None:
    """The start fails, and names the address."""
    create(ssc, "http://127.0.0.1:9").pprint()
    with pytest.raises(SourceError, match=r'Could not connect to the endpoint URL: "http://127\.0'):
        ssc.step()


def test_a_role(
    kinesis: KinesisServer, ssc: StreamingContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the program are exchanged for those of the role, which read the stream."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", kinesis.url)
    stream = kinesis.create()
    kinesis.put(stream, ["one"])
    seen: list[str] = []
    before = len(kinesis.key_ids)
    texts = create(
        ssc,
        kinesis.url,
        streamName=stream,
        stsAssumeRoleArn=ARN,
        stsSessionName="reading",
        stsExternalId="from outside",
    )
    texts.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
    step_until(ssc, seen, ["one"])
    assert kinesis.key_ids[-1].startswith("ASIA")  # those that STS has given
    assert KEY_ID not in kinesis.key_ids[before:]


def test_no_key_is_in_the_graph(ssc: StreamingContext) -> None:
    """The graph of a checkpoint has no key."""
    create(ssc).pprint()
    written = pickle_graph(ssc._graph, ssc).data
    assert b"some-stream" in written
    assert KEY.encode() not in written
    assert KEY_ID.encode() not in written


def test_nothing_of_keys_is_logged(
    kinesis: KinesisServer, ssc: StreamingContext, caplog: pytest.LogCaptureFixture
) -> None:
    """No key is in a log or in the description of a batch."""
    stream = kinesis.create()
    kinesis.put(stream, ["one"])
    with caplog.at_level(logging.DEBUG, "dstreams"):
        seen: list[str] = []
        texts = create(ssc, kinesis.url, streamName=stream)
        texts.foreachRDD(lambda rdd: seen.extend(rdd.collect()))
        infos = []

        def is_there() -> bool:
            infos.extend(ssc.step())
            return bool(seen)

        wait_for(is_there)
    said = str([vars(info) for info in infos])
    assert "1 records of 1 shards" in said
    for text in (caplog.text, said, str(infos)):
        assert KEY not in text
        assert KEY_ID not in text
