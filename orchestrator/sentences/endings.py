"""How attempts ended, as their supervisors saw it; those write the sentences too, so this module imports little."""

import shlex
import signal
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

from berth.shared.language import plural_text, text
from orchestrator.facts.endings import Ended
from orchestrator.sentences.table import Words, say_json, says

Json = Mapping[str, Any]
_GIB = 2**30
_GPU_MEMORY_ADVICE = "A smaller micro-batch, activation checkpointing or FSDP needs less."
_STOPPED = {
    "cancel": "Cancelled on request.",
    "timeout": "Stopped at its time limit.",
    "preempt": "Stopped before its end; it is queued again and will be resumed.",
    "shutdown": "Stopped because the server shuts down; it will be resumed.",
    "lease": "Stopped because the first server was silent for too long; "
    "it is queued again and will be resumed.",
    "gang": "Stopped because its ranks on another server had ended.",
    "policy": "Stopped by a rule of the pool.",
    "memory": "Stopped because it used more GPU memory than it had claimed.",
    "gpu_fault": "Stopped because its GPU reported a fault.",
}
_SIGNAL_HINTS: dict[int, str] = {
    signal.SIGSEGV: " (a crash in native code)",
    signal.SIGBUS: " (often /dev/shm is full: use fewer data-loader workers)",
    signal.SIGILL: " (a library built for another processor)",
}


def ends(code: Ended) -> Callable[[Words], Words]:
    """Register the words of an end, followed by what may be why: a limit that the run met, a disk that was full."""

    def register(words: Words) -> Words:
        @wraps(words)
        def in_circumstances(met: Json | None = None, disk_full: bool = False, **facts: Any) -> str:
            full = text(" The disk was full.") if disk_full else ""
            return f"{words(**facts)}{_limit_met(met)}{full}"

        return says(code)(in_circumstances)

    return register


def _limit_met(met: Json | None) -> str:
    if not met:
        return ""
    if home := met.get("hidden_home"):
        return text(
            " Jobs do not see {home}, the home of the user that runs Berth; "
            "register the data as a dataset (berth data add) and name it in the job.",
            home=home,
        )
    if missing := _missing(
        **{name: str(met.get(name) or "") for name in ("unwritable", "variable", "module", "alone")}
    ):
        return missing
    if "processes" not in met:  # of a later version
        return ""
    limit = met["processes"]
    if met.get("certain"):
        return text(" It had met its limit of {limit:,} processes and threads.", limit=limit)
    return text(" It may have met its limit of {limit:,} processes and threads.", limit=limit)


def _missing(unwritable: str, variable: str, module: str, alone: str) -> str:
    """What to do about a variable, a package or a file that the script did not find; empty for other ends."""
    if unwritable:
        return text(
            " A job can write only to its own folders. Use one of them instead of {path}, such as output; the files there are the job's results.",
            path=unwritable,
        )
    if variable:
        return text(
            " The job has no variable {variable}: give it with --env {variable}=VALUE, or as a secret: "
            "berth secret set {variable}, then --secret {variable}.",
            variable=variable,
        )
    if module and alone:
        return text(
            " Only {script} was uploaded. If {module} lies beside it, upload that folder; there: berth run . -e {quoted}. "
            "If {module} comes from a package, add it: berth run --with PACKAGE {quoted}.",
            script=alone,
            quoted=shlex.quote(alone),
            module=module,
        )
    if module:
        return text(" If {module} comes from a package, add it: berth run --with PACKAGE.", module=module)
    if alone:
        return text(
            " Only {script} was uploaded; to upload the files beside it too, in its folder: berth run . -e {quoted}.",
            script=alone,
            quoted=shlex.quote(alone),
        )
    return ""


@ends(Ended.FINISHED)
def _finished(printed: str = "", left: int = 0) -> str:
    sentence = text("Finished.")
    if printed:
        sentence = text("Finished with exit code 0, though the log ends with {error}.", error=printed)
    if not left:
        return sentence
    return sentence + plural_text(
        " The script exited while {count} process that it had started was still running; it was ended too. "
        "Run the program in the foreground.",
        " The script exited while {count} processes that it had started were still running; they were ended too. "
        "Run the program in the foreground.",
        left,
    )


@ends(Ended.FINISHED_THEN_ABORTED)
def _finished_then_aborted(signal: int) -> str:
    name = signal_name(signal)
    return text(
        "Finished. After the script had returned, a process was ended by {name}; the result is not touched.",
        name=name,
    )


