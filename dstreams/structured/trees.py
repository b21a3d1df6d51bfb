"""Plans as text: a line for each step, and below it the steps that it takes rows from."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, TypeVar


class Step(Protocol):
    """A step of a plan."""

    @property
    def children(self: T) -> Iterable[T]: ...


T = TypeVar("T", bound=Step)


def tree_lines(node: Any, text: Callable[[Any], str]) -> Iterator[str]:
    """Iterate over the lines of a plan, the outermost step first, as Spark draws them."""
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


def explanation(logical: str, physical: str, *, extended: bool) -> str:
    """Return what ``explain`` prints of two plans."""
    before = f"== Logical Plan ==\n{logical}\n\n" if extended else ""
    return f"{before}== Physical Plan ==\n{physical}\n"
