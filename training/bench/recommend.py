"""Advice from a grid, in sentences with their evidence.  Imports no torch."""

from collections.abc import Sequence

from training.bench.cells import Cell, Measured, scaling_efficiency

_TIE = 10.0  # percent; larger differences count, however much the steps vary
_EFFORT = ("single", "ddp", "zero1", "zero2", "fsdp", "tensor", "pipeline", "placed", "dp")
_GOOD_SCALING = 70.0  # percent; below this, more devices are used poorly


def advise(measured: Sequence[Measured], *, has_gpu: bool = True) -> list[str]:
    """Return the recommendation first, then its limits; each sentence contains its figures."""
    done = [each for each in measured if each.step_s]
    if not done:
        return ["Nothing could be measured; the table shows why."]
    best = _simplest_of_the_fastest(done)
    advice = [_first(best, done, has_gpu)]
    if scaling := _on_scaling(best, done, has_gpu):
        advice.append(scaling)
    if memory := _on_memory(best, done):
        advice.append(memory)
    if len(best.step_s) >= 4 and best.spread_percent > 10:
        advice.append(
            f"The steps of the best one differ by ±{best.spread_percent:.0f} %, so the machine was busy or the "
            "cells too short: measure again before you rely on smaller differences."
        )
    return advice


def _simplest_of_the_fastest(done: Sequence[Measured]) -> Measured:
    """Return the cell with fewest devices, then the simplest strategy, among those as fast within the spread."""
    fastest = max(done, key=lambda each: each.samples_per_s)

    def is_as_fast(each: Measured) -> bool:
        behind = 100 * (fastest.samples_per_s / each.samples_per_s - 1)
        return behind <= min(_TIE, each.spread_percent + fastest.spread_percent)

    return min(
        filter(is_as_fast, done),
        key=lambda each: (each.cell.gpus, _EFFORT.index(each.cell.strategy), -each.samples_per_s),
    )


def name_of(cell: Cell, *, has_gpu: bool = True) -> str:
    devices = "GPU" if has_gpu else "CPU rank"
    return f"{cell.strategy} on {cell.gpus} {devices}{'s' if cell.gpus > 1 else ''} with batch size {cell.batch_size}"


def _first(best: Measured, done: Sequence[Measured], has_gpu: bool) -> str:
    sentence = (
        f"Take {name_of(best.cell, has_gpu=has_gpu)}: {best.samples_per_s:,.0f} samples/s "
        f"(±{best.spread_percent:.0f} %, {len(best.step_s)} steps)"
    )
    others = [each for each in done if each.cell != best.cell]
    if not others:
        return f"{sentence}; nothing else was measured."
    second = max(others, key=lambda each: each.samples_per_s)
    if second.samples_per_s > best.samples_per_s:
        more = 100 * (second.samples_per_s / best.samples_per_s - 1)
        other = name_of(second.cell, has_gpu=has_gpu)
        return f"{sentence}; {other} makes {more:.0f} % more, which is within the spread, at more effort."
    ahead = 100 * (best.samples_per_s / second.samples_per_s - 1)
    clear = ahead > best.spread_percent + second.spread_percent
    how = f"{ahead:.0f} % ahead of" if clear else f"only {ahead:.0f} % ahead, within the spread, of"
    return f"{sentence}, {how} {name_of(second.cell, has_gpu=has_gpu)}."


def _on_scaling(best: Measured, done: Sequence[Measured], has_gpu: bool) -> str | None:
    if best.cell.gpus == 1:
        several = [each for each in done if each.cell.gpus > 1]
        if not several:
            return None
        fastest = max(several, key=lambda each: each.samples_per_s)
        return (
            f"More devices do not pay for this model: {name_of(fastest.cell, has_gpu=has_gpu)} makes "
            f"{fastest.samples_per_s:,.0f} samples/s."
        )
    percent = scaling_efficiency(done).get(best.cell)
    if percent is None:
        return None
    verdict = "scales well" if percent >= _GOOD_SCALING else "leaves much of the devices unused"
    waits = ""
    if best.communication is not None:
        waits = f"; {100 * best.communication:.0f} % of a step is exchange between ranks"
    return f"It {verdict}: {percent:.0f} % of {best.cell.gpus} times the fastest single device{waits}."


def _on_memory(best: Measured, done: Sequence[Measured]) -> str | None:
    alike = [
        each
        for each in done
        if each.cell.gpus == best.cell.gpus
        and each.cell.batch_size == best.cell.batch_size
        and each.peak_bytes
    ]
    if not alike or not best.peak_bytes:
        return None
    least = min(alike, key=lambda each: each.peak_bytes)
    if least.cell == best.cell or least.peak_bytes > 0.9 * best.peak_bytes:
        return None
    mib = 1 << 20
    slower = 100 * (1 - least.samples_per_s / best.samples_per_s)
    return (
        f"If memory is short, {least.cell.strategy} needs {least.peak_bytes / mib:,.0f} MiB instead of "
        f"{best.peak_bytes / mib:,.0f} and is {slower:.0f} % slower."
    )
