"""Search: the fastest plan that fits into the devices."""

from collections.abc import Callable, Sequence
from dataclasses import replace

from training.config import ConfigError, TrainConfig
from training.config.fixed_plan import fixed_plan
from training.config.plan import Plan
from training.config.words import format_s, say_bytes, say_names, summarise
from training.plan import cost
from training.plan.candidates import Ways, list_plans
from training.plan.hardware import Hardware
from training.plan.memory import peak_bytes, saved_copy_bytes
from training.plan.placed import judge_placed
from training.plan.table import Candidate, PlanTable
from training.plan.workload import Workload

SIMPLER_IF_WITHIN = 1.05  # a simpler plan this close to the fastest wins: predictions are not more accurate
BEST_TIMED = 3
_MOST_LISTED = 24  # most candidates in a table

TimePlans = Callable[[Sequence[Plan]], Sequence[float] | None]
"""Returns the seconds of a real step of each plan, the fastest of a few interleaved ones; None if they failed."""


class DoesNotFit(ConfigError):
    """No plan fits into the devices; ``table`` lists the candidates."""

    def __init__(self, table: PlanTable) -> None:
        self.table = table
        super().__init__(f"{table.why}\n{table}")


def search(
    workload: Workload,
    config: TrainConfig,
    hardware: Hardware,
    *,
    time_plans: TimePlans | None = None,
    has_bf16: bool = False,
    fewer: bool = True,
) -> PlanTable:
    """Return the table of all plans that ``config`` allows on ``hardware``, with one chosen.

    Raises:
        CannotEstimate: the model cannot be traced without data.
        DoesNotFit: no plan fits into memory.
    """
    judged = _judge_all(workload, config, hardware, has_bf16, widened=False)
    if not judged:
        fixed_plan(config, hardware.count)  # raises: settings contradict the devices
    widened = not any(each.fits for each in judged)
    if widened and config.strategy == "auto":
        judged = _judge_all(workload, config, hardware, has_bf16, widened=True)
    fitting = sorted((each for each in judged if each.fits), key=lambda each: each.sample_s)
    if not fitting:
        raise DoesNotFit(_make_failed_table(judged, hardware))
    if time_plans is not None:
        fitting = _time_best(fitting, time_plans)
    chosen = _choose(judged, fitting)
    others = _give_reasons(judged, fitting, chosen, hardware)
    return PlanTable(
        chosen=chosen,
        why=_explain_choice(chosen, others, hardware, widened) + _mention_unused(workload, chosen.plan),
        candidates=[chosen, *others][:_MOST_LISTED],
        devices=hardware.count,
        device_name=hardware.name,
        usable_bytes=hardware.usable_bytes,
        fewer=_plan_fewer(workload, config, hardware, has_bf16) if fewer else {},
    )


