"""Where the nodes of a graph stand: in layers, parents above their children, with few crossings.

The layers are those of Sugiyama: each node stands one below the lowest of its parents, an edge over
several layers gets a place of its own in each, and a layer is ordered by where its neighbours are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

_SWEEPS = 12


@dataclass(frozen=True)
class Layout:
    """Centres of nodes, and the way of each edge (parent, child).

    A way has an x for each layer that the edge goes through, with the upper and the lower end of
    what it passes there. An edge that comes twice, as of a stream that is joined with itself, is
    there once.
    """

    x: Mapping[int, float]
    y: Mapping[int, float]
    edges: Mapping[tuple[int, int], tuple[tuple[float, float, float], ...]]
    width: float
    height: float


@dataclass(frozen=True)
class _Place:
    """A node, or where an edge passes a layer; its key is unique."""

    key: tuple[int, ...]
    width: float
    height: float


def lay_out(
    parents: Mapping[int, Sequence[int]],
    sizes: Mapping[int, tuple[float, float]],
    *,
    gap_x: float,
    gap_y: float,
) -> Layout:
    """Return where nodes of these widths and heights stand.

    *parents* has all nodes, each after its parents.
    """
    level: dict[int, int] = {}
    for node, above in parents.items():
        level[node] = 1 + max((level[parent] for parent in above), default=-1)
    children: dict[int, list[int]] = {node: [] for node in parents}
    for node, above in parents.items():
        for parent in above:
            children[parent].append(node)
    for node, below in children.items():  # an input stands just above who reads it
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
    """Return the places that each edge goes through, and put those that are no nodes in layers."""
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
    """Order each layer by the mean place of its neighbours, down and up again."""
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
    """Return the x of each place: as near to its neighbours as the order of its layer lets it."""
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
    """Return places as near to the wanted ones as can be, in order and apart.

    Places that would overlap move together: a least squares fit that never falls, of what is
    wanted less the room that those before take.
    """
    room = [0.0]
    for one, other in pairwise(layer):
        room.append(room[-1] + (one.width + other.width) / 2 + gap)
    blocks: list[tuple[float, int]] = []  # sum of what is wanted, and of how many
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
) -> Layout:
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
    return Layout(
        {node: x[node,] - left for node in parents},
        {node: y[node,] for node in parents},
        {edge: tuple((x[key] - left, *ends[key]) for key in path) for edge, path in paths.items()},
        right - left,
        max(0.0, top - gap_y),
    )
