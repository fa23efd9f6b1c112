"""What is noticed about a job without a change of its state: its checkpoints, its numbers, its files."""

from collections.abc import Mapping, Sequence

from berth.shared import words
from berth.shared.language import text
from orchestrator.facts.events import Happened
from orchestrator.sentences.nouns import joined
from orchestrator.sentences.table import says


@says(Happened.FELL_BACK)
def _fell_back(
    checkpoint: str,
    step: int | None,
    why: str,
    to_checkpoint: str | None = None,
    to_step: int | None = None,
) -> str:
    name = checkpoint if step is None else text("step {step}", step=step)
    to = (
        text("the beginning")
        if to_checkpoint is None
        else to_checkpoint
        if to_step is None
        else text("step {to_step}", to_step=to_step)
    )
    return text("Fell back from {name} to {to}: {why}.", name=name, to=to, why=why)


@says(Happened.UNFINISHED_FOLDER)
def _unfinished_folder(name: str, torn: str | None = None) -> str:
    torn = torn or f"{name}.torn"
    return text(
        "{name} was not finished when its writer was killed; renamed to {torn}.", name=name, torn=torn
    )


@says(Happened.LACKS_OTHER_FILES)
def _lacks_other_files(name: str, torn: str | None = None) -> str:
    torn = torn or f"{name}.torn"
    return text("{name} lacks files that every kept checkpoint has; renamed to {torn}.", name=name, torn=torn)


@says(Happened.CUT_SHORT_FILE)
def _cut_short_file(name: str, torn: str | None = None) -> str:
    if torn is None:  # of an earlier version
        return text("{name} was cut short while it was written; set aside.", name=name)
    return text("{name} was cut short while it was written; renamed to {torn}.", name=name, torn=torn)


@says(Happened.FILE_LEFT_OUT)
def _file_left_out(path: str) -> str:
    return text(
        "{path} is open for writing whenever a checkpoint is kept, so it is left out of them.", path=path
    )


@says(Happened.CHECKPOINT_PASSED_OVER)
def _checkpoint_passed_over(
    path: str, writer_ended_itself: bool, newest: str | None = None, newest_step: int | None = None
) -> str:
    """Why a checkpoint does not count, and which one does."""
    killed = text("its writer was killed soon after, and nothing proves that it was written whole")
    why = text("it is not whole") if writer_ended_itself else killed
    passed = text("The checkpoint {path} was passed over: {why}.", path=path, why=why)
    if newest is None:
        instead = text("There is no other.")
    elif newest_step is None:
        instead = text("The newest that counts is {checkpoint}.", checkpoint=newest)
    else:
        instead = text("The newest that counts is that of step {step:,}.", step=newest_step)
    return f"{passed} {instead}"


@says(Happened.OUTSIDE_KEPT)
def _outside_kept(path: str) -> str:
    return text(
        "{path} looks like a checkpoint and is kept, though it lies outside the checkpoint folder.", path=path
    )


@says(Happened.OUTSIDE_NOT_KEPT)
def _outside_not_kept(path: str, times: int, glob: str) -> str:
    return text(
        "{path} was written {times} times outside the checkpoint folder and is not kept; "
        "keep it from now on with --checkpoint-glob '{glob}', or with one click on the job's page.",
        path=path,
        times=times,
        glob=glob,
    )


@says(Happened.BEGAN_AGAIN)
def _began_again(attempt: int, step: int, given: int) -> str:
    return text(
        "Attempt {attempt} counts from step {step:,} again: the script did not take the checkpoint of step {given:,}, "
        "or restarts its counter after loading it. If an option makes it resume, add it with --resume-args.",
        attempt=attempt,
        step=step,
        given=given,
    )


@says(Happened.RESUME_OPTION)
def _resume_option(words: str) -> str:
    return text(
        "The script has an option to resume, and nothing uses it yet: with --resume-args '{words}' a "
        "retry continues from the newest checkpoint.",
        words=words,
    )


@says(Happened.RESUME_CODE)
def _resume_code(trainer: str, line: str) -> str:
    return text(
        "{trainer} does not resume by itself: with {line} in the script, a retry continues from the "
        "newest checkpoint.",
        trainer=trainer,
        line=line,
    )


@says(Happened.CHECKPOINT_QUARANTINED)
def _checkpoint_quarantined(name: str) -> str:
    return text("{name} was damaged; doctor moved it to quarantine/.", name=name.capitalize())


@says(Happened.DIVERGED)
def _diverged(name: str, step: int) -> str:
    return text(
        "{name} became NaN or infinite at step {step:,}: the training diverged.", name=name, step=step
    )


@says(Happened.SILENT)
def _silent(step: int) -> str:
    return text(
        "It has reported nothing for 10 min or longer (the last step was {step:,}). "
        "Its log and the use of its devices may say why.",
        step=step,
    )


@says(Happened.PROCESS_STOPPED)
def _process_stopped(pid: int, name: str) -> str:
    return text(
        "A signal such as SIGSTOP has stopped its process {pid} ({name}), which does nothing until "
        "it gets SIGCONT. The job keeps its devices.",
        pid=pid,
        name=name,
    )


@says(Happened.PROCESS_CONTINUED)
def _process_continued(pid: int, name: str) -> str:
    return text("Its process {pid} ({name}) is no longer stopped.", pid=pid, name=name)


@says(Happened.END_UNREAD)
def _end_unread() -> str:
    return text(
        "Berth failed to read what the run wrote last, so metrics may be missing; its log is whole. "
        "The operator finds why in the agent's log."
    )


