"""Named steps of a batch and of a restart, at which a drill can make the driver fail.

Streams and queries have the same steps (:mod:`dstreams.engine.stream_checkpoint` lists those of a
batch); a restart adds ``rec.load``, before state is restored, and ``rec.replay``, before input of
committed batches is read again. Set ``DSTREAMS_FAULTS`` before the start::

    DSTREAMS_FAULTS="begin.done@3:kill9;out.start:raise"

Each part is a step, optionally ``@`` and a batch number (by default the first batch that reaches
the step), and an action, executed once: ``kill9`` kills the process, ``raise`` raises
:class:`FaultError`, ``stop`` pauses the process until SIGCONT.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

VARIABLE = "DSTREAMS_FAULTS"


class FaultError(RuntimeError):
    """A fault that ``DSTREAMS_FAULTS`` requested."""


@dataclass(frozen=True)
class Fault:
    """An action at a step, ``kill9``, ``raise`` or ``stop``, in one batch; None for the first."""

    batch_id: int | None
    action: str


def parse(text: str) -> dict[str, Fault]:
    """Read the value of ``DSTREAMS_FAULTS``."""
    faults: dict[str, Fault] = {}
    for part in filter(None, (part.strip() for part in text.split(";"))):
        place, _, action = part.partition(":")
        step, _, batch = place.partition("@")
        if action not in ("kill9", "raise", "stop") or (batch and not batch.isdigit()):
            raise ValueError(
                f"{VARIABLE}: invalid part, got {part!r}; write step@batch:action, with kill9, "
                "raise or stop as the action"
            )
        faults[step] = Fault(int(batch) if batch else None, action)
    return faults


_faults: dict[str, Fault] = parse(os.environ.get(VARIABLE, ""))
_watchers: list[Callable[[str], object]] = []


def watch(watcher: Callable[[str], object]) -> Callable[[], None]:
    """Call *watcher* with each step before its fault; return a function that ends this."""
    _watchers.append(watcher)
    return lambda: _watchers.remove(watcher)


def fault(step: str, batch_id: int | None = None, faults: Mapping[str, Fault] = _faults) -> None:
    """Fail at *step* if a fault was requested there."""
    for watcher in _watchers:
        watcher(step)
    if not faults:
        return
    requested = faults.get(step)
    if requested is None or requested.batch_id not in (None, batch_id):
        return
    if faults is _faults:
        del _faults[step]  # once
    if requested.action == "raise":
        raise FaultError(f"fault at {step} of batch {batch_id}")
    os.kill(os.getpid(), signal.SIGKILL if requested.action == "kill9" else signal.SIGSTOP)


@contextmanager
def steps(name: str, batch_id: int) -> Iterator[None]:
    """Reach the step ``<name>.start`` before the block, and ``<name>.done`` after it."""
    fault(f"{name}.start", batch_id)
    yield
    fault(f"{name}.done", batch_id)
