"""What a drill prints: a line for each driver, and a table at the end."""

from __future__ import annotations

import json
from typing import TextIO

from dstreams.drill.findings import Result


class Report:
    """Writes to a stream.

    Args:
        out: where to.
        as_json: write nothing but the result, for programs.
    """

    def __init__(self, out: TextIO, as_json: bool) -> None:
        self._out = out
        self._as_json = as_json

    def tell(self, line: str) -> None:
        """Tell how it goes."""
        if not self._as_json:
            self._write(line)

    def end(self, result: Result) -> None:
        """Write what was found."""
        if self._as_json:
            self._write(json.dumps(result.to_json(), indent=2))
        else:
            self._write(table(result))

    def _write(self, text: str) -> None:
        self._out.write(f"{text}\n")
        self._out.flush()


def table(result: Result) -> str:
    """Return the result for people."""
    found = result.to_json()
    times = found["recovery_ms"]
    recovery = " / ".join(
        "-" if times[name] is None else f"{times[name] / 1000:.1f} s"
        for name in ("p50", "p95", "max")
    )
    rows = [
        ("kills", f"{result.kills}, of them {len(result.at_steps)} at steps of a batch"),
        *((f"  {way}", str(count)) for way, count in result.ways.items()),
        ("killed in", ""),
        *((f"  {phase}", str(count)) for phase, count in result.phases.items()),
        ("most kills between two batches", str(result.deepest)),
        ("batches", f"{result.batches:,}"),
        ("records", f"{found['records']:,}"),
        ("records lost", f"{found['lost']:,}"),
        ("records duplicated", f"{found['duplicated']:,}"),
        ("states compared", f"{found['states']:,}"),
        ("state equal", "yes" if found["state_equal"] else "NO"),
        ("recovery p50 / p95 / max", recovery),
        ("duration", f"{result.seconds // 60} min {result.seconds % 60} s"),
        ("seed", str(result.seed)),
    ]
    width = max(len(name) for name, _ in rows)
    lines = ["", *(f"{name.ljust(width)}  {value}".rstrip() for name, value in rows), ""]
    lines += [f"- {problem}" for problem in found["problems"]]
    verdict = "all promises held" if result.is_passed else "PROMISES WERE BROKEN"
    return "\n".join([*lines, verdict])
