"""Named steps of a batch, and of a restart, at which a drill can make the driver fail.

Streams and queries have all of them, in the order of :mod:`dstreams.engine.stream_checkpoint`.

Nothing happens, and nothing is looked up, unless ``DSTREAMS_FAULTS`` is set when it starts::

    DSTREAMS_FAULTS="begin.done@3:kill9;out.start:raise"

Each part is a step, ``@`` and the number of the batch where it should not be the first one that
comes, and what happens there, once: ``kill9`` kills the process at once, ``raise`` raises
:class:`FaultError`, ``stop`` halts the process until somebody lets it go on (SIGCONT).

========================= ====================================================================
``plan.start``            a batch is due, nothing of it is known
``begin.start`` ``.done`` what it reads is fixed; the same, and written down
``job.submit``            it runs, nothing of it is made
``state.start`` ``.done`` before its state is written; after it
``out.start`` ``.done``   before and after each output
``commit.start`` ``.done`` outputs have run; the batch is committed
``clean.start`` ``.done`` before what is old is forgotten; as it is deleted, or after it
``rec.fence``             a restart has taken the stream over
``rec.load``              it knows where its state is
``rec.replay``            it reads input of committed batches again
========================= ====================================================================
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

VARIABLE = "DSTREAMS_FAULTS"


class FaultError(RuntimeError):
    """A fault that was asked for."""


@dataclass(frozen=True)
class Fault:
    """What happens at a step, in one batch or the first: ``kill9``, ``raise`` or ``stop``."""

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
                f"{VARIABLE} has {part!r}; write step@batch:action, the action being kill9, raise "
                "or stop"
            )
        faults[step] = Fault(int(batch) if batch else None, action)
    return faults


_faults: dict[str, Fault] = parse(os.environ.get(VARIABLE, ""))
_watchers: list[Callable[[str], object]] = []


def watch(tell: Callable[[str], object]) -> Callable[[], None]:
    """Call *tell* with each step before its fault, and return what ends that."""
    _watchers.append(tell)
    return lambda: _watchers.remove(tell)


def fault(step: str, batch_id: int | None = None, faults: Mapping[str, Fault] = _faults) -> None:
    """Fail at *step* if that was asked for."""
    for tell in _watchers:
        tell(step)
    if not faults:
        return
    asked = faults.get(step)
    if asked is None or asked.batch_id not in (None, batch_id):
        return
    if faults is _faults:
        del _faults[step]  # once
    if asked.action == "raise":
        raise FaultError(f"fault at {step} of batch {batch_id}")
    os.kill(os.getpid(), signal.SIGKILL if asked.action == "kill9" else signal.SIGSTOP)


@contextmanager
def steps(name: str, batch_id: int) -> Iterator[None]:
    """Come to the step ``<name>.start`` before the block, and to ``<name>.done`` after it."""
    fault(f"{name}.start", batch_id)
    yield
    fault(f"{name}.done", batch_id)
