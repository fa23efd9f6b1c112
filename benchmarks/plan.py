"""The planner: stages of a pipeline, places of layers, and how far the chosen plan is from the best."""

import json
import random
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.exact_placement import least_makespan_s
from benchmarks.figures import ROOT, Figure, Outcome
from benchmarks.layer_graphs import long_graph, random_graph
from benchmarks.mixed import measure_limits, measure_mixed
from benchmarks.models import SMALL_MODELS, Case, Same
from benchmarks.regret import StepS, compare
from benchmarks.rivals import bare_torchrun
from training.config import TrainConfig
from training.config.plan import Plan
from training.layers.layer_graph import LayerGraph, read_profile
from training.layers.partition import describe_partitions, partition_asynchronous
from training.layers.placement import Links, NoPlacement, layer_bytes, place
from training.layers.stage_search import Asynchronous
from training.plan.candidates import list_plans
from training.plan.choose import make_table
from training.plan.rates import CACHE_VARIABLE
from training.plan.training import Training
from training.plan.trial import Trial, measure_steps_s

FIGURES = (
    Figure(
        "partition_vgg16_x",
        "x",
        "throughput of four devices over one, PipeDream's model",
        3.957,
        at_least=True,
    ),
    Figure("partition_gnmt_x", "x", "the same of GNMT", 3.457, at_least=True),
    Figure("partition_ms_max", "ms", "slowest search: four profiles, 2, 4 and 8 devices", 50),
    Figure("placer_worst_over_optimum", "", "makespan over the best there is, worst of 200 graphs", 1.05),
    Figure("placer_large_s", "s", "1,251 layers on 8 devices", 1),
    Figure("plan_regret_max", "", "measured step of the chosen plan over the best candidate's", 1.05),
    Figure("plan_regret_two_ranks_max", "", "the same with two gloo ranks", 1.05),
    Figure("mixed_regret_max", "", "the same with four gloo ranks, over all mixes of dp, tp and pp", 1.10),
    Figure(
        "placed_losses_equal",
        "",
        "a model placed by m-ETF has the losses of one device to 1e-6",
        1,
        at_least=True,
    ),
    Figure("oom_trials_max", "", "attempts until a planned step runs on a simulated device", 4),
    Figure("mixed_regret_noise", "", "the same of a plan and its own copy with four gloo ranks"),
    Figure("plan_regret_noise", "", "the same of a plan and its own copy, above 1; the worst"),
    Figure("plan_regret_two_ranks_noise", "", "the same with two gloo ranks"),
)
PROFILES = Path(__file__).parent / "data" / "profiles"
LINK = 16e9  # bytes a second
MEMORY = 16e9  # bytes of a device
GRAPHS = 200
EFFECTIVE_BATCH = 16
SMALLEST_BATCH = 4  # smaller micro-batches only take longer, and measuring them longest


def measure() -> Outcome:
    outcome = Outcome()
    _measure_partition(outcome)
    _measure_placement(outcome)
    _measure_regret(outcome)
    _measure_regret_of_two(outcome)
    measure_limits(outcome)
    measure_mixed(outcome)
    return outcome


def _measure_partition(outcome: Outcome) -> None:
    took = {}
    for name in ("vgg16", "gnmt", "resnet50", "inception_v3"):
        graph = read_profile(PROFILES / f"{name}.txt")
        for devices in (2, 4, 8):
            took[f"{name}_{devices}"] = min(_partition_ms(graph, devices) for _ in range(3))
    for name in ("vgg16", "gnmt"):
        answer = describe_partitions(read_profile(PROFILES / f"{name}.txt"), 4, LINK, MEMORY, 32)
        outcome.figures[f"partition_{name}_x"] = answer["predicted_throughput_x"]
        outcome.details[name] = {
            "over_data_parallel_x": answer["over_data_parallel_x"],
            "synchronous_x": answer["synchronous"]["predicted_throughput_x"],
        }
    outcome.figures["partition_ms_max"] = max(took.values())
    outcome.details["partition_ms"] = {name: round(each, 2) for name, each in took.items()}


def _partition_ms(graph: LayerGraph, devices: int) -> float:
    began_s = time.perf_counter()
    partition_asynchronous(graph, devices, Asynchronous(LINK, MEMORY))
    return (time.perf_counter() - began_s) * 1000


