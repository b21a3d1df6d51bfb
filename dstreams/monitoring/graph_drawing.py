"""Draws the graph of a stream or query as SVG and as text.

The layout has layers (Sugiyama): a node is one layer below the lowest of its parents, an edge over
several layers gets a place in each of them, and nodes are ordered by the position of their
neighbours. The SVG has no style sheet, and everything that it shows is escaped.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from unicodedata import east_asian_width

from dstreams.monitoring.display import one_line
from dstreams.monitoring.status import GraphNode

_FIRST_LINE, _LINE, _GAP_X, _GAP_Y, _EDGE = 28.0, 14.0, 18.0, 24.0, 2.0
_LABEL_WIDTH, _DETAIL_WIDTH, _PADDING = 7.4, 6.3, 12.0
_MOST_LABEL, _MOST_DETAIL = 34, 54
_LEAST_WIDTH, _LEAST_LIVE_WIDTH = 110.0, 170.0
_LEAST_SCALE = 0.6  # of a graph on a narrow page, which then scrolls
_SWEEPS = 12

ACCENTS = {
    "input": "#3b82f6",
    "step": "#94a3b8",
    "state": "#d97706",
    "output": "#0d9488",
}
"""Colours of the kinds of nodes, readable on white and on black."""


def graph_svg(
    nodes: Sequence[GraphNode], marked: int | None = None, *, is_live: bool = False
) -> str:
    """Return a drawing of a graph with parents above children, in the text colour of the page.

    Args:
        nodes: the nodes, each after its parents.
        marked: number of the node with a thicker border.
        is_live: reserve an empty line of class ``size`` in each node with state, for a page to fill
            in, and omit the inline style, which its security policy forbids.
    """
    if not nodes:
        return ""
    boxes = {node.number: _Box(node, is_live=is_live) for node in nodes}
    layout = lay_out(
        {node.number: node.parents for node in nodes},
        {number: (box.width, box.height) for number, box in boxes.items()},
        gap_x=_GAP_X,
        gap_y=_GAP_Y,
    )
    width, height = layout.width + 2 * _EDGE, layout.height + 2 * _EDGE
    summary = f"graph of {len(nodes)} node{'' if len(nodes) == 1 else 's'}"
    least = f"{_LEAST_SCALE * width:.0f}"
    style = f'style="max-width:100%;min-width:{least}px;height:auto" '
    drawn = "".join(
        box.svg(layout.x[number], layout.y[number], is_marked=number == marked)
        for number, box in boxes.items()
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{summary}" '
        f"{'' if is_live else style}"
        f'width="{width:.0f}" height="{height:.0f}" viewBox="{-_EDGE:g} {-_EDGE:g} {width:.0f} '
        f'{height:.0f}" font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" '
        f'fill="currentColor">{_edges(layout)}{drawn}</svg>'
    )


def graph_text(nodes: Sequence[GraphNode]) -> str:
    """Return a graph as a tree of lines from its ends; repeated subtrees are printed once."""
    by_number = {node.number: node for node in nodes}
    used = {parent for node in nodes for parent in node.parents}
    printed: set[int] = set()

    def lines(number: int, indent: str, branch: str) -> Iterator[str]:
        node = by_number[number]
        label = f"{indent}{branch}{one_line(node.operation)}"
        if number in printed:
            yield f"{label} (see above)"
            return
        printed.add(number)
        facts = (f"uid {node.uid}" if has_uid(node) else "", _durable(node))
        known = "; ".join(one_line(fact) for fact in facts if fact)
        yield f"{label} [{known}]" if known else label
        inner = indent + branch.replace("+", " ").replace("-", " ")
        for place, parent in enumerate(node.parents, 1):
            yield from lines(parent, inner, "+- " if place == len(node.parents) else ":- ")

    ends = [node.number for node in nodes if node.number not in used]
    return "\n".join(line for end in ends for line in lines(end, "", ""))


def has_uid(node: GraphNode) -> bool:
    """Return whether to show the uid of a node: something is stored under it."""
    return bool(node.uid) and node.kind != "step"


def _durable(node: GraphNode) -> str:
    is_guarantee = node.kind == "output" or not node.durable
    return node.durable if is_guarantee else f"durable: {node.durable}"


def _width(line: str) -> int:
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


class _Box:
    """The box of a node: operation, then uid and call site, then what is durable."""

    def __init__(self, node: GraphNode, *, is_live: bool) -> None:
        operation, _, site = node.operation.rpartition(" at ")
        label, site = (operation, site) if operation else (site, "")
        facts = (node.uid if has_uid(node) else "", site)
        lines = (" · ".join(fact for fact in facts if fact), _durable(node))
        self._node = node
        self._label = one_line(label, _MOST_LABEL)
        self._details = [one_line(line, _MOST_DETAIL) for line in lines if line]
        self._has_size = is_live and node.kind == "state"
        least = _LEAST_LIVE_WIDTH if self._has_size else _LEAST_WIDTH
        label_width = _width(self._label) * _LABEL_WIDTH
        longest = max(map(_width, self._details), default=0) * _DETAIL_WIDTH
        self.width = max(least, label_width + 2 * _PADDING, longest + 2 * _PADDING)
        self.height = _FIRST_LINE + _LINE * (len(self._details) + self._has_size)

    def svg(self, x: float, y: float, *, is_marked: bool) -> str:
        """Return the box with its centre at a point."""
        node, top = self._node, y - self.height / 2
        accent = ACCENTS[node.kind]
        facts = (node.operation, f"uid {node.uid}" if node.uid else "", _durable(node))
        hint = "\n".join(one_line(fact, 400) for fact in facts if fact)
        lines = [(detail, "") for detail in self._details]
        if self._has_size:
            lines.append(("", f' class="size" data-node="{node.number}"'))
        details = "".join(
            f'<text x="{x:.1f}" y="{top + 18 + _LINE * number:.1f}" text-anchor="middle" '
            f'font-size="10.5" opacity=".75"{attributes}>{escape(line)}</text>'
            for number, (line, attributes) in enumerate(lines, 1)
        )
        return (
            f"<g><title>{escape(hint)}</title>"
            f'<rect x="{x - self.width / 2:.1f}" y="{top:.1f}" width="{self.width:.1f}" '
            f'height="{self.height:g}" rx="6" fill="{accent}" fill-opacity=".13" '
            f'stroke="{accent}" stroke-width="{2.5 if is_marked else 1}"/>'
            f'<text x="{x:.1f}" y="{top + 18:.1f}" text-anchor="middle" font-size="12" '
            f'font-weight="600">{escape(self._label)}</text>{details}</g>'
        )


def _edges(layout: GraphLayout) -> str:
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
    """Return a curve from the bottom of the first box to the top of the last."""
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


@dataclass(frozen=True)
class GraphLayout:
    """Centres of nodes, and the path of each edge (parent, child).

    A path has x, top and bottom of each place that the edge goes through, one in each layer.
    Parallel edges, as of a stream joined with itself, are there once.
    """

    x: Mapping[int, float]
    y: Mapping[int, float]
    edges: Mapping[tuple[int, int], tuple[tuple[float, float, float], ...]]
    width: float
    height: float


@dataclass(frozen=True)
class _Place:
    """A node, or an edge where it passes a layer."""

    key: tuple[int, ...]
    width: float
    height: float


def lay_out(
    parents: Mapping[int, Sequence[int]],
    sizes: Mapping[int, tuple[float, float]],
    *,
    gap_x: float,
    gap_y: float,
) -> GraphLayout:
    """Return a layout of nodes with these widths and heights; *parents* has parents first."""
    level: dict[int, int] = {}
    for node, above in parents.items():
        level[node] = 1 + max((level[parent] for parent in above), default=-1)
    children: dict[int, list[int]] = {node: [] for node in parents}
    for node, above in parents.items():
        for parent in above:
            children[parent].append(node)
    for node, below in children.items():  # an input goes just above its first reader
        if below and not parents[node]:
            level[node] = min(level[child] for child in below) - 1
    layers: list[list[_Place]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    for node in parents:
        layers[level[node]].append(_Place((node,), *sizes[node]))
    paths = _paths(parents, level, layers)
    neighbours = _neighbours(paths.values())
    _order(layers, neighbours)
    x = _columns(layers, neighbours, gap_x)
    return _layout(parents, paths, layers, x, gap_y)


_Key = tuple[int, ...]


def _paths(
    parents: Mapping[int, Sequence[int]], level: Mapping[int, int], layers: list[list[_Place]]
) -> dict[tuple[int, int], list[_Key]]:
    """Return the places of each edge, and add those between its nodes to the layers."""
    paths: dict[tuple[int, int], list[_Key]] = {}
    for child, above in parents.items():
        for parent in dict.fromkeys(above):
            between = [(parent, child, number) for number in range(level[parent] + 1, level[child])]
            for key in between:
                layers[key[2]].append(_Place(key, 1.0, 0.0))
            paths[parent, child] = [(parent,), *between, (child,)]
    return paths


def _neighbours(paths: Iterable[list[_Key]]) -> dict[_Key, list[_Key]]:
    found: dict[_Key, list[_Key]] = {}
    for path in paths:
        for one, other in pairwise(path):
            found.setdefault(one, []).append(other)
            found.setdefault(other, []).append(one)
    return found


def _order(layers: list[list[_Place]], neighbours: Mapping[_Key, list[_Key]]) -> None:
    """Order each layer by the mean place of its neighbours, sweeping down and up."""
    for sweep in range(_SWEEPS):
        place = {
            spot.key: index / max(1, len(layer) - 1) if len(layer) > 1 else 0.5
            for layer in layers
            for index, spot in enumerate(layer)
        }
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            keys = {spot.key for spot in layer}
            wanted = {
                key: _mean([place[other] for other in neighbours.get(key, [])] or [place[key]])
                for key in keys
            }
            layer.sort(key=lambda spot: wanted[spot.key])
            for index, spot in enumerate(layer):
                place[spot.key] = index / (len(layer) - 1) if len(layer) > 1 else 0.5


def _columns(
    layers: list[list[_Place]], neighbours: Mapping[_Key, list[_Key]], gap: float
) -> dict[_Key, float]:
    """Return the x of each place: as near to its neighbours as the order of its layer allows."""
    x: dict[_Key, float] = {}
    for layer in layers:
        at = -(sum(spot.width for spot in layer) + gap * (len(layer) - 1)) / 2
        for spot in layer:
            x[spot.key] = at + spot.width / 2
            at += spot.width + gap
    for sweep in range(_SWEEPS):
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            wanted = [
                _mean([x[other] for other in neighbours.get(spot.key, [])] or [x[spot.key]])
                for spot in layer
            ]
            for spot, at in zip(layer, _spread(layer, wanted, gap), strict=True):
                x[spot.key] = at
    return x


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _spread(layer: list[_Place], wanted: list[float], gap: float) -> list[float]:
    """Return the places nearest to *wanted* that are in order and apart.

    Overlapping places move together: isotonic least squares of the wanted places minus the room
    that the places before them take.
    """
    room = [0.0]
    for one, other in pairwise(layer):
        room.append(room[-1] + (one.width + other.width) / 2 + gap)
    blocks: list[tuple[float, int]] = []  # sum of wanted places, and their number
    for at, before in zip(wanted, room, strict=True):
        blocks.append((at - before, 1))
        while len(blocks) > 1 and blocks[-2][0] / blocks[-2][1] > blocks[-1][0] / blocks[-1][1]:
            (one_sum, one_count), (other_sum, other_count) = blocks[-2:]
            blocks[-2:] = [(one_sum + other_sum, one_count + other_count)]
    fitted = [total / count for total, count in blocks for _ in range(count)]
    return [at + before for at, before in zip(fitted, room, strict=True)]


def _layout(
    parents: Mapping[int, Sequence[int]],
    paths: Mapping[tuple[int, int], list[_Key]],
    layers: list[list[_Place]],
    x: Mapping[_Key, float],
    gap_y: float,
) -> GraphLayout:
    left = min((x[spot.key] - spot.width / 2 for layer in layers for spot in layer), default=0.0)
    right = max((x[spot.key] + spot.width / 2 for layer in layers for spot in layer), default=0.0)
    y: dict[_Key, float] = {}
    ends: dict[_Key, tuple[float, float]] = {}
    top = 0.0
    for layer in layers:
        height = max(spot.height for spot in layer)
        for spot in layer:
            y[spot.key] = top + height / 2
            half = (spot.height or height) / 2
            ends[spot.key] = y[spot.key] - half, y[spot.key] + half
        top += height + gap_y
    return GraphLayout(
        {node: x[node,] - left for node in parents},
        {node: y[node,] for node in parents},
        {edge: tuple((x[key] - left, *ends[key]) for key in path) for edge, path in paths.items()},
        right - left,
        max(0.0, top - gap_y),
    )
