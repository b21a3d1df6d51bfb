"""The layout of graphs: nodes are apart, below their parents, and chains are straight."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from dstreams.monitoring.graph_drawing import GraphLayout, lay_out

WIDTH, HEIGHT, GAP_X, GAP_Y = 100.0, 40.0, 20.0, 30.0


def laid_out(parents: dict[int, tuple[int, ...]]) -> GraphLayout:
    sizes = {node: (WIDTH + node, HEIGHT + node % 3) for node in parents}
    return lay_out(parents, sizes, gap_x=GAP_X, gap_y=GAP_Y)


@st.composite
def graphs(draw: st.DrawFn) -> dict[int, tuple[int, ...]]:
    size = draw(st.integers(0, 14))
    return {
        node: tuple(draw(st.lists(st.integers(0, node - 1), max_size=3))) if node else ()
        for node in range(size)
    }


@given(graphs())
def test_nodes_are_apart_and_below_their_parents(parents: dict[int, tuple[int, ...]]) -> None:
    """In any graph, nodes do not overlap, all are inside, and edges lead downwards."""
    layout = laid_out(parents)
    for one, other in combinations(parents, 2):
        if layout.y[one] == layout.y[other]:
            apart = abs(layout.x[one] - layout.x[other])
            assert apart >= WIDTH + (one + other) / 2 + GAP_X - 1e-6
        else:
            assert abs(layout.y[one] - layout.y[other]) >= HEIGHT + GAP_Y - 1e-6
    for node in parents:
        assert layout.x[node] - (WIDTH + node) / 2 >= -1e-6
        assert layout.x[node] + (WIDTH + node) / 2 <= layout.width + 1e-6
        assert layout.y[node] <= layout.height
    edges = {(parent, node) for node, above in parents.items() for parent in above}
    assert set(layout.edges) == edges
    for (parent, node), way in layout.edges.items():
        assert (way[0][0], way[-1][0]) == (layout.x[parent], layout.x[node])
        ends = [end for _, top, bottom in way for end in (top, bottom)]
        assert ends == sorted(ends)


def test_a_chain_is_a_straight_line() -> None:
    """Consecutive steps of any width have the same centre."""
    layout = laid_out({node: (node - 1,) if node else () for node in range(9)})
    assert max(layout.x.values()) - min(layout.x.values()) < 0.5


def test_an_input_stands_just_above_who_reads_it() -> None:
    """The one that is joined late is not at the top."""
    layout = laid_out({0: (), 1: (0,), 2: (1,), 3: (), 4: (2, 3)})
    assert layout.y[3] == layout.y[2]


def test_siblings_do_not_cross() -> None:
    """Two chains from one input keep their sides."""
    layout = laid_out({0: (), 1: (0,), 2: (0,), 3: (2,), 4: (1,)})
    assert (layout.x[1] < layout.x[2]) == (layout.x[4] < layout.x[3])