def _measure_placement(outcome: Outcome) -> None:
    ratios = []
    for graph, memory_bytes, links in _small_problems():
        found_s = place(graph, memory_bytes, links).makespan_s
        ratios.append(found_s / least_makespan_s(graph, memory_bytes, links, known_s=found_s))
    outcome.figures["placer_worst_over_optimum"] = max(ratios)
    outcome.details["placer_graphs"] = len(ratios)
    graph = long_graph(1251, seed=3)
    room = [sum(map(layer_bytes, graph.layers)) / 6] * 8
    began_s = time.perf_counter()
    place(graph, room, Links(LINK))
    outcome.figures["placer_large_s"] = time.perf_counter() - began_s


def _small_problems() -> Iterator[tuple[LayerGraph, list[float], Links]]:
    """Graphs of at most nine layers on two or three devices, tight and roomy, with cheap and dear links."""
    seed = found = 0
    while found < GRAPHS:
        dice = random.Random(seed)  # noqa: S311 -- a workload, not a secret
        graph = random_graph(seed, dice.randint(3, 9), edge_chance=dice.choice((0.2, 0.35, 0.6)))
        devices = dice.choice((2, 3))
        sizes = [layer_bytes(layer) for layer in graph.layers]
        memory_bytes = [max(*sizes, sum(sizes) / devices * dice.choice((1.2, 1.6, 3)))] * devices
        links = Links(dice.choice((2.0, 8.0, 40.0)), dice.choice((0, 0.1)))
        seed += 1
        try:
            place(graph, memory_bytes, links)
        except NoPlacement:
            continue  # too tight for any placement
        found += 1
        yield graph, memory_bytes, links


def _measure_regret(outcome: Outcome) -> None:
    """The planner chooses with its few trial steps; then all candidates step in turns."""
    torch.manual_seed(0)
    torch.set_num_threads(1)  # several wait for each other wherever anything else runs
    told = {case.name: _regret(case) for case in SMALL_MODELS}
    _note_regret(outcome, told, "plan_regret")


def _note_regret(outcome: Outcome, told: dict[str, dict[str, Any]], name: str) -> None:
    outcome.figures[f"{name}_max"] = max(each["regret"] for each in told.values())
    outcome.figures[f"{name}_noise"] = max(each["noise"] for each in told.values())
    outcome.details[name] = told


def _regret(case: Case) -> dict[str, Any]:
    config = TrainConfig(batch_size=EFFECTIVE_BATCH, activation_checkpointing="auto")
    training = Training(config, case.make(), Same(case.sample), torch.device("cpu"), case.loss_fn)
    table = make_table(training, 1, time_plans=lambda plans: measure_steps_s(training, plans))
    assert table.chosen is not None  # noqa: S101 -- the host's memory holds these models
    open_plans = list_plans(config, 1, has_bf16=False, on_gpu=False, most_batch=4096, widened=True)
    plans = [plan for plan in open_plans if plan.batch_size >= SMALLEST_BATCH]
    chosen = table.chosen.plan
    steps = {plan: _stepping(training, plan) for plan in plans}
    found = compare(steps, chosen, lambda: _stepping(training, chosen))
    return found.to_json({each.plan: each.step_s for each in table.candidates}, chosen)


def _stepping(training: Training, plan: Plan) -> StepS:
    """By the thread's own clock: what else runs on this machine counts little."""
    trial = Trial(training, plan)

    def step_s() -> float:
        began_s = time.thread_time()
        trial.step_s()
        return (time.thread_time() - began_s) / plan.samples_per_step

    return step_s


def _measure_regret_of_two(outcome: Outcome) -> None:
    """Two ranks measure their link, plan, and step through all candidates together."""
    with tempfile.TemporaryDirectory() as name:
        answer, output = Path(name) / "answer.json", Path(name) / "output.txt"
        variables = {"PYTHONPATH": str(ROOT), CACHE_VARIABLE: str(Path(name) / "rates.json")}
        script = [str(ROOT / "benchmarks" / "scripts" / "two_ranks.py"), str(answer)]
        if bare_torchrun(2, script, output, variables).wait():
            raise RuntimeError(f"two ranks could not be measured:\n{output.read_text()[-2000:]}")
        told = json.loads(answer.read_text())
    _note_regret(outcome, told, "plan_regret_two_ranks")
