"""Predicts plans whose layers are placed one by one, from the traced layers of the model."""

from dataclasses import replace

from training.config.plan import PlacementName, Plan
from training.layers.assignment import Assignment, Speed
from training.plan import cost
from training.plan.hardware import Hardware
from training.plan.memory import saved_copy_bytes
from training.plan.table import Candidate
from training.plan.workload import Workload

_UNLIMITED_BYTES = 1e18


def judge_placed(
    workload: Workload, plan: Plan, hardware: Hardware, method: PlacementName
) -> Candidate | None:
    """Place the layers within the devices' memory and predict the step; None if the model has no layers to place."""
    footprint = workload.footprint(plan.precision, "none")
    fixed_bytes = footprint.sample_bytes * plan.batch_size + hardware.workspace_bytes
    if hardware.kind == "cpu":  # as for other plans: the checkpointer's copy is in the same memory
        fixed_bytes += saved_copy_bytes(footprint, plan, workload.optimizer)
    speed = speed_of(plan, hardware)
    room_bytes = hardware.usable_bytes - fixed_bytes
    found = workload.place(plan, room_bytes, speed, method)
    fits = found is not None
    found = found or workload.place(plan, _UNLIMITED_BYTES, speed, "m-topo")
    if found is None:
        return None
    return Candidate(
        plan=replace(plan, layer_ranks=found.ranks, placement=found.method),
        memory_bytes=max(found.used_bytes) + fixed_bytes,
        step_s=_step_s(workload, plan, hardware, found),
        fits=fits,
    )


def speed_of(plan: Plan, hardware: Hardware) -> Speed:
    rates = hardware.rates
    return Speed(
        flops=rates.flops[plan.precision],
        memory_bandwidth=rates.memory_bandwidth,
        operation_s=rates.operation_s,
        link_bandwidth=rates.link_bandwidth,
        link_latency_s=rates.link_latency_s + cost.waking_s(hardware),
        sharing=hardware.sharing,
    )


def _step_s(workload: Workload, plan: Plan, hardware: Hardware, found: Assignment) -> float:
    footprint = workload.footprint(plan.precision, "none")
    passes_s = found.step_s * plan.gradient_accumulation_steps
    return passes_s + cost.after_passes_s(footprint, plan, workload.optimizer, hardware)
