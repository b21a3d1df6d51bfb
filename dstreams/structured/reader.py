"""DataStreamReader: where the records of a query come from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from dstreams.durations import parse_interval_ms
from dstreams.errors import InvalidStreamError
from dstreams.sources.rate import RateSource
from dstreams.sources.socket import SocketTextSource
from dstreams.structured.logical import LogicalPlan, StreamingRelation
from dstreams.structured.sources.base import StreamSource
from dstreams.structured.sources.files import FileStreamSource
from dstreams.structured.sources.rate import RateStreamSource
from dstreams.structured.sources.socket import SocketStreamSource

if TYPE_CHECKING:
    from dstreams.structured.dataset import StreamingDataset

_OPTIONS = {
    "rate": ("rowsPerSecond", "rampUpTime", "numPartitions"),
    "socket": ("host", "port"),
    "text": ("path", "maxFilesPerTrigger"),
    "json": ("path", "maxFilesPerTrigger"),
}


@dataclass(frozen=True)
class DataStreamReader:
    """Says where records come from; each method returns a reader that knows more.

    Semantics: pyspark.sql.streaming.DataStreamReader. Records are Python objects.

    Args:
        make: returns the dataset of a plan.
        source_format: ``rate``, ``socket``, ``text`` or ``json``.
        given: the options.
    """

    make: Callable[[LogicalPlan], StreamingDataset]
    source_format: str | None = None
    given: dict[str, Any] = field(default_factory=dict)

    def format(self, source: str) -> DataStreamReader:
        """Read from ``rate``, ``socket``, ``text`` or ``json``.

        Raises:
            InvalidStreamError: there is no such source.
        """
        if source not in _OPTIONS:
            raise InvalidStreamError(
                f"there is no source {source!r}; use one of {', '.join(_OPTIONS)}, or memoryStream "
                "of the session"
            )
        return replace(self, source_format=source)

    def option(self, key: str, value: Any) -> DataStreamReader:
        """Set one option of the source."""
        return replace(self, given={**self.given, key: value})

    def options(self, **options: Any) -> DataStreamReader:
        """Set several options of the source."""
        return replace(self, given={**self.given, **options})

    def text(self, path: str, **options: Any) -> StreamingDataset:
        """Read lines of the text files that appear in a directory, each as ``str``."""
        return self.format("text").options(**options).load(path)

    def json(self, path: str, **options: Any) -> StreamingDataset:
        """Read the JSON files that appear in a directory, each line as one record."""
        return self.format("json").options(**options).load(path)

    def load(self, path: str | None = None) -> StreamingDataset:
        """Return the records.

        Args:
            path: directory of a file source.

        Raises:
            InvalidStreamError: no format was given, or an option is unknown, missing or wrong.
        """
        if self.source_format is None:
            raise InvalidStreamError(f"call format with one of {', '.join(_OPTIONS)} before load")
        options = dict(self.given) if path is None else {**self.given, "path": path}
        known = _OPTIONS[self.source_format]
        for key in options:
            if key not in known:
                raise InvalidStreamError(
                    f"source {self.source_format} has no option {key!r}; there are "
                    f"{', '.join(known)}"
                )
        return self.make(StreamingRelation(self._source(options)))

    def _source(self, options: dict[str, Any]) -> StreamSource:
        if self.source_format == "rate":
            ramp_ms = parse_interval_ms(str(options.get("rampUpTime", "0 seconds")))
            partitions = options.get("numPartitions")
            count = None if partitions is None else _number(partitions, "numPartitions")
            rows = _number(options.get("rowsPerSecond", 1), "rowsPerSecond")
            return RateStreamSource(RateSource(rows, ramp_ms, count))
        if self.source_format == "socket":
            host, port = self._needed(options, "host"), self._needed(options, "port")
            source = SocketTextSource(str(host), _number(port, "port"))
            return SocketStreamSource(source.host, source.port)
        path = str(self._needed(options, "path"))
        most = options.get("maxFilesPerTrigger")
        limit = None if most is None else _number(most, "maxFilesPerTrigger")
        return FileStreamSource(path, "json" if self.source_format == "json" else "text", limit)

    def _needed(self, options: dict[str, Any], key: str) -> Any:
        if key not in options:
            raise InvalidStreamError(f"source {self.source_format} needs option {key!r}")
        return options[key]


def _number(value: Any, name: str) -> int:
    text = str(value).strip()
    if isinstance(value, bool) or not text.isdecimal() or int(text) < 1:
        raise InvalidStreamError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(text)
