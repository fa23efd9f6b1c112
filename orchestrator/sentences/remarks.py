"""What is noticed about a job without a change of its state: its checkpoints, its numbers, its files."""

from collections.abc import Mapping, Sequence

from berth import words
from orchestrator.facts.events import Happened
from orchestrator.sentences.table import says


@says(Happened.FELL_BACK)
def _fell_back(
    checkpoint: str,
    step: int | None,
    why: str,
    to_checkpoint: str | None = None,
    to_step: int | None = None,
) -> str:
    name = checkpoint if step is None else f"step {step}"
    to = "the beginning" if to_checkpoint is None else to_checkpoint if to_step is None else f"step {to_step}"
    return f"Fell back from {name} to {to}: {why}."


@says(Happened.UNFINISHED_FOLDER)
def _unfinished_folder(name: str) -> str:
    return f"{name} was not finished when its writer was killed; renamed to {name}.torn."


@says(Happened.CUT_SHORT_FILE)
def _cut_short_file(name: str) -> str:
    return f"{name} was cut short while it was written; set aside."


@says(Happened.FILE_LEFT_OUT)
def _file_left_out(path: str) -> str:
    return f"{path} is open for writing whenever a checkpoint is kept, so it is left out of them."


@says(Happened.CHECKPOINT_PASSED_OVER)
def _checkpoint_passed_over(
    path: str, writer_ended_itself: bool, newest: str | None = None, newest_step: int | None = None
) -> str:
    """Why a checkpoint does not count, and which one does."""
    killed = "its writer was killed soon after, and nothing proves that it was written whole"
    why = "it is not whole" if writer_ended_itself else killed
    if newest is None:
        instead = "There is no other"
    else:
        at = newest if newest_step is None else f"that of step {newest_step:,}"
        instead = f"The newest that counts is {at}"
    return f"The checkpoint {path} was passed over: {why}. {instead}."


@says(Happened.OUTSIDE_KEPT)
def _outside_kept(path: str) -> str:
    return f"{path} looks like a checkpoint and is kept, though it lies outside the checkpoint folder."


@says(Happened.OUTSIDE_NOT_KEPT)
def _outside_not_kept(path: str, times: int, glob: str) -> str:
    return (
        f"{path} was written {times} times outside the checkpoint folder and is not kept; keep it from now on with "
        f"--checkpoint-glob '{glob}', or with one click on the job's page."
    )


@says(Happened.RESUME_OPTION)
def _resume_option(words: str) -> str:
    return (
        "The script has an option to resume, and nothing uses it yet: with "
        f"--resume-args '{words}' a retry continues from the newest checkpoint."
    )


@says(Happened.RESUME_CODE)
def _resume_code(trainer: str, line: str) -> str:
    return f"{trainer} does not resume by itself: with {line} in the script, a retry continues from the newest checkpoint."


@says(Happened.CHECKPOINT_QUARANTINED)
def _checkpoint_quarantined(name: str) -> str:
    return f"{name.capitalize()} was damaged; doctor moved it to quarantine/."


@says(Happened.DIVERGED)
def _diverged(name: str, step: int) -> str:
    return f"{name} became NaN or infinite at step {step:,}: the training diverged."


@says(Happened.SILENT)
def _silent(step: int) -> str:
    return (
        f"It has reported nothing for 10 min or longer (the last step was {step:,}). "
        "Its log and the use of its devices may say why."
    )


@says(Happened.PROCESS_STOPPED)
def _process_stopped(pid: int, name: str) -> str:
    return (
        f"A signal such as SIGSTOP has stopped its process {pid} ({name}), which does nothing until it gets SIGCONT. "
        "The job keeps its devices."
    )


@says(Happened.PROCESS_CONTINUED)
def _process_continued(pid: int, name: str) -> str:
    return f"Its process {pid} ({name}) is no longer stopped."


@says(Happened.LINES_PASSED_OVER)
def _lines_passed_over(size_bytes: int) -> str:
    gib = f"{size_bytes / 2**30:,.1f} GiB"
    return f"{gib} of its metric lines were passed over: more than can be read at its end."


@says(Happened.RUN_FELL_BACK)
def _run_fell_back(from_step: object, to_step: object, why: object) -> str:
    to = "the beginning" if to_step is None else f"step {to_step}"
    return f"Fell back from checkpoint step {from_step} to {to}: {why}"


@says(Happened.RUN_RESUMED)
def _run_resumed(step: object) -> str:
    return f"Resumed from step {step}."


@says(Happened.RUN_CHECKPOINT_FAILED)
def _run_checkpoint_failed(step: object, why: object) -> str:
    return f"The checkpoint of step {step} could not be written ({why}); the older ones stay."


