"""The methods of StreamingContext for those who want to be told how it goes."""

from __future__ import annotations

from dstreams.kernel.listener_bus import ListenerBus, load_listener
from dstreams.listener import CALLBACKS, StreamingListener
from dstreams.settings import Settings


class ListenerMethods:
    """Listeners come and go at any time, before the start and while the streams run.

    Semantics: pyspark.streaming.StreamingContext (4.3); it has no method to remove a listener, as
    Spark's StreamingContext has.
    """

    _bus: ListenerBus

    def addStreamingListener(self, streamingListener: object) -> None:
        """Tell *streamingListener* of everything that happens from now on.

        Args:
            streamingListener: a :class:`dstreams.StreamingListener`, or anything that has some of
                its methods.

        Raises:
            InvalidStreamError: it has none of them, or is a class.
        """
        self._bus.add(streamingListener)

    def removeStreamingListener(self, streamingListener: object) -> None:
        """Tell *streamingListener* nothing more; harmless when it was never added."""
        self._bus.remove(streamingListener)


def open_bus(settings: Settings) -> ListenerBus:
    """Make the bus of a context, with the listeners that the settings name."""
    bus = ListenerBus(StreamingListener, CALLBACKS, settings.max_queued_events)
    for name in settings.extra_listeners:
        bus.add(load_listener(name))
    return bus
