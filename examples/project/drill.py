"""A drill of the stream: its driver is killed again and again, and the counts must be correct.

    dstreams drill --app drill.py --kills 5

It tests the processing and the output of the stream; the lines always come from files.
"""

from __future__ import annotations

from ast import literal_eval
from collections import Counter
from pathlib import Path

from dstreams import StreamingContext

from word_count.stream import context, define, from_files


def setup(directory: str) -> StreamingContext:
    """Define the stream. Called only by the first driver."""
    ssc = context()
    return define(ssc, from_files(ssc, directory), directory)


def feed(directory: str, number: int) -> None:
    """Add a file to the input, renamed from a hidden name when it is complete."""
    hidden = Path(directory, "input", f".file-{number}")
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text(f"all same\nnumber-{number} all\n" * 50)
    hidden.rename(hidden.with_name(f"file-{number}.txt"))


def is_done(directory: str) -> bool:
    """Return whether the words of all files are counted."""
    return found(directory).total() >= wanted(directory).total()


def check(directory: str) -> list[str]:
    """Return the differences of the newest counts from the files."""
    counts = found(directory)
    return [
        f"{word!r} is counted {counts[word]} times, not {count}"
        for word, count in wanted(directory).items()
        if counts[word] != count
    ]


def found(directory: str) -> Counter[str]:
    """Return the counts after the newest complete batch."""
    newest = max(Path(directory).glob("counts-*/_SUCCESS"), default=None)
    parts = [] if newest is None else newest.parent.glob("part-*")
    return Counter(dict(literal_eval(line) for p in parts for line in p.read_text().splitlines()))


def wanted(directory: str) -> Counter[str]:
    """Return the counts of the words in the files."""
    texts = (path.read_text() for path in Path(directory, "input").glob("*.txt"))
    return Counter(word for text in texts for word in text.split())
