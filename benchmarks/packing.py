"""How full a cluster gets when requests only arrive, in the manner of FGD (ATC'23, figures 7 and 9).

The same experiment as ``benchmarks/data/tools/packing_experiment.py``, with Berth's own score: pods of the
openb table, each once and then drawn again, until they ask for 130 % of all GPUs; nothing ever leaves.
"""

import random
import statistics
from collections import Counter

from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.simulator.schedule import tool
from orchestrator.scheduler.core.fragmentation import Ask, lost_milli, placement_score

TRACES_AT = ROOT / "benchmarks" / "data" / "traces"
SEEDS = (42, 43, 44)
MARKS = (100, 130)
FIGURES = (
    Figure("openb_alloc_100", "%", "GPUs allocated when 100 % have arrived", target=95.0, at_least=True),
    Figure("openb_alloc_130", "%", "GPUs allocated when 130 % have arrived", target=95.2, at_least=True),
    *(
        Figure(f"openb_alloc_{mark}_{policy}", "%", "a baseline of the independent tool")
        for policy in ("random", "best", "fgd")
        for mark in MARKS
    ),
)

Node = tuple[int, int, tuple[int, ...]]  # free CPU, free memory, free thousandths of each GPU, ascending
Pod = tuple[int, int, int, int]  # CPU, memory, GPUs, thousandths of each


def measure() -> Outcome:
    outcome = Outcome()
    experiment = tool("packing_experiment")
    types = experiment.read(str(TRACES_AT / "openb_pod_types.csv"))
    nodes = experiment.read(str(TRACES_AT / "openb_gpu_nodes.csv"))
    ours = [_pack(types, nodes, seed) for seed in SEEDS]
    for mark in MARKS:
        outcome.figures[f"openb_alloc_{mark}"] = statistics.fmean(run[mark] for run in ours)
        outcome.details[f"openb_alloc_{mark}"] = [round(run[mark], 2) for run in ours]
    for policy in ("random", "best", "fgd"):
        theirs = experiment.run(types, nodes, policy, SEEDS[0], 1.3, MARKS)
        for mark in MARKS:
            outcome.figures[f"openb_alloc_{mark}_{policy}"] = theirs[mark]
    return outcome


def _pack(types: list[dict[str, int]], nodes: list[dict[str, int]], seed: int) -> dict[int, float]:
    """Percent of all GPUs that are allocated at each mark."""
    order = random.Random(seed)  # noqa: S311 -- the same draws as the independent tool, not a secret
    pods: list[Pod] = [
        (each["cpu_milli"], each["memory_mib"], each["num_gpu"], each["gpu_milli"])
        for each in types
        for _ in range(each["count"])
    ]
    order.shuffle(pods)
    cluster = _Cluster(nodes, pods)
    arrived = used = 0.0
    allocated: dict[int, float] = {}
    number = 0
    while arrived < MARKS[-1] / 100 * cluster.gpus:
        pod = pods[number] if number < len(pods) else order.choice(pods)
        number += 1
        asked = pod[2] * (pod[3] if pod[2] == 1 else 1000) / 1000
        arrived += asked
        used += asked if cluster.place(pod) else 0.0
        for mark in MARKS:
            if mark not in allocated and arrived >= mark / 100 * cluster.gpus:
                allocated[mark] = 100 * used / cluster.gpus
    return allocated


class _Cluster:
    """Equal nodes are kept once, with how many there are."""

    def __init__(self, nodes: list[dict[str, int]], pods: list[Pod]) -> None:
        self.nodes: Counter[Node] = Counter()
        for each in nodes:
            node = (each["cpu_milli"], each["memory_mib"], (1000,) * each["gpus"])
            self.nodes[node] += each["count"]
        self.gpus = sum(len(node[2]) * count for node, count in self.nodes.items())
        self.most_cpu = max(node[0] for node in self.nodes)
        self.most_milli = max(sum(node[2]) for node in self.nodes)
        seen = Counter((pod[0], pod[2], pod[3]) for pod in pods)
        self.mix = [Ask(gpus, milli, count / len(pods), cpu) for (cpu, gpus, milli), count in seen.items()]
        self.scored: dict[tuple[Node, Pod], list[tuple[float, Node]]] = {}
        self.lost: dict[Node, float] = {}

    def place(self, pod: Pod) -> bool:
        best: tuple[float, Node, Node] | None = None
        for node in self.nodes:
            for score, after in self._options(node, pod):
                if best is None or (score, node, after) < best:
                    best = (score, node, after)
        if best is None:
            return False
        _, node, after = best
        self.nodes[node] -= 1
        if not self.nodes[node]:
            del self.nodes[node]
        self.nodes[after] += 1
        return True

    def _options(self, node: Node, pod: Pod) -> list[tuple[float, Node]]:
        """The states that a node can go to when it takes the pod, each with its score."""
        key = (node, pod)
        if key not in self.scored:
            self.scored[key] = [(self._score(node, after), after) for after in _after(node, pod)]
        return self.scored[key]

    def _score(self, node: Node, after: Node) -> float:
        rest = (after[0] / self.most_cpu + sum(after[2]) / self.most_milli) / 2
        return placement_score(self._lost(after) - self._lost(node), rest)

    def _lost(self, node: Node) -> float:
        if node not in self.lost:
            self.lost[node] = lost_milli(node[2], self.mix, cpu_milli=node[0])
        return self.lost[node]


def _after(node: Node, pod: Pod) -> list[Node]:
    cpu, memory, free = node
    pod_cpu, pod_memory, gpus, milli = pod
    if pod_cpu > cpu or pod_memory > memory:
        return []
    left = (cpu - pod_cpu, memory - pod_memory)
    if gpus == 0:
        return [(*left, free)]
    if gpus == 1 and milli < 1000:
        rests = []
        for amount in sorted({amount for amount in free if amount >= milli}):
            rest = list(free)
            rest[rest.index(amount)] -= milli
            rests.append((*left, tuple(sorted(rest))))
        return rests
    if sum(amount == 1000 for amount in free) < gpus:
        return []
    return [(*left, tuple(sorted((0,) * gpus + free[: len(free) - gpus])))]