@says(Happened.FILE_UNREAD)
def _file_unread(file: str, reason: str) -> str:
    return text(
        "Berth no longer reads {file}, because that fails ({reason}); metrics in it may be missing.",
        file=file,
        reason=reason,
    )


@says(Happened.READING_FAILS)
def _reading_fails(reason: str) -> str:
    return text(
        "Berth fails to read what the run writes ({reason}), so its metrics stand still. "
        "The run goes on, and Berth keeps trying.",
        reason=reason,
    )


@says(Happened.LINES_PASSED_OVER)
def _lines_passed_over(size_bytes: int) -> str:
    return text(
        "{gib:,.1f} GiB of its metric lines were passed over: more than can be read at its end.",
        gib=size_bytes / 2**30,
    )


@says(Happened.RUN_FELL_BACK)
def _run_fell_back(from_step: object, to_step: object, why: object) -> str:
    to = text("the beginning") if to_step is None else text("step {to_step}", to_step=to_step)
    return text(
        "Fell back from checkpoint step {from_step} to {to}: {why}", from_step=from_step, to=to, why=why
    )


@says(Happened.RUN_RESUMED)
def _run_resumed(step: object) -> str:
    return text("Resumed from step {step}.", step=step)


@says(Happened.RUN_CHECKPOINT_FAILED)
def _run_checkpoint_failed(step: object, why: object) -> str:
    return text(
        "The checkpoint of step {step} could not be written ({why}); the older ones stay.", step=step, why=why
    )


@says(Happened.RUN_PAUSED)
def _run_paused(step: object, failures: object, why: object) -> str:
    return text(
        "Paused at step {step}: {failures} checkpoints in a row could not be written ({why}). "
        "It goes on as soon as one can; make room, or cancel.",
        step=step,
        failures=failures,
        why=why,
    )


@says(Happened.RUN_WENT_ON)
def _run_went_on(step: object, paused_s: object) -> str:
    return text(
        "Goes on from step {step}: a checkpoint could be written after {paused_s} s.",
        step=step,
        paused_s=paused_s,
    )


@says(Happened.RUN_UNUSED_PARAMETERS)
def _run_unused_parameters(step: object, parameters: object) -> str:
    return text(
        "No gradient came for {parameters} in step {step}; find_unused_parameters is on from there. "
        "Set it to expect this from the start.",
        parameters=parameters,
        step=step,
    )


@says(Happened.RUN_LESS_MEMORY)
def _run_less_memory(step: int, change: str, why: str) -> str:
    lighter = text(change)
    return text(
        "{change}: in step {step:,} {why}.",
        change=f"{lighter[:1].upper()}{lighter[1:]}",
        step=step,
        why=text(why),
    )


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
        return text("Profiled {steps} steps; the trace was too large to sum up.", steps=steps)
    whole = sorted(percents.items(), key=lambda part: -part[1])
    told = ", ".join(f"{text(PARTS[name])} {percent:.0f} %" for name, percent in whole if percent >= 0.5)
    if device == "gpu":
        sentence = text("Profiled {steps} steps: the GPU {told} of the time.", steps=steps, told=told)
    else:
        sentence = text(
            "Profiled {steps} steps: the training's thread {told} of the time.", steps=steps, told=told
        )
    loss = max((name for name in percents if name != "compute_s"), key=percents.__getitem__)
    is_much = percents[loss] >= MUCH_PERCENT and (loss != "idle_s" or device == "gpu")
    return f"{sentence} {text(_ADVICE[loss])}" if is_much else sentence


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
    return text("The profile could not be made: {why}.", why=why)


@says(Happened.FILES_REMOVED_AFTER_DAYS)
def _files_removed_after_days(days: int) -> str:
    return text("Files removed: kept for {days} days after the end.", days=days)


@says(Happened.FILES_REMOVED_OVER_SHARE)
def _files_removed_over_share(owner: str, share_gib: float) -> str:
    return text(
        "Files removed: {owner} had more than {share_gib} GiB of files.", owner=owner, share_gib=share_gib
    )


@says(Happened.ATTEMPTS_COUNTED)
def _attempts_counted(last: int) -> str:
    return text("Attempts up to {last} were found on disk and counted.", last=last)


@says(Happened.PREDICTION_FAR_OFF)
def _prediction_far_off(predicted_s: float, measured_s: float, device: str) -> str:
    times = max(measured_s / predicted_s, predicted_s / measured_s)
    known = {
        "times": times,
        "measured": words.value(measured_s),
        "predicted": words.value(predicted_s),
        "device": device,
    }
    if measured_s > predicted_s:
        return text(
            "A step took {times:.1f} times longer than predicted ({measured} s, not {predicted} s); "
            "the next predictions for {device} are corrected by what was measured.",
            **known,
        )
    return text(
        "A step took {times:.1f} times less than predicted ({measured} s, not {predicted} s); "
        "the next predictions for {device} are corrected by what was measured.",
        **known,
    )


def say_beside(job: str, others: Sequence[str], percent: int, *, measured: bool) -> str:
    """How much slower a job is beside its neighbours on a device: "vit-s is 18 % slower beside ner."."""
    beside = joined(others)
    if percent < 1:
        template = (
            "{job} is as fast beside {others} as alone."
            if measured
            else "{job} is probably as fast beside {others} as alone."
        )
        return text(template, job=job, others=beside)
    template = (
        "{job} is {percent} % slower beside {others}."
        if measured
        else "{job} is probably {percent} % slower beside {others}."
    )
    return text(template, job=job, percent=percent, others=beside)