@ends(Ended.FINISHED_UNNOTICED)
def _finished_unnoticed(unnoticed: Json) -> str:
    return text(
        "Finished. {unnoticed} The script had returned before; the result is not touched.",
        unnoticed=say_json(unnoticed),
    )


@ends(Ended.STOPPED)
def _stopped(reason: str, outlasted_s: float | None = None) -> str:
    sentence = text(_STOPPED.get(reason, "Stopped."))
    if outlasted_s is None:
        return sentence
    return text(
        "{sentence} It did not end within {outlasted_s:g} s and was killed.",
        sentence=sentence,
        outlasted_s=round(outlasted_s, 1),
    )


@ends(Ended.OVER_MEMORY)
def _over_memory(used_bytes: int, limit_bytes: int) -> str:
    return text(
        "The run used {used_gib:.2f} GiB of main memory, more than its limit of {limit_gib:.2f} GiB. "
        "Ask for more, or use fewer data-loader workers.",
        used_gib=used_bytes / _GIB,
        limit_gib=limit_bytes / _GIB,
    )


@ends(Ended.KILLED_AT_MEMORY_LIMIT)
def _killed_at_memory_limit(limit_bytes: int) -> str:
    return text(
        "The run needed more main memory than its limit of {limit_gib:.2f} GiB. "
        "Ask for more, or use fewer data-loader workers.",
        limit_gib=limit_bytes / _GIB,
    )


@ends(Ended.TOO_MANY_PROCESSES)
def _too_many_processes(threads: int, limit: int) -> str:
    return text(
        "The run had {threads:,} processes and threads, more than its limit of {limit:,}.",
        threads=threads,
        limit=limit,
    )


@ends(Ended.OVER_DISK)
def _over_disk(used_bytes: int, limit_bytes: int) -> str:
    return text(
        "The run filled {used_bytes:.1f} GiB of disk, more than its limit of {limit_bytes:.1f} GiB. "
        "Keep fewer checkpoints and outputs, or ask for a higher limit.",
        used_bytes=used_bytes / _GIB,
        limit_bytes=limit_bytes / _GIB,
    )


@ends(Ended.HUNG)
def _hung(timeout_s: float, silent_s: Sequence[float], left: Sequence[int] = (), first_rank: int = 0) -> str:
    ranks = ", ".join(
        text("rank {rank} for {silent:.0f} s", rank=rank, silent=silent)
        for rank, silent in enumerate(silent_s, first_rank)
    )
    who = ""
    if left:
        ranks_left = ", ".join(map(str, left))
        who = plural_text(
            " Rank {ranks} had left before the others.",
            " Ranks {ranks} had left before the others.",
            len(left),
            ranks=ranks_left,
        )
    return text(
        "Nothing was written to the metrics or the logs for {timeout_s:g} s ({ranks}). "
        "The ranks probably wait for each other; their stacks are at the end of their logs. "
        "If the script is silent on purpose, raise hang_timeout_s.{who}",
        timeout_s=timeout_s,
        ranks=ranks,
        who=who,
    )


@ends(Ended.HANG_REPORTED)
def _hang_reported(message: str) -> str:
    return message


@ends(Ended.GPU_MEMORY_REPORTED)
def _gpu_memory_reported(message: str) -> str:
    return message


_HINTS_OF_LACKS = {
    "terminal": "A job has no terminal: give the script a fixed width, or turn its own progress bar off.",
    "cuda": "Its torch is built without CUDA: take a build for GPUs, or let the script train on the CPU.",
}


@ends(Ended.RAISED)
def _raised(error: str, rank: int, asked: bool = False, port: str | None = None, lacks: str = "") -> str:
    raised = text("The script raised {error} on rank {rank}.", error=error.rstrip("."), rank=rank)
    if hint := _HINTS_OF_LACKS.get(lacks):
        return f"{raised} {text(hint)}"
    if asked:
        return f"{raised} {text('A job has no keyboard: give what the script asks for as an argument.')}"
    return raised if port is None else f"{raised} {_port_taken(port)}"


def _port_taken(port: str) -> str:
    if not port:
        return text(
            "The port is taken by another program of this server, perhaps another job: use the one in MASTER_PORT, "
            "or port 0 for a free one."
        )
    return text(
        "Port {port} is taken by another program of this server, perhaps another job: use the one in MASTER_PORT, "
        "or port 0 for a free one.",
        port=port,
    )