def _judge_all(
    workload: Workload, config: TrainConfig, hardware: Hardware, has_bf16: bool, *, widened: bool
) -> list[Candidate]:
    asked = config.strategy in ("auto", "placed")
    ways = workload.ways(hardware.count) if asked else Ways()
    plans = list_plans(
        config,
        hardware.count,
        has_bf16=has_bf16,
        on_gpu=hardware.kind == "cuda",
        most_batch=max(workload.dataset_length // hardware.count, 1),
        ways=ways,
        widened=widened,
    )
    judged = [_judge(workload, plan, hardware, config) for plan in plans]
    return [each for each in judged if each is not None]


def _judge(workload: Workload, plan: Plan, hardware: Hardware, config: TrainConfig) -> Candidate | None:
    """Predict a plan; None if its layers cannot be placed."""
    if plan.strategy == "placed":
        return judge_placed(workload, plan, hardware, config.placement)
    footprint = workload.footprint(plan.precision, plan.activation_checkpointing)
    if footprint.unused and plan.strategy in ("ddp", "zero1"):
        plan = replace(plan, find_unused_parameters=True)
    needed = peak_bytes(footprint, plan, workload.optimizer) + hardware.workspace_bytes
    if hardware.kind == "cpu":  # the memory of the host is the device's own
        needed += saved_copy_bytes(footprint, plan, workload.optimizer)
    return Candidate(
        plan=plan,
        memory_bytes=needed,
        step_s=cost.step_s(footprint, plan, workload.optimizer, hardware),
        fits=needed <= hardware.usable_bytes,
    )


def _time_best(fitting: Sequence[Candidate], time_plans: TimePlans) -> list[Candidate]:
    """Time real steps of the best few; return them by measured time, before the others."""
    best = fitting[:BEST_TIMED]
    times = time_plans([each.plan for each in best])
    if times is None:
        return list(fitting)
    timed = [replace(each, measured_s=step_s) for each, step_s in zip(best, times, strict=True)]
    return sorted(timed, key=lambda each: each.sample_s) + list(fitting[BEST_TIMED:])


def _choose(judged: Sequence[Candidate], fitting: Sequence[Candidate]) -> Candidate:
    """Choose the fastest plan, or a simpler one that is nearly as fast; measured times decide strictly."""
    best = fitting[0]
    if best.measured_s is not None:
        return best
    order = {each.plan: place for place, each in enumerate(judged)}
    near = [each for each in fitting if each.sample_s <= SIMPLER_IF_WITHIN * best.sample_s]
    return min(near, key=lambda each: order[each.plan])


def _give_reasons(
    judged: Sequence[Candidate], fitting: Sequence[Candidate], chosen: Candidate, hardware: Hardware
) -> list[Candidate]:
    """Give all other candidates a reason: slower ones first, then those that are too large."""
    slower = [replace(each, reason=_compare_speed(each, chosen)) for each in fitting if each is not chosen]
    large = sorted((each for each in judged if not each.fits), key=lambda each: each.memory_bytes)
    return slower + [
        replace(
            each,
            reason=f"needs {say_bytes(each.memory_bytes)}, usable are {say_bytes(hardware.usable_bytes)}",
        )
        for each in large
    ]


def _compare_speed(each: Candidate, chosen: Candidate) -> str:
    percent = 100 * (each.sample_s / chosen.sample_s - 1)
    if percent < 1:
        return "no faster" if each.memory_bytes <= chosen.memory_bytes else "no faster, and needs more memory"
    return f"{percent:.0f} % slower for each sample"


def _explain_choice(chosen: Candidate, others: Sequence[Candidate], hardware: Hardware, widened: bool) -> str:
    smallest_failure = next((each for each in others if not each.fits), None)
    measured = f", measured {format_s(chosen.measured_s)}" if chosen.measured_s else ""
    text = f"{summarise(chosen.plan)}: predicted {format_s(chosen.step_s)}/step{measured}"
    if widened and smallest_failure:
        largest = max((each for each in others if not each.fits), key=lambda each: each.memory_bytes)
        return (
            f"{text}; {summarise(largest.plan)} needs {say_bytes(largest.memory_bytes)} "
            f"> {say_bytes(hardware.usable_bytes)}."
        )
    return f"{text}; the fastest of {1 + sum(each.fits for each in others)} that fit."


def _mention_unused(workload: Workload, plan: Plan) -> str:
    if not plan.find_unused_parameters:
        return ""
    names = workload.footprint(plan.precision, plan.activation_checkpointing).unused
    return f" {say_names(names)} get no gradient, so find_unused_parameters is on."


def _make_failed_table(judged: Sequence[Candidate], hardware: Hardware) -> PlanTable:
    by_memory = sorted(judged, key=lambda each: each.memory_bytes)
    smallest = by_memory[0]
    room = say_bytes(hardware.usable_bytes)
    return PlanTable(
        chosen=None,
        why=(
            f"No plan fits the model into {hardware.count} x {say_bytes(hardware.free_bytes)}: the smallest, "
            f"{summarise(smallest.plan)}, needs {say_bytes(smallest.memory_bytes)} on each device, and {room} are "
            "usable. Use more or larger devices, or a smaller model."
        ),
        candidates=[
            replace(each, reason=f"needs {say_bytes(each.memory_bytes)}, usable are {room}")
            for each in by_memory[:_MOST_LISTED]
        ],
        devices=hardware.count,
        device_name=hardware.name,
        usable_bytes=hardware.usable_bytes,
    )


def _plan_fewer(
    workload: Workload, config: TrainConfig, hardware: Hardware, has_bf16: bool
) -> dict[int, Plan]:
    """Plan for one and two devices fewer, so that losing a device needs no search (Oobleck, SOSP 2023)."""
    plans = {}
    for count in (hardware.count - 1, hardware.count - 2):
        if count < 1:
            continue
        try:
            table = search(workload, config, replace(hardware, count=count), has_bf16=has_bf16, fewer=False)
        except DoesNotFit:
            continue
        if table.chosen:
            plans[count] = table.chosen.plan
    return plans
