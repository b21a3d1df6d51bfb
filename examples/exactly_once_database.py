"""Count the words of files in a database, each word exactly once across crashes.

    python examples/exactly_once_database.py DIRECTORY

Write text files to DIRECTORY/input, under a hidden name, rename them, and query the counts:

    sqlite3 DIRECTORY/counts.db "SELECT * FROM counts"

An addition is correct only if it runs once. Kill the program with ``kill -9`` at any time and start
it again: it resumes where it stopped. Or let a drill kill it again and again:

    dstreams drill --app examples/exactly_once_database.py
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections import Counter
from contextlib import closing
from operator import add
from pathlib import Path

from dstreams import StreamingContext, tuned_context
from dstreams.sinks import TransactionalSink

ADD = (
    "INSERT INTO counts VALUES (?, ?) "
    "ON CONFLICT (word) DO UPDATE SET count = counts.count + excluded.count"
)


def setup(directory: str) -> StreamingContext:
    """Define the streams. Called only at the first start."""
    with closing(sqlite3.connect(f"{directory}/counts.db")) as database:
        database.execute("CREATE TABLE IF NOT EXISTS counts (word TEXT PRIMARY KEY, count BIGINT)")
        database.commit()

    conf = {"spark.streaming.stopGracefullyOnShutdown": "true"}
    ssc = StreamingContext(tuned_context("exactly_once_database", conf=conf), 1)
    ssc.checkpoint(f"{directory}/checkpoint")
    lines = ssc.fileStream(f"{directory}/input", newFilesOnly=False, maxFileAge=math.inf)
    words = lines.flatMap(str.split).map(with_one)
    counts = words.reduceByKey(add)
    counts.foreachRDD(TransactionalSink(f"{directory}/counts.db", ADD))
    return ssc


def with_one(word: str) -> tuple[str, int]:
    """Return a word with the count 1."""
    return word, 1


# For dstreams drill ----------------------------------------------------------------------------


def feed(directory: str, number: int) -> None:
    """Add a file to the input directory."""
    hidden = Path(directory, "input", f".file-{number}")
    hidden.parent.mkdir(exist_ok=True)
    hidden.write_text(f"all same\nnumber-{number} all\n" * 50)
    hidden.rename(hidden.with_name(f"file-{number}.txt"))


def is_done(directory: str) -> bool:
    """Return whether the database has the words of all files."""
    return sum(found(directory).values()) >= sum(wanted(directory).values())


def check(directory: str) -> list[str]:
    """Return the differences of the database from the files."""
    counts = found(directory)
    return [
        f"{word!r} is there {counts[word]} times, not {count}"
        for word, count in wanted(directory).items()
        if counts[word] != count
    ]


def found(directory: str) -> Counter[str]:
    """Return the counts in the database."""
    with closing(sqlite3.connect(f"{directory}/counts.db")) as database:
        return Counter(dict(database.execute("SELECT word, count FROM counts")))


def wanted(directory: str) -> Counter[str]:
    """Return the counts of the words in the files."""
    texts = (path.read_text() for path in Path(directory, "input").glob("*.txt"))
    return Counter(word for text in texts for word in text.split())


if __name__ == "__main__":
    root = str(Path(sys.argv[1]).absolute())
    Path(root, "input").mkdir(parents=True, exist_ok=True)
    ssc = StreamingContext.getOrCreate(f"{root}/checkpoint", lambda: setup(root))
    ssc.start()
    ssc.awaitTermination()
