"""The codes of how attempts end; written into exit records and answered by REST, so a code never changes its meaning."""

from enum import StrEnum


class Ended(StrEnum):
    """Why an attempt ended; ``ExitKind`` is the coarser kind that decides what comes next."""

    # By the supervisor
    FINISHED = "finished"
    FINISHED_THEN_ABORTED = "finished_then_aborted"
    FINISHED_UNNOTICED = "finished_unnoticed"
    STOPPED = "stopped"
    OVER_MEMORY = "over_memory"
    KILLED_AT_MEMORY_LIMIT = "killed_at_memory_limit"
    TOO_MANY_PROCESSES = "too_many_processes"
    OVER_DISK = "over_disk"
    HUNG = "hung"
    HANG_REPORTED = "hang_reported"
    RAISED = "raised"
    GPU_MEMORY = "gpu_memory"
    GPU_MEMORY_REPORTED = "gpu_memory_reported"
    GPU_MEMORY_ABORTED = "gpu_memory_aborted"
    MAIN_MEMORY = "main_memory"
    KERNEL_KILLED = "kernel_killed"
    GPU_FAULT = "gpu_fault"
    ABORTED = "aborted"
    KILLED = "killed"
    SIGNALLED = "signalled"
    EXITED = "exited"
    CARETAKER_STOPPED = "caretaker_stopped"
    END_UNNOTICED = "end_unnoticed"
    NOT_STARTED = "not_started"
    SIGNALLED_BEFORE_START = "signalled_before_start"
    STARTER_SIGNALLED = "starter_signalled"
    STARTER_EXITED = "starter_exited"
    SUPERVISOR_FAILED = "supervisor_failed"
    NO_TRACE = "no_trace"

    # By the server
    LOST = "lost"
    STOPPED_BEFORE_START = "stopped_before_start"
    NOT_STARTED_IN_TIME = "not_started_in_time"
    LAUNCH_UNANSWERED = "launch_unanswered"
    COULD_NOT_START = "could_not_start"
    COULD_NOT_PREPARE = "could_not_prepare"
    CROWDED_OUT = "crowded_out"
    NOT_IN_BACKUP = "not_in_backup"
    CLOSED_BY_DOCTOR = "closed_by_doctor"
