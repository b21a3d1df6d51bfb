"""Answers for texts in a program: settings of Spark's streaming, its jars, its classes."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dstreams.common.settings import Settings
from dstreams.compat.check.answers import SAME, Answer, change, differs
from dstreams.compat.check.table import NO_CLASS_OF_THE_JVM, NO_JAR

_KEY = re.compile(r"(?<![\w.])spark\.streaming\.[A-Za-z.]*[A-Za-z]")
_JAR = re.compile(r"\bspark-streaming[-_][\w.:-]+")
_CLASS = re.compile(r"\borg\.apache\.spark\.streaming\b[\w.]*")

_OF_OTHERS = {
    "spark.files.ignoreMissingFiles": differs(
        "Of a batch of which a file is missing the others are read; where wholeTextFiles or "
        "binaryFiles lose one while the batch runs, it fails.",
        "`spark.files.ignoreMissingFiles`",
    ),
    "spark.hadoop.validateOutputSpecs": differs(
        "It holds inside of batches too, where a program sets it.",
        "`spark.hadoop.validateOutputSpecs`",
    ),
}
_WITHOUT_EFFECT = differs("The setting has no effect here.", instead="It may be left out.")


def answers_of_text(text: str, value: str | None = None) -> Iterator[tuple[str, Answer]]:
    """Yield names in a text that a program has, each with its answer.

    Args:
        text: a text of the program.
        value: what a setting of this name is set to, None where that is not said.
    """
    for key in dict.fromkeys(_KEY.findall(text)):
        rest = text.partition(key)[2]
        given = re.match(r"\s*[=\s]\s*(\w+)", rest)
        yield key, _of_setting(key, given.group(1) if given else value)
    for key, answer in _OF_OTHERS.items():
        if key in text:
            yield key, answer
    for jar in dict.fromkeys(_JAR.findall(text)):
        yield jar, NO_JAR
    for name in dict.fromkeys(_CLASS.findall(text)):
        yield name, NO_CLASS_OF_THE_JVM


def _of_setting(key: str, value: str | None) -> Answer:
    if key in Settings.without_choice:
        only, why = Settings.without_choice[key]
        if value == only:
            return SAME
        rows = ("`spark.streaming.concurrentJobs`",) if key.endswith("concurrentJobs") else ()
        return change(f"Only {only} is taken: {why}.", "Leave the setting out.", *rows)
    return SAME if key in Settings.defaults() else _WITHOUT_EFFECT
