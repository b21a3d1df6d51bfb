"""Where the text of the demo comes from, as its stream sees it."""

from __future__ import annotations

from typing import Protocol

from dstreams import DStream, Settings, StreamingContext


class Origin(Protocol):
    """Sends the text while it is open.

    Args:
        place: from where, for people.
        end_words: how often END_WORD has come when every word has.
        settings: of the stream.
        sent_bytes: how much of the text was sent so far.
    """

    @property
    def place(self) -> str: ...

    @property
    def end_words(self) -> int: ...

    @property
    def settings(self) -> Settings: ...

    @property
    def sent_bytes(self) -> int: ...

    def lines(self, ssc: StreamingContext) -> DStream[str]:
        """Return the stream of the text's lines."""
        ...

    def lag(self) -> int | None:
        """How many lines are at the origin that no batch has read; None where nobody knows."""
        ...