@ends(Ended.GPU_MEMORY)
def _gpu_memory(rank: int, error: str, needed: str = "", total: str = "", free: str = "") -> str:
    """With amounts where torch's message has them."""
    if not needed:
        return text(
            "Rank {rank} ran out of GPU memory ({error}). {advice}",
            rank=rank,
            error=error,
            advice=text(_GPU_MEMORY_ADVICE),
        )
    return text(
        "Rank {rank} ran out of GPU memory: it needed {needed} more, and {free} of the device's "
        "{total} were free. {advice}",
        rank=rank,
        needed=needed,
        free=free,
        total=total,
        advice=text(_GPU_MEMORY_ADVICE),
    )


@ends(Ended.GPU_MEMORY_ABORTED)
def _gpu_memory_aborted(rank: int) -> str:
    return text(
        "Rank {rank} ran out of GPU memory and aborted. {advice}",
        rank=rank,
        advice=text(_GPU_MEMORY_ADVICE),
    )


@ends(Ended.MAIN_MEMORY)
def _main_memory(rank: int, error: str) -> str:
    return text("Rank {rank} ran out of main memory ({error}).", rank=rank, error=error)


@ends(Ended.KERNEL_KILLED)
def _kernel_killed(rank: int, child: bool = False) -> str:
    """With ``child``, a process that the rank had started."""
    template = (
        "The kernel killed a process of rank {rank} because the machine was out of main memory."
        if child
        else "The kernel killed rank {rank} because the machine was out of main memory."
    )
    return text(template, rank=rank)


@ends(Ended.GPU_FAULT)
def _gpu_fault(rank: int, error: str) -> str:
    return text("The GPU of rank {rank} reported a fault ({error}).", rank=rank, error=error)


@ends(Ended.ABORTED)
def _aborted(rank: int) -> str:
    return text("Rank {rank} aborted; the end of its log tells why.", rank=rank)


@ends(Ended.KILLED)
def _killed(rank: int, child: bool = False) -> str:
    template = (
        "A process of rank {rank} was killed by SIGKILL from outside of Berth."
        if child
        else "Rank {rank} was killed by SIGKILL from outside of Berth."
    )
    return text(template, rank=rank)


@ends(Ended.SIGNALLED)
def _signalled(rank: int, signal: int) -> str:
    hint = _SIGNAL_HINTS.get(signal, "")
    hint = text(hint) if hint else ""
    return text("Rank {rank} was ended by {signal}{hint}.", rank=rank, signal=signal_name(signal), hint=hint)


@ends(Ended.EXITED)
def _exited(rank: int, exit_code: int, message: str = "", printed: str = "") -> str:
    if message:
        return text(
            "The script ended itself on rank {rank}: {message}.", rank=rank, message=message.rstrip(".")
        )
    ended = text(
        "The script ended with exit code {exit_code} on rank {rank}.", exit_code=exit_code, rank=rank
    )
    return f"{ended} {text('Its log says: {line}.', line=printed.rstrip('.'))}" if printed else ended


@ends(Ended.CARETAKER_STOPPED)
def _caretaker_stopped(name: str) -> str:
    return text(
        "Something stopped {name} (SIGSTOP or a debugger), which must notice when the run's "
        "processes end, so the run was ended.",
        name=name,
    )


@ends(Ended.END_UNNOTICED)
def _end_unnoticed() -> str:
    return text(
        "The run's first process had ended, but the sandbox's pid 1 did not notice, so the run was ended."
    )


@ends(Ended.COMMAND_NOT_STARTED)
def _command_not_started(message: str) -> str:
    return text("The command could not be started. {message}", message=message)


@ends(Ended.NOT_STARTED)
def _not_started(exit_code: int, message: str) -> str:
    why = message or text("exit code {exit_code}, no message", exit_code=exit_code)
    return text("The run could not be started: {why}.", why=why)


@ends(Ended.SIGNALLED_BEFORE_START)
def _signalled_before_start(signal: int) -> str:
    return text("The run was ended by {signal} before the script started.", signal=signal_name(signal))


@ends(Ended.STARTER_SIGNALLED)
def _starter_signalled(signal: int) -> str:
    return text("The process that starts the ranks was ended by {signal}.", signal=signal_name(signal))


@ends(Ended.STARTER_EXITED)
def _starter_exited(exit_code: int, message: str) -> str:
    return text(
        "The ranks' starter ended with exit code {exit_code}: {message}", exit_code=exit_code, message=message
    )


@ends(Ended.SUPERVISOR_FAILED)
def _supervisor_failed(error: str) -> str:
    return error


@ends(Ended.NO_TRACE)
def _no_trace() -> str:
    return text("The run ended and left no trace of why; its logs may tell.")


def signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return text("signal {number}", number=number)