@says(Happened.RUN_PAUSED)
def _run_paused(step: object, failures: object, why: object) -> str:
    return (
        f"Paused at step {step}: {failures} checkpoints in a row could not be written "
        f"({why}). It goes on as soon as one can; make room, or cancel."
    )


@says(Happened.RUN_WENT_ON)
def _run_went_on(step: object, paused_s: object) -> str:
    return f"Goes on from step {step}: a checkpoint could be written after {paused_s} s."


@says(Happened.RUN_UNUSED_PARAMETERS)
def _run_unused_parameters(step: object, parameters: object) -> str:
    return (
        f"No gradient came for {parameters} in step {step}; "
        "find_unused_parameters is on from there. Set it to expect this from the start."
    )


@says(Happened.RUN_LESS_MEMORY)
def _run_less_memory(step: int, change: str, why: str) -> str:
    return f"{change[:1].upper()}{change[1:]}: in step {step:,} {why}."


PARTS = {
    "compute_s": "computes",
    "data_s": "waits for data",
    "copy_s": "copies",
    "exchange_s": "exchanges between ranks",
    "idle_s": "runs other Python or idles",
}
MUCH_PERCENT = 20
_ADVICE = {
    "data_s": "Give its DataLoader more workers (num_workers), or prepare the data beforehand.",
    "copy_s": "Copy with pin_memory=True and non_blocking=True, or keep the data on the device.",
    "exchange_s": "Larger batches, or gradient accumulation, exchange less often.",
    "idle_s": "The device waits for Python: larger batches, torch.compile, or fewer .item() and prints help.",
}


@says(Happened.RUN_PROFILED)
def _run_profiled(steps: object, wall_s: object, device: object, trace: object, **parts: object) -> str:
    """Where the time went, the largest part first; values are what the run wrote, so they may be anything."""
    percents = profile_percents({"wall_s": wall_s, **parts})
    if not percents:
        return f"Profiled {steps} steps; the trace was too large to sum up."
    whole = sorted(percents.items(), key=lambda part: -part[1])
    told = ", ".join(f"{PARTS[name]} {percent:.0f} %" for name, percent in whole if percent >= 0.5)
    whose = "GPU" if device == "gpu" else "training's thread"
    sentence = f"Profiled {steps} steps: the {whose} {told} of the time."
    loss = max((name for name in percents if name != "compute_s"), key=percents.__getitem__)
    is_much = percents[loss] >= MUCH_PERCENT and (loss != "idle_s" or device == "gpu")
    return f"{sentence} {_ADVICE[loss]}" if is_much else sentence


def profile_percents(facts: Mapping[str, object]) -> dict[str, float]:
    """Each part's share of the profiled time; empty where the facts do not tell it."""
    wall_s, parts = facts.get("wall_s"), {name: facts.get(name) for name in PARTS}
    if not _is_time(wall_s) or not wall_s or not all(map(_is_time, parts.values())):
        return {}
    return {name: min(100.0, 100 * float(str(part_s)) / float(str(wall_s))) for name, part_s in parts.items()}


def _is_time(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 1e9


@says(Happened.RUN_NOT_PROFILED)
def _run_not_profiled(why: object) -> str:
    return f"The profile could not be made: {why}."


@says(Happened.FILES_REMOVED_AFTER_DAYS)
def _files_removed_after_days(days: int) -> str:
    return f"Files removed: kept for {days} days after the end."


@says(Happened.FILES_REMOVED_OVER_SHARE)
def _files_removed_over_share(owner: str, share_gib: float) -> str:
    return f"Files removed: {owner} had more than {share_gib} GiB of files."


@says(Happened.ATTEMPTS_COUNTED)
def _attempts_counted(last: int) -> str:
    return f"Attempts up to {last} were found on disk and counted."


@says(Happened.PREDICTION_FAR_OFF)
def _prediction_far_off(predicted_s: float, measured_s: float, device: str) -> str:
    times = max(measured_s / predicted_s, predicted_s / measured_s)
    slower = "longer" if measured_s > predicted_s else "less"
    return (
        f"A step took {times:.1f} times {slower} than predicted ({words.value(measured_s)} s, not "
        f"{words.value(predicted_s)} s); the next predictions for {device} are corrected by what was measured."
    )


def say_beside(job: str, others: Sequence[str], percent: int, *, measured: bool) -> str:
    """How much slower a job is beside its neighbours on a device: "vit-s is 18 % slower beside ner."."""
    beside = f"{', '.join(others[:-1])} and {others[-1]}" if len(others) > 1 else others[0]
    if percent < 1:
        return f"{job} is {'' if measured else 'probably '}as fast beside {beside} as alone."
    return f"{job} is {'' if measured else 'probably '}{percent} % slower beside {beside}."
