"""The arithmetic of windows, once for all of them: which of the parent's times are in, new, gone.

A window at time t covers (t - window, t]: its beginning is out, its end is in. The window before it
ended one slide earlier. With a window of five slides of the parent and a slide of two::

    previous window      (------------------]                  (t - slide - window, t - slide]
    window at t                  (------------------]          (t - window, t]
                         (-left--]          (entered]
    parent's times    -  1   2   3   4   5   6   7   8  ->     at t = 7: 1 2 left, 6 7 entered

Where the slide is longer than the window there is a gap between the two, whose times are in
neither, and nothing that the two share: all of the previous window left, all of this one entered::

    previous window      (-------]                             window of two, slide of three
    window at t                      (-------]
                         (-left--]   (entered]
    parent's times    -  1   2   3   4   5   6   7   8  ->     at t = 5: 1 2 left, 4 5 entered
"""

from __future__ import annotations

from dataclasses import dataclass

from dstreams.common.durations import require_duration_ms, require_multiple


@dataclass(frozen=True)
class WindowTimes:
    """A window that slides over a stream.

    The ranges that it gives are of the parent's times in order. At the beginning of a stream some
    of them are at zero time or before, where no stream has an RDD: first windows are shorter.
    """

    window_ms: int
    slide_ms: int
    parent_slide_ms: int

    @classmethod
    def of(
        cls, window: float, slide: float | None, parent_slide_ms: int, operation: str
    ) -> WindowTimes:
        """Return a window given in seconds; a *slide* of None is the parent's."""
        window_ms = require_duration_ms(window, f"{operation}: windowDuration")
        slide_name = f"{operation}: slideDuration"
        slide_ms = parent_slide_ms if slide is None else require_duration_ms(slide, slide_name)
        parents = "the parent stream's slide"
        require_multiple(window_ms, parent_slide_ms, f"{operation}: windowDuration", parents)
        require_multiple(slide_ms, parent_slide_ms, slide_name, parents)
        return cls(window_ms, slide_ms, parent_slide_ms)

    @property
    def slides(self) -> int:
        """How many whole slides are in a window."""
        return self.window_ms // self.slide_ms

    def current(self, time_ms: int) -> range:
        """Times in the window at *time_ms*."""
        return self._after(time_ms - self.window_ms, time_ms)

    def entered(self, time_ms: int) -> range:
        """Times in the window at *time_ms* that were not in the one before."""
        return self._after(time_ms - min(self.slide_ms, self.window_ms), time_ms)

    def left(self, time_ms: int) -> range:
        """Times in the window before the one at *time_ms* that are no longer in this one."""
        previous_ms = time_ms - self.slide_ms
        return self._after(previous_ms - self.window_ms, min(previous_ms, time_ms - self.window_ms))

    def _after(self, after_ms: int, upto_ms: int) -> range:
        return range(after_ms + self.parent_slide_ms, upto_ms + 1, self.parent_slide_ms)
