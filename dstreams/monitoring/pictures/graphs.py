"""Graphs of streams and plans of queries, as SVG and as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol
from unicodedata import east_asian_width

from dstreams.monitoring.pictures.layout import Layout, lay_out
from dstreams.monitoring.pictures.markup import ACCENTS, plain, text

_FIRST_LINE, _LINE, _GAP_X, _GAP_Y, _EDGE = 28.0, 14.0, 18.0, 24.0, 2.0
_LABEL_WIDTH, _DETAIL_WIDTH, _PADDING = 7.4, 6.3, 12.0
_MOST_LABEL, _MOST_DETAIL = 34, 54
_LEAST_WIDTH = 110.0
_LEAST_SCALE = 0.6
"""How far a graph shrinks on a narrow page before it scrolls."""


class DrawnNode(Protocol):
    """What is drawn of a step of a stream or query: that of a monitor's status will do."""

    @property
    def number(self) -> int:
        """What tells it from the other nodes; parents have lower ones."""
        ...

    @property
    def kind(self) -> str:
        """``input``, ``step``, ``state`` or ``output``."""
        ...

    @property
    def operation(self) -> str:
        """What it is and where the program says so: ``map at app.py:12``."""
        ...

    @property
    def uid(self) -> str:
        """Its identity on disk, empty where nothing of it is durable."""
        ...

    @property
    def parents(self) -> tuple[int, ...]:
        """Numbers of the nodes that it is made from."""
        ...

    @property
    def durable(self) -> str:
        """What of it is durable, in a few words; empty for nothing."""
        ...


def graph_svg(nodes: Sequence[DrawnNode], marked: int | None = None) -> str:
    """Return a drawing of a graph, parents above children; *marked* has a thicker border.

    *nodes* come after their parents. Text and lines have the colour of the page's text.
    """
    if not nodes:
        return ""
    layout = lay_out(
        {node.number: node.parents for node in nodes},
        {node.number: _size(node) for node in nodes},
        gap_x=_GAP_X,
        gap_y=_GAP_Y,
    )
    width, height = layout.width + 2 * _EDGE, layout.height + 2 * _EDGE
    summary = f"graph of {len(nodes)} node{'' if len(nodes) == 1 else 's'}"
    drawn = "".join(_node(node, layout, is_marked=node.number == marked) for node in nodes)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{summary}" '
        f'style="max-width:100%;min-width:{_LEAST_SCALE * width:.0f}px;height:auto" '
        f'width="{width:.0f}" height="{height:.0f}" viewBox="{-_EDGE:g} {-_EDGE:g} {width:.0f} '
        f'{height:.0f}" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" '
        f'fill="currentColor">{_edges(layout)}{drawn}</svg>'
    )


def graph_text(nodes: Sequence[DrawnNode]) -> str:
    """Return a graph as a tree of lines, the ends first; what comes twice is said once."""
    by_number = {node.number: node for node in nodes}
    used = {parent for node in nodes for parent in node.parents}
    said: set[int] = set()

    def lines(number: int, indent: str, branch: str) -> Iterator[str]:
        node = by_number[number]
        label = f"{indent}{branch}{plain(node.operation)}"
        if number in said:
            yield f"{label} (see above)"
            return
        said.add(number)
        facts = (f"uid {node.uid}" if has_uid(node) else "", _durable(node))
        known = "; ".join(plain(fact) for fact in facts if fact)
        yield f"{label} [{known}]" if known else label
        inner = indent + branch.replace("+", " ").replace("-", " ")
        for place, parent in enumerate(node.parents, 1):
            yield from lines(parent, inner, "+- " if place == len(node.parents) else ":- ")

    ends = [node.number for node in nodes if node.number not in used]
    return "\n".join(line for end in ends for line in lines(end, "", ""))


def has_uid(node: DrawnNode) -> bool:
    """Whether the uid of a node is worth a word: something is kept under it."""
    return bool(node.uid) and node.kind != "step"


def _label(node: DrawnNode) -> tuple[str, str]:
    """Return the operation, and the user's line where it is known."""
    operation, _, line = node.operation.rpartition(" at ")
    return (operation, line) if operation else (line, "")


def _durable(node: DrawnNode) -> str:
    is_promise = node.kind == "output" or not node.durable
    return node.durable if is_promise else f"durable: {node.durable}"


def _columns(line: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


def _size(node: DrawnNode) -> tuple[float, float]:
    details = _details(node)
    label = _columns(plain(_label(node)[0], _MOST_LABEL)) * _LABEL_WIDTH
    longest = max(map(_columns, details), default=0) * _DETAIL_WIDTH
    width = max(_LEAST_WIDTH, label + 2 * _PADDING, longest + 2 * _PADDING)
    return width, _FIRST_LINE + _LINE * len(details)


def _details(node: DrawnNode) -> list[str]:
    """Return what stands below the label: uid and line, then what is durable."""
    facts = (node.uid if has_uid(node) else "", _label(node)[1])
    lines = (" · ".join(fact for fact in facts if fact), _durable(node))
    return [plain(line, _MOST_DETAIL) for line in lines if line]


def _node(node: DrawnNode, layout: Layout, *, is_marked: bool) -> str:
    (width, height), x, y = _size(node), layout.x[node.number], layout.y[node.number]
    left, top, accent = x - width / 2, y - height / 2, ACCENTS[node.kind]
    hint = "\n".join(
        text(line, 400)
        for line in (node.operation, f"uid {node.uid}" if node.uid else "", _durable(node))
        if line
    )
    details = "".join(
        f'<text x="{x:.1f}" y="{top + 18 + _LINE * (number + 1):.1f}" text-anchor="middle" '
        f'font-size="10.5" opacity=".75">{text(detail, _MOST_DETAIL)}</text>'
        for number, detail in enumerate(_details(node))
    )
    return (
        f"<g><title>{hint}</title>"
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:g}" rx="6" '
        f'fill="{accent}" fill-opacity=".13" stroke="{accent}" '
        f'stroke-width="{2.5 if is_marked else 1}"/>'
        f'<text x="{x:.1f}" y="{top + 18:.1f}" text-anchor="middle" font-size="12" '
        f'font-weight="600">{text(_label(node)[0], _MOST_LABEL)}</text>{details}</g>'
    )


def _edges(layout: Layout) -> str:
    ways = layout.edges.values()
    paths = "".join(
        f'<path d="{_path(way)}" fill="none" stroke="currentColor" stroke-opacity=".45" '
        'stroke-width="1.2"/>'
        for way in ways
    )
    tips = "".join(
        f'<path d="M{way[-1][0]:.1f} {way[-1][1]:.1f}l-3.5 -6h7z" fill-opacity=".55"/>'
        for way in ways
    )
    return paths + tips


def _path(way: Sequence[tuple[float, float, float]]) -> str:
    """Return a curve from the lower side of the first box to the upper side of the last."""
    bend = _GAP_Y / 2
    x, _, y = way[0]
    drawn = [f"M{x:.1f} {y:.1f}"]
    for number, (to_x, top, bottom) in enumerate(way[1:], 1):
        middle = max(y, top - 2 * bend)
        drawn.append(
            f"V{middle:.1f}C{x:.1f} {middle + bend:.1f} {to_x:.1f} {top - bend:.1f} "
            f"{to_x:.1f} {top:.1f}"
        )
        if number < len(way) - 1:
            drawn.append(f"V{bottom:.1f}")
        x, y = to_x, bottom
    return "".join(drawn)
