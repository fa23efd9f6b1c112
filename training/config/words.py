"""How plans, sizes and durations are shown to people."""

from collections.abc import Sequence

from training.config.plan import Plan

_GIB = 2**30
_NAMED = 8
_CHECKPOINTING = {"none": "ckpt off", "selective": "ckpt selective", "full": "ckpt on"}


def summarise(plan: Plan) -> str:
    """Summarise a plan, such as "FSDP, bf16, ckpt on, batch 16x4"."""
    parts = [plan.strategy.upper(), plan.precision, _CHECKPOINTING[plan.activation_checkpointing]]
    if plan.cpu_offload != "none":
        parts.append(f"{plan.cpu_offload} on the host")
    if plan.strategy == "placed":
        parts.append(
            f"{plan.placement} in {plan.pipeline_micro_batches} parts"
            if plan.pipeline_micro_batches > 1
            else plan.placement
        )
    if plan.pp > 1 or plan.tp > 1:
        parts.append(f"dp {plan.dp} pp {plan.pp} tp {plan.tp}")
    return ", ".join([*parts, f"batch {plan.batch_size}x{plan.gradient_accumulation_steps}"])


def format_s(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"


def say_names(names: Sequence[str]) -> str:
    """List at most eight names, then the number of the others."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def say_bytes(size: float) -> str:
    for unit, name in ((_GIB, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.1f} {name}"
    return f"{size / 1024:.1f} KiB"
