"""Favourite children of m-SCT: the layer that should follow on the same device (Hanen and Munier, 1995)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from training.layers.placement_problem import Problem

_NEAR_ZERO = 0.1  # as in Baechi: smaller results of the relaxed program count as zero
Edge = tuple[int, int]


def favourite_children(problem: Problem) -> list[int]:
    """Return for each layer the one that should follow it on its device, or -1.

    The linear program minimises the makespan on unlimited devices; x of an edge is 0 if its ends share a
    device, and each layer has at most one such edge on either side.
    """
    edges = [(source, number) for number, inputs in enumerate(problem.inputs) for source in inputs]
    apart = _solve(_write_program(problem, edges), len(problem.bytes), len(edges)) if edges else []
    favourite, taken = [-1] * len(problem.bytes), set[int]()
    for x, place in sorted(zip(apart, range(len(edges)), strict=False)):
        source, target = edges[place]
        if x < _NEAR_ZERO and favourite[source] < 0 and target not in taken:
            favourite[source] = target
            taken.add(target)
    return favourite


@dataclass(slots=True)
class _LinearProgram:
    """Rows of ``sum(value * column) <= limit``; columns are the layers' start times, the edges' x and the makespan."""

    rows: list[int] = field(default_factory=list)
    columns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    limits: list[float] = field(default_factory=list)

    def limit(self, terms: Sequence[tuple[int, float]], at_most: float) -> None:
        for column, value in terms:
            self.rows.append(len(self.limits))
            self.columns.append(column)
            self.values.append(value)
        self.limits.append(at_most)


def _write_program(problem: Problem, edges: Sequence[Edge]) -> _LinearProgram:
    program, layers = _LinearProgram(), len(problem.bytes)
    for place, (source, target) in enumerate(edges):
        apart = (layers + place, problem.transfer_s[source])
        program.limit([(source, 1), (target, -1), apart], -problem.compute_s[source])
    for side in (0, 1):
        touching: list[list[int]] = [[] for _ in range(layers)]
        for place, edge in enumerate(edges):
            touching[edge[side]].append(layers + place)
        for places in touching:
            if len(places) > 1:
                program.limit([(column, -1) for column in places], 1 - len(places))
    makespan = layers + len(edges)
    for number in range(layers):
        if not problem.outputs[number]:
            program.limit([(number, 1), (makespan, -1)], -problem.compute_s[number])
    return program


def _solve(program: _LinearProgram, layers: int, edges: int) -> list[float]:
    """Return x of each edge; empty if the solver found no solution."""
    import numpy as np
    from scipy.optimize import linprog
    from scipy.sparse import coo_array

    makespan = layers + edges
    shape = (len(program.limits), makespan + 1)
    answer = linprog(
        np.eye(1, makespan + 1, makespan)[0],
        A_ub=coo_array((program.values, (program.rows, program.columns)), shape=shape).tocsr(),
        b_ub=program.limits,
        bounds=[(0, None)] * layers + [(0, 1)] * edges + [(0, None)],
        method="highs",
    )
    return [] if answer.x is None else list(answer.x[layers:makespan])
