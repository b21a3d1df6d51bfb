"""Pictures have every fact, escape untrusted names, and stay small."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

from dstreams.monitoring.events import (
    BatchInfo,
    BatchInfos,
    InputInfo,
    OutputOperationInfo,
    StateOperatorInfo,
)
from dstreams.monitoring.graph_drawing import graph_svg, graph_text
from dstreams.monitoring.notebook import queries_html, status_html, stream_html
from dstreams.monitoring.progress import RecentProgress, query_progress
from dstreams.monitoring.status import (
    CheckpointStatus,
    GraphNode,
    PartitionSize,
    StateStatus,
    StreamStatus,
    Totals,
)

HOSTILE = "</title></svg><script>alert(1)</script>\"'&<img src=x onerror=alert(1)>\x1b[31m"

NODES = (
    GraphNode(0, "input", "queueStream at app.py:3", "lines", (), "what each batch reads"),
    GraphNode(1, "step", "map at app.py:4", "map-0", (0,)),
    GraphNode(2, "state", "updateStateByKey at app.py:5", "counts", (1,), "a snapshot every 10 s"),
    GraphNode(3, "output", "pprint at app.py:6", "pprint-0", (2,), "at least once"),
    GraphNode(4, "output", "foreachRDD at app.py:7", "foreachRDD-0", (1,), "exactly once"),
)

DRAWN = {"div", "span", "b", "table", "thead", "tbody", "tr", "th", "td", "svg", "g", "title"}
DRAWN |= {"rect", "text", "path"}


class Markup(HTMLParser):
    """The elements and attributes of a picture, which are all closed, and its text."""

    def __init__(self, picture: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(picture)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "title" not in self._open:
            self.words.append(data)


def words_of(picture: str) -> str:
    """Return the text of a picture, and require its markup to be ours."""
    markup = Markup(picture)
    assert markup.tags <= DRAWN
    assert not [name for name in markup.attributes if name.startswith("on") or name == "href"]
    assert "url(" not in picture
    return " ".join(" ".join(markup.words).split())


def parsed(svg: str) -> ElementTree.Element:
    """Return a drawing, which is well-formed XML."""
    return ElementTree.fromstring(svg)  # noqa: S314 - made here


def batch(number: int, **other: Any) -> BatchInfo:
    """A successful batch, changed by *other*."""
    made = BatchInfo(
        batch_id=number,
        batch_time_ms=1000 * (number + 1),
        records={"lines": 10 * number},
        submitted_ms=1000,
        started_ms=1005,
        completed_ms=1089,
        outputs=(OutputOperationInfo(0, "pprint at app.py:6", 1010, 1050, None),),
        outcome="succeeded",
        failure=None,
        inputs=(InputInfo(0, "lines", 10 * number, "queue item"),),
        durations_ms={"addBatch": 40, "commitOffsets": 4},
    )
    return replace(made, **other)


FAILURE = "batch failed in pprint at app.py:6: ValueError: no"
FAILED = batch(
    7,
    outcome="failed",
    failure=FAILURE,
    outputs=(OutputOperationInfo(0, "pprint at app.py:6", 1010, 1050, "ValueError: no"),),
    records={"lines": None},
    states=(
        StateOperatorInfo(
            "stored",
            "mapWithState at app.py:5",
            2,
            {"numTotalStateRows": 1234, "numUpdatedStateRows": 5, "stateMemory": 2048},
        ),
    ),
)

STATE = StateStatus(
    "counts",
    "updateStateByKey at app.py:5",
    2000,
    6,
    None,
    3000,
    (PartitionSize(0, 1, 1000), PartitionSize(1, 5, 2048)),
)
CHECKPOINT = CheckpointStatus(
    "file:///home/ck/stream-1", 2, "process 1", 7, 8000, 2000, (2, 7), (8,), 3000
)
STATUS = StreamStatus(
    kind="stream",
    id="stream-1",
    run_id="run-1",
    name="app",
    phase="active",
    message="",
    started_ms=0,
    ended_ms=None,
    now_ms=5000,
    batch_ms=1000,
    totals=Totals({"succeeded": 3, "failed": 1}, {"lines": 40}),
    recent=(batch(0), FAILED),
    graph=NODES,
    states=(STATE,),
    checkpoint=CHECKPOINT,
)


# Graphs ----------------------------------------------------------------------------------------


def test_a_node_says_operation_uid_line_and_what_is_durable() -> None:
    """Those of steps without anything on disk do without the uid."""
    words = words_of(graph_svg(NODES))
    assert "queueStream lines · app.py:3 durable: what each batch reads" in words
    assert "updateStateByKey counts · app.py:5 durable: a snapshot every 10 s" in words
    assert "map app.py:4" in words
    assert "foreachRDD foreachRDD-0 · app.py:7 exactly once" in words
    svg = parsed(graph_svg(NODES))
    assert svg.get("aria-label") == "graph of 5 nodes"
    assert len(svg.findall("{*}g")) == 5
    assert len([path for path in svg.findall("{*}path") if path.get("fill") == "none"]) == 4


def test_a_graph_as_text() -> None:
    """Outputs first; a shared parent is printed once."""
    assert graph_text(NODES).splitlines() == [
        "pprint at app.py:6 [uid pprint-0; at least once]",
        "+- updateStateByKey at app.py:5 [uid counts; durable: a snapshot every 10 s]",
        "   +- map at app.py:4",
        "      +- queueStream at app.py:3 [uid lines; durable: what each batch reads]",
        "foreachRDD at app.py:7 [uid foreachRDD-0; exactly once]",
        "+- map at app.py:4 (see above)",
    ]


def test_a_join_as_text() -> None:
    """Branches are drawn as Spark draws those of a plan."""
    nodes = [
        GraphNode(0, "input", "a"),
        GraphNode(1, "step", "m", parents=(0,)),
        GraphNode(2, "input", "b"),
        GraphNode(3, "step", "join", parents=(1, 2)),
    ]
    assert graph_text(nodes).splitlines() == ["join", ":- m", ":  +- a", "+- b"]


def test_no_graph() -> None:
    """Nothing is drawn of nothing."""
    assert (graph_svg(()), graph_text(())) == ("", "")


def test_a_graph_of_many_nodes() -> None:
    """Two hundred are drawn, also where all come from one input."""
    nodes = [GraphNode(0, "input", "queueStream at a.py:1")]
    nodes += [GraphNode(n, "step", f"map at a.py:{n}", parents=(n // 2,)) for n in range(1, 200)]
    assert words_of(graph_svg(nodes)).count("map a.py:") == 199


def test_a_stream_is_drawn_with_what_it_is_made_of() -> None:
    """A stream is drawn with its ancestors, without its descendants."""
    words = words_of(stream_html(NODES, 2, STATE))
    assert "updateStateByKey at app.py:5 · uid counts" in words
    assert "queueStream" in words
    assert "pprint" not in words
    assert "foreachRDD" not in words


# Batches ---------------------------------------------------------------------------------------


def test_a_batch() -> None:
    """In one line, and with inputs, outputs, states and phases."""
    assert repr(batch(1)).endswith(": succeeded, 10 records, 84 ms>")
    words = words_of(batch(1)._repr_html_())
    assert words.startswith("Batch 1 ")
    for fact in ("succeeded · waited 5 ms · took 84 ms", "lines 10 queue item", "addBatch 40 ms"):
        assert fact in words
    failed = words_of(FAILED._repr_html_())
    assert FAILURE in failed
    assert "mapWithState at app.py:5 (stored) 1,234 5 - 2.0 kB 2" in failed
    assert "\n" not in repr(FAILED)
    assert FAILURE in repr(FAILED)


def test_a_list_of_batches() -> None:
    """A table with a bar for each number of records, and the failure below it."""
    batches = BatchInfos([batch(0), batch(1), FAILED])
    lines = repr(batches).splitlines()
    titles = ["batch", "time", "records", "waited", "took", "outputs", "keys", "outcome"]
    assert lines[0].split() == titles
    assert lines[2].split()[3:] == ["10", "5", "ms", "84", "ms", "1/1", "0", "succeeded"]
    assert lines[3].split()[3:] == ["?", "5", "ms", "84", "ms", "0/1", "1,234", "failed"]
    assert lines[4:] == [FAILURE]
    picture = batches._repr_html_()
    assert picture.count("width:100%;height:100%") == 1 + 3  # of records, and of durations
    words = words_of(picture)
    assert words.startswith("3 batches ")
    assert words.endswith(FAILURE)


def test_a_list_of_batches_is_a_list() -> None:
    """It equals one, and a part of it shows itself as well."""
    batches = BatchInfos([batch(0), batch(1)])
    assert batches == [batch(0), batch(1)]
    assert isinstance(batches[-1:], BatchInfos)
    assert batches[1] == batch(1)
    assert repr(BatchInfos()) == "no batches"
    assert words_of(BatchInfos()._repr_html_()) == "no batches"


def test_many_batches_fit_a_screen() -> None:
    """The newest twenty are shown, and how many there are."""
    many = BatchInfos(map(batch, range(1000)))
    lines = repr(many).splitlines()
    assert len(lines) == 22
    assert lines[0] == "980 earlier batches, then"
    assert max(map(len, lines)) < 100
    assert words_of(many._repr_html_()).startswith("1,000 batches the newest 20 ")


def test_progress_of_a_query() -> None:
    """Its list is a table; one of them is a dict as before."""
    infos = [batch(number, watermark_ms=1000) for number in range(30)]
    progress = RecentProgress(query_progress(info, "id", "run", "<b>counts") for info in infos)
    assert len(repr(progress).splitlines()) == 22
    assert "1970-01-01T00:00:01.000Z" in repr(progress)
    assert "30 batches · <b>counts" in words_of(progress._repr_html_())
    assert progress[-1]["batchId"] == 29
    assert repr(RecentProgress()) == "no progress yet"


# States and statuses ---------------------------------------------------------------------------


def test_a_state() -> None:
    """Partition by partition, so that skew is seen."""
    assert repr(STATE).startswith("<state counts after 19")
    assert repr(STATE).endswith(": 6 keys in 2 partitions, 3.0 kB written>")
    assert "partition keys written 0 1 1.0 kB 1 5 2.0 kB" in words_of(STATE._repr_html_())
    many = replace(STATE, partitions=tuple(PartitionSize(n, 1, 1) for n in range(1000)))
    assert "936 more partitions" in words_of(many._repr_html_())


def test_a_status() -> None:
    """Graph, state, checkpoint and newest batches in one picture; the text is short."""
    words = words_of(STATUS._repr_html_())
    for fact in (
        "Stream app · active · a batch every 1 s · 4 batches, 40 records",
        "counts 6 5 3.0 kB",
        "checkpoint stream-1 · epoch 2 · batch 7 committed",
        "a restart recomputes the state of batches 2 to 7",
        "a restart reruns batch 8",
        FAILURE,
    ):
        assert fact in words
    assert "/home" not in STATUS._repr_html_()  # a picture is kept in a notebook that is sent on
    assert len(repr(STATUS).splitlines()) < 12


def test_what_keeps_a_stream_from_running() -> None:
    """The problem is shown above the graph."""
    words = words_of(status_html(STATUS, "no output"))
    assert words.index("cannot run yet: no output") < words.index("queueStream")


def test_queries() -> None:
    """One row per query; an empty list is stated."""
    query = replace(STATUS, kind="query", name="counts", message="Waiting")
    assert "counts active 4 40 84 ms Waiting" in words_of(queries_html("Session", [query]))
    assert words_of(queries_html("Session", [])) == "Session · no queries"


def test_names_of_strangers_are_text() -> None:
    """Names, uids, failures and URLs that are markup do no harm, nor do codes of terminals."""
    node = GraphNode(0, "input", f"{HOSTILE} at {HOSTILE}:1", HOSTILE, (), HOSTILE)
    info = replace(
        FAILED,
        failure=HOSTILE,
        records={HOSTILE: 1},
        inputs=(InputInfo(0, HOSTILE, 1, HOSTILE),),
        outputs=(OutputOperationInfo(0, HOSTILE, 0, 1, HOSTILE),),
        states=(StateOperatorInfo(HOSTILE, HOSTILE, 1, {}),),
        durations_ms={HOSTILE: 1},
    )
    state = replace(STATE, uid=HOSTILE, operation=HOSTILE)
    status = replace(
        STATUS,
        name=HOSTILE,
        message=HOSTILE,
        failure=HOSTILE,
        graph=(node,),
        states=(state,),
        recent=(info,),
        checkpoint=replace(CHECKPOINT, url=HOSTILE),
    )
    progress = RecentProgress([query_progress(info, HOSTILE, HOSTILE, HOSTILE)])
    shown = [info, BatchInfos([info]), info.states[0], state, status, progress]
    pictures = [value._repr_html_() for value in shown]  # type: ignore[attr-defined]
    pictures += [queries_html(HOSTILE, [status]), stream_html([node], 0, state)]
    pictures += [status_html(status, HOSTILE)]
    for picture in pictures:
        words_of(picture)
        assert "\x1b" not in picture
    for value in shown:
        assert "\x1b" not in repr(value)
    parsed(graph_svg([node]))


def test_renderers_and_the_page_are_loaded_on_demand() -> None:
    """Importing dstreams loads neither; a value that is shown loads its renderer."""
    program = (
        "import sys, dstreams.context, dstreams.structured\n"
        "from dstreams.monitoring.events import BatchInfos\n"
        "rendering = 'dstreams.monitoring.notebook', 'dstreams.monitoring.web'\n"
        "assert not set(rendering) & set(sys.modules)\n"
        "print(BatchInfos())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "no batches\n"
