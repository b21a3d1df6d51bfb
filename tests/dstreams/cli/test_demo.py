"""The stream of the demo, and the comparison of its counts."""

from __future__ import annotations

import io
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark import SparkContext

from dstreams import BatchFailedError, StreamError, StreamingContext
from dstreams.cli.demo import (
    END_WORD,
    PARTITIONS,
    StreamedCount,
    TextServer,
    TextTopic,
    _library_files,
    add_up,
    compare,
    count_words,
    library_text,
    total_counts,
    words_of,
)
from dstreams.errors import EnvironmentNotReadyError
from tests.support.jobs import count_jobs
from tests.support.kafka_cluster import KafkaCluster

LINES = b"".join(b"to be or not %d\nto_be\n\n" % number for number in range(2000))
TEXT = LINES + END_WORD.encode() + b"\n"
LIMIT_S = 300


@pytest.fixture(autouse=True)
def _no_context_is_left() -> None:
    assert StreamingContext.getActive() is None


def run(
    sc: SparkContext,
    directory: Path,
    text: bytes,
    tell: Callable[[str], None],
    limit_s: float = LIMIT_S,
) -> tuple[StreamedCount, Counter[str]]:
    with TextServer(text) as server:
        count = StreamedCount(sc, server, str(directory), tell)
        return count, count.run(limit_s)


def test_counts_every_word(sc: SparkContext, tmp_path: Path) -> None:
    """The final state equals the count of the text, and every batch prints a line."""
    told: list[str] = []
    count, streamed = run(sc, tmp_path, TEXT, told.append)
    assert streamed == count_words(TEXT)
    assert streamed["to"] == 2000
    assert len(told) == count.batches >= 1
    totals = f" words={streamed.total()} distinct={len(streamed)}"
    assert told[-1].endswith(totals)
    assert count.elapsed_s > 0
    assert StreamingContext.getActive() is None
    assert not sc._jsc.sc().isStopped()


def test_last_word_that_does_not_come(sc: SparkContext, tmp_path: Path) -> None:
    """Without the last word the stream is stopped after the limit, and the error says so."""
    with pytest.raises(StreamError, match=r"only .* words .* within 0.5 s; increase"):
        run(sc, tmp_path, LINES, lambda _: None, limit_s=0.5)
    assert StreamingContext.getActive() is None


def test_failed_batch(sc: SparkContext, tmp_path: Path) -> None:
    """A batch that fails ends the stream with its error."""

    def fail(_: str) -> None:
        raise ValueError("cannot tell")

    with pytest.raises(BatchFailedError, match="cannot tell"):
        run(sc, tmp_path, TEXT, fail)
    assert StreamingContext.getActive() is None


def test_nobody_listens(sc: SparkContext, tmp_path: Path) -> None:
    """An output that was closed ends the stream without an error of the batch."""
    told: list[str] = []

    def tell(line: str) -> None:
        told.append(line)
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        run(sc, tmp_path, LINES, tell)
    assert len(told) == 1


@pytest.mark.parametrize(
    ("new", "count", "result"), [([1, 1], None, 2), ([], 3, 3), ([1], 0, 1), ([], 0, 0)]
)
def test_update(new: list[int], count: int | None, result: int) -> None:
    """A count grows by the new words, and a word is never dropped."""
    assert add_up(new, count) == result


def test_counts_through_a_broker(sc: SparkContext, kafka: KafkaCluster, tmp_path: Path) -> None:
    """Words that pass through a broker are counted, and at the end the lag is 0."""
    told: list[str] = []
    text = LINES + f"{END_WORD}\n".encode() * PARTITIONS
    with TextTopic(text, {"bootstrap.servers": kafka.bootstrap}) as topic:
        count = StreamedCount(sc, topic, str(tmp_path), told.append)
        assert count.run(LIMIT_S) == count_words(text)
    assert told[-1].endswith(" lag=0")


def test_summary(sc: SparkContext) -> None:
    """Words, distinct words and end words are computed in one job."""
    counts = sc.parallelize([("a", 5), ("b", 2), (END_WORD, 1)], 2)
    assert total_counts(counts) == [8, 3, 1]
    assert total_counts(sc.emptyRDD()) == [0, 0, 0]
    assert count_jobs(sc, lambda: total_counts(counts)) == 1


