"""Predicted time of a step: the longer of computation and exchange, the pipeline's bubble, and offload."""

from training.config.plan import Plan
from training.plan.hardware import Hardware
from training.plan.memory import Footprint, OptimizerCost

# Fitted to the measured order of candidates on two gloo ranks (benchmarks/scripts/two_ranks.py); the time of
# a context switch depends on the machine's load.
_WAKING_S = 1e-3
_BACKWARD = 2 / 3  # of a micro-batch: the part that overlaps with the exchange of gradients


def step_s(footprint: Footprint, plan: Plan, optimizer: OptimizerCost, hardware: Hardware) -> float:
    """Predict the seconds of one optimizer step."""
    micro_s = micro_batch_s(footprint, plan, hardware)
    exchange_s, per_micro_batch = _exchange_s(footprint, plan, hardware)
    micro_batches = plan.gradient_accumulation_steps
    if hardware.sharing > 1:  # exchanging ranks take the cores from computing ones
        computing_s = micro_batches * micro_s + (micro_batches if per_micro_batch else 1) * exchange_s
    elif per_micro_batch:
        computing_s = micro_batches * max(micro_s, exchange_s)
    else:
        last_s = max(micro_s, (1 - _BACKWARD) * micro_s + exchange_s)
        computing_s = (micro_batches - 1) * micro_s + last_s
    return (
        computing_s + _update_s(footprint, plan, optimizer, hardware) + _offload_s(footprint, plan, hardware)
    )


def after_passes_s(footprint: Footprint, plan: Plan, optimizer: OptimizerCost, hardware: Hardware) -> float:
    """Predict the seconds of the exchange between replicas and of the update, once a step."""
    return _exchange_s(footprint, plan, hardware)[0] + _update_s(footprint, plan, optimizer, hardware)


def micro_batch_s(footprint: Footprint, plan: Plan, hardware: Hardware) -> float:
    """Predict the seconds of one micro-batch, forward and backward, including the pipeline's bubble."""
    rates, work = hardware.rates, footprint.work
    flops_s = work.flops * plan.batch_size / rates.flops[plan.precision]
    moving_s = (work.moved_fixed_bytes + work.moved_bytes * plan.batch_size) / rates.memory_bandwidth
    busy_s = (flops_s + moving_s) * hardware.sharing / (plan.pp * plan.tp)
    parts = plan.pipeline_micro_batches if plan.pp > 1 else 1
    overhead_s = work.operations * rates.operation_s * parts / plan.pp
    turns = (parts + plan.pp - 1) / parts
    return (busy_s + overhead_s) * turns + _crossing_s(footprint, plan, hardware)


def _crossing_s(footprint: Footprint, plan: Plan, hardware: Hardware) -> float:
    """Predict the seconds of sending activations between ranks in each micro-batch."""
    blocks = max(len(footprint.block_kept), 1)
    sent_bytes = sum(by_sample for _, by_sample in footprint.block_kept) / blocks * plan.batch_size / 8
    message_s = hardware.rates.link_latency_s + waking_s(hardware)
    travel_s = sent_bytes / hardware.rates.link_bandwidth
    crossing_s = 4 * blocks * (travel_s + message_s) if plan.tp > 1 else 0.0
    if plan.pp > 1:  # each part is sent on and its gradient back, while the next stage waits
        parts = plan.pipeline_micro_batches
        crossing_s += 2 * (parts + plan.pp - 1) * (travel_s / parts + message_s)
    return crossing_s


def _exchange_s(footprint: Footprint, plan: Plan, hardware: Hardware) -> tuple[float, bool]:
    """Predict the seconds of an exchange of gradients and parameters, and whether each micro-batch has one."""
    if plan.dp == 1:
        return 0.0, False
    fraction = (plan.dp - 1) / plan.dp
    once_s = fraction * footprint.trainable_bytes / (plan.pp * plan.tp) / hardware.rates.link_bandwidth
    latency_s = hardware.rates.link_latency_s * max(len(footprint.block_parameter_bytes), 1)
    units = len(footprint.block_parameter_bytes) + 1  # parameters outside of blocks are one more unit
    each_waking_s = waking_s(hardware) * units
    match plan.strategy:
        case "fsdp":
            return 3 * (once_s + latency_s + each_waking_s), True
        case "zero1":
            return 3 * once_s + latency_s + waking_s(hardware), False
        case "zero2":
            return 2 * (once_s + latency_s + each_waking_s), True
        case _:
            return 2 * once_s + latency_s, False


def waking_s(hardware: Hardware) -> float:
    """Return the cost of a context switch per exchange, if ranks share cores."""
    return _WAKING_S if hardware.sharing > 1 else 0.0


def _update_s(footprint: Footprint, plan: Plan, optimizer: OptimizerCost, hardware: Hardware) -> float:
    shared = plan.dp if plan.strategy in ("zero1", "zero2", "fsdp") else 1
    touched = (3 + 2 * optimizer.states) * footprint.trainable_bytes / (shared * plan.pp * plan.tp)
    return touched * hardware.sharing / hardware.rates.memory_bandwidth


def _offload_s(footprint: Footprint, plan: Plan, hardware: Hardware) -> float:
    """Predict the seconds of transfers to the host and back; they do not overlap with computation."""
    parameters = footprint.parameter_bytes / (plan.dp if plan.strategy == "fsdp" else 1)
    kept = sum(fixed + by_sample * plan.batch_size for fixed, by_sample in footprint.block_kept)
    moved = {
        "none": 0.0,
        "optimizer": 2.0 * parameters,
        "parameters": (1 + 2 * plan.gradient_accumulation_steps) * parameters,
        "activations": 2.0 * kept * plan.gradient_accumulation_steps,
    }[plan.cpu_offload]
    return moved / hardware.rates.host_bandwidth
