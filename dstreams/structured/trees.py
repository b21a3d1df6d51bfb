"""Plans as trees of text, one line per step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar


class PlanStep(Protocol):
    """A step of a plan."""

    @property
    def children(self: T) -> Iterable[T]: ...


T = TypeVar("T", bound=PlanStep)


def tree_lines(node: Any, text: Callable[[Any], str]) -> Iterator[str]:
    """Iterate over the lines of a plan from the outermost step, formatted as in Spark."""
    yield text(node)
    for place, child in enumerate(node.children):
        is_last = place == len(node.children) - 1
        first, *rest = tree_lines(child, text)
        yield f"{'+- ' if is_last else ':- '}{first}"
        yield from (f"{'   ' if is_last else ':  '}{line}" for line in rest)


def from_sink(node: T) -> Iterator[T]:
    """Iterate over the steps of a plan in the order in which ``explain`` prints them."""
    yield node
    for child in node.children:
        yield from from_sink(child)


def explained_plans(logical: str, physical: str, *, extended: bool) -> str:
    """Return the output of ``explain``."""
    before = f"== Logical Plan ==\n{logical}\n\n" if extended else ""
    return f"{before}== Physical Plan ==\n{physical}\n"