def test_equal_counts() -> None:
    """Equal counts are reported with both totals."""
    out = io.StringIO()
    assert compare(Counter(a=1000, b=1), Counter(a=1000, b=1), out)
    assert out.getvalue().splitlines() == [
        "streamed:    1,001 words, 2 distinct",
        "independent: 1,001 words, 2 distinct",
        "the counts are equal, word by word",
    ]


def test_different_counts() -> None:
    """Words whose counts differ are listed with both counts, even if the totals are equal."""
    out = io.StringIO()
    assert not compare(Counter({"a": 3, "b": 1, "\xe9": 1}), Counter(a=2, b=2, c=1), out)
    assert out.getvalue().splitlines() == [
        "streamed:    5 words, 3 distinct",
        "independent: 5 words, 3 distinct",
        "  'a': streamed 3, independent 2",
        "  'b': streamed 1, independent 2",
        "  'c': streamed 0, independent 1",
        "  '\\xe9': streamed 1, independent 0",
        "the counts differ for 4 of 4 words",
    ]


def test_many_differences() -> None:
    """Only the first differing words are listed, and the last line has their number."""
    out = io.StringIO()
    assert not compare(Counter(), Counter({f"word{number:03}": 1 for number in range(300)}), out)
    lines = out.getvalue().splitlines()
    assert lines[-1] == "the counts differ for 300 of 300 words"
    assert len(lines) == 13


def write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("", []),
        ("  \t", []),
        ("def f(self, x1):", ["def", "f", "self", "x1"]),
        ("The THE the", ["the", "the", "the"]),
        ("_private __init__", ["_private", "__init__"]),
        ("3.14 1e5 0xff", ["e5", "xff"]),
        ("na\u00efve \u03a3", ["na\u00efve"]),
    ],
)
def test_words(line: str, words: list[str]) -> None:
    """Words begin with a letter of ASCII or an underscore and are in lower case."""
    assert words_of(line) == words


def test_both_counts_mean_the_same_words() -> None:
    """The count of a whole text has the words that its lines have, ends of lines aside."""
    text = "A b\r\n_c\x0ca \u03a3\u03a3\nlast\n"
    by_line: Counter[str] = Counter()
    for line in text.split("\n"):
        by_line.update(words_of(line))
    assert count_words(text.encode()) == by_line
    assert by_line == {"a": 2, "b": 1, "_c": 1, "last": 1}


def test_library_of_this_python() -> None:
    """The running Python has sources; the same whole lines come at each call, up to a limit."""
    text = library_text(200_000)
    assert 100_000 < len(text) <= 200_000
    assert text.endswith(b"\n")
    assert text == library_text(200_000)
    assert text == library_text(300_000)[: len(text)]
    assert b"import" in text
    assert END_WORD not in count_words(text)


def test_end_word_is_one_word() -> None:
    """The last word of the text is counted as what it is."""
    assert words_of(END_WORD) == [END_WORD]


def test_modules_and_packages_sorted_without_tests(tmp_path: Path) -> None:
    """Modules and packages of the standard library are taken in order; tests and others are not."""
    for name in (
        "zipfile.py",
        "asyncio/__init__.py",
        "asyncio/test/test_tasks.py",
        "idlelib/idle_test/test_run.py",
        "idlelib/run.py",
        "email/mime/text.py",
        "abc.py",
        "abc.txt",
        "test/test_abc.py",
        "site-packages/numpy/core.py",
        "numpy.py",
    ):
        write(tmp_path / name, b"x\n")
    found = [path.relative_to(tmp_path).as_posix() for path in _library_files(tmp_path)]
    assert found == [
        "abc.py",
        "asyncio/__init__.py",
        "email/mime/text.py",
        "idlelib/run.py",
        "zipfile.py",
    ]


def test_text_is_utf_8_in_whole_lines(tmp_path: Path) -> None:
    """Other bytes are replaced, a missing end of line is added, and a line is not cut."""
    write(tmp_path / "abc.py", b"caf\xe9")
    write(tmp_path / "ast.py", b"second\nthird\n")
    assert library_text(1000, tmp_path) == "caf\ufffd\nsecond\nthird\n".encode()
    assert library_text(15, tmp_path) == "caf\ufffd\nsecond\n".encode()


def test_no_sources(tmp_path: Path) -> None:
    """Without sources, the error names the directory."""
    with pytest.raises(EnvironmentNotReadyError, match=f"but {tmp_path} has none"):
        library_text(1000, tmp_path)


def test_unreadable_source(tmp_path: Path) -> None:
    """A source that cannot be read is named."""
    (tmp_path / "abc.py").symlink_to(tmp_path / "ast.py")
    write(tmp_path / "email" / "message.py", b"x\n")
    assert library_text(1000, tmp_path) == b"x\n"
    (tmp_path / "email" / "parser.py").mkdir()
    with pytest.raises(EnvironmentNotReadyError, match=r"cannot read the sources.*parser\.py"):
        library_text(1000, tmp_path)


BIG = b"0123456789abcdef" * (2 << 20)  # 32 MiB: more than the buffers of two sockets hold


def connect(server: TextServer) -> socket.socket:
    return socket.create_connection((server.host, server.port), timeout=60)


def receive(client: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := client.recv(1 << 16)):
        data += part
    return bytes(data)


def test_sends_the_text_and_keeps_the_connection() -> None:
    """A client gets the text, and no end after it until the server is closed."""
    text = b"to be\nor not\n"
    with TextServer(text) as server, connect(server) as client:
        assert receive(client, len(text)) == text
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        client.settimeout(60)
        server.__exit__()
        assert client.recv(1) == b""


def test_waits_for_a_slow_client() -> None:
    """A client that reads late receives everything, in order."""
    with TextServer(BIG) as server, connect(server) as client:
        assert receive(client, len(BIG)) == BIG


def test_closing_before_a_client_came() -> None:
    """A server without a client ends, and its port is free."""
    with TextServer(b"x\n") as server:
        pass
    with pytest.raises(ConnectionRefusedError):
        connect(server)


def test_closing_while_it_sends() -> None:
    """A server that waits for a slow client can be closed."""
    with TextServer(BIG) as server, connect(server) as client:
        client.recv(1)
        server.__exit__()
        assert len(receive(client, len(BIG))) < len(BIG)


def test_client_that_leaves() -> None:
    """A client that disconnects ends the sending without an error."""
    with TextServer(BIG) as server, connect(server) as client:
        client.recv(1)


TOPIC_TEXT = LINES + f"{END_WORD}\n".encode() * PARTITIONS


def require_sent(topic: TextTopic, kafka: KafkaCluster) -> None:
    """Each partition has its lines in order, and the last word at its end."""
    found = kafka.read(topic.name)
    assert topic.lag() == TOPIC_TEXT.count(b"\n")
    lines = TOPIC_TEXT.split(b"\n")[:-1]
    for partition in range(PARTITIONS):
        sent = [record.value for record in found if record.partition == partition]
        assert sent == lines[partition::PARTITIONS]
        assert sent[-1] == END_WORD.encode()


def test_topic_of_its_own(kafka: KafkaCluster) -> None:
    """On brokers the topic is created for the demo, filled in order, and deleted."""
    with TextTopic(TOPIC_TEXT, {"bootstrap.servers": kafka.bootstrap}) as topic:
        require_sent(topic, kafka)
        assert topic.name in kafka.admin.list_topics(timeout=60).topics
    assert topic.name not in kafka.admin.list_topics(timeout=60).topics


def test_the_library_fits_a_mock_cluster() -> None:
    """A partition of the mock keeps 100,000 records and 5 MB, and discards older ones."""
    text = library_text(10**9)
    assert text.count(b"\n") < PARTITIONS * 100_000
    assert len(text) < PARTITIONS * (5 << 20)


def test_no_broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a broker the error names the address and says what to do."""
    monkeypatch.setattr("dstreams.cli.demo._ANSWER_S", 1.0)
    with (
        pytest.raises(EnvironmentNotReadyError, match=r"127.0.0.1:9: cannot create topic .*run"),
        TextTopic(TOPIC_TEXT, {"bootstrap.servers": "127.0.0.1:9"}),
    ):
        pass
