"""The codes of what happens to jobs and sweeps; stored and answered by REST, so a code never changes its meaning."""

from enum import StrEnum


class Happened(StrEnum):
    """What a job's history tells, and why the job is in its state; an end of an attempt has a code of ``Ended``."""

    # Asked for by people
    SUBMITTED = "submitted"
    CANCELLED = "cancelled_by"
    HELD = "held_by"
    RELEASED = "released_by"
    PREEMPTED = "preempted_by"
    CHANGED = "changed"
    CODE_FETCHED = "code_fetched"
    MOVED = "moved"
    CHECKPOINT_ASKED = "checkpoint_asked"
    CHECKPOINT_DELETED = "checkpoint_deleted"
    MADE_MODEL = "made_model"
    PROFILE_ASKED = "profile_asked"

    # The scheduler
    STARTS = "starts"
    MAKES_ROOM = "makes_room"
    MAKES_ROOM_FOR_BOOKING = "makes_room_for_booking"
    ALLOCATION_ENDS = "allocation_ends"
    GETS_ROOM = "gets_room"
    NEVER_FITS = "never_fits"
    NEEDED_JOB_ENDED = "needed_job_ended"
    FEWER_DEVICES = "fewer_devices"
    ALL_DEVICES = "all_devices"
    DEVICES_CHOSEN = "devices_chosen"
    RESIZED = "resized"
    MOVES_APART = "moves_apart"

    # An attempt
    RUNS = "runs"
    SEEN_AGAIN = "seen_again"
    SUPERVISOR_SILENT = "supervisor_silent"
    PROCESS_UNDYING = "process_undying"
    SERVER_STOPPED = "server_stopped"
    TIME_LIMIT_REACHED = "time_limit_reached"
    CLAIM_OUTGROWN = "claim_outgrown"
    GIVES_MEMORY_BACK = "gives_memory_back"
    IDLE_STOPPED = "idle_stopped"
    SESSION_ASLEEP = "session_asleep"
    SESSION_EXPIRED = "session_expired"
    DEVICE_FAULTY = "device_faulty"
    DEVICE_ERROR = "device_error"
    DEVICE_DRAINED = "device_drained"

    # Where a job goes after an attempt
    RETRIED = "retried"
    LAUNCHED_AGAIN = "launched_again"
    WAITS_FOR_DISK = "waits_for_disk"
    GIVEN_UP = "given_up"
    GOES_ON_LATER = "goes_on_later"
    QUEUED_BY_DOCTOR = "queued_by_doctor"

    # Checkpoints
    FELL_BACK = "fell_back"
    UNFINISHED_FOLDER = "unfinished_folder"
    CUT_SHORT_FILE = "cut_short_file"
    LACKS_OTHER_FILES = "lacks_other_files"
    FILE_LEFT_OUT = "file_left_out"
    CHECKPOINT_PASSED_OVER = "checkpoint_passed_over"
    OUTSIDE_KEPT = "outside_kept"
    OUTSIDE_NOT_KEPT = "outside_not_kept"
    BEGAN_AGAIN = "began_again"
    RESUME_OPTION = "resume_option"
    RESUME_CODE = "resume_code"
    CHECKPOINT_QUARANTINED = "checkpoint_quarantined"

    # Noticed while it runs
    DIVERGED = "diverged"
    SILENT = "silent"
    PROCESS_STOPPED = "process_stopped"
    PROCESS_CONTINUED = "process_continued"
    IDLE = "idle"
    SLOWED_DOWN = "slowed_down"
    LINES_PASSED_OVER = "lines_passed_over"
    END_UNREAD = "end_unread"
    FILE_UNREAD = "file_unread"
    READING_FAILS = "reading_fails"
    PREDICTION_FAR_OFF = "prediction_far_off"

    # Told by the run itself
    RUN_FELL_BACK = "run_fell_back"
    RUN_RESUMED = "run_resumed"
    RUN_CHECKPOINT_FAILED = "run_checkpoint_failed"
    RUN_PAUSED = "run_paused"
    RUN_WENT_ON = "run_went_on"
    RUN_UNUSED_PARAMETERS = "run_unused_parameters"
    RUN_LESS_MEMORY = "run_less_memory"
    RUN_PROFILED = "run_profiled"
    RUN_NOT_PROFILED = "run_not_profiled"

    # Upkeep
    FILES_REMOVED_AFTER_DAYS = "files_removed_after_days"
    FILES_REMOVED_OVER_SHARE = "files_removed_over_share"
    ATTEMPTS_COUNTED = "attempts_counted"


class HealthFact(StrEnum):
    """Why a device is not healthy."""

    GONE = "device_gone"
    SERVER_SILENT = "device_server_silent"
    HELD_WITHOUT_SIGN = "device_held_without_sign"
    LOST = "device_lost"
    NEEDS_RESET = "device_needs_reset"
    XID = "device_xid"
    ALLOCATION_ENDED = "device_allocation_ended"


class NoticeFact(StrEnum):
    """Why a notification did not arrive, or an address for them is refused."""

    KEY_LOST = "notice_key_lost"
    NO_ADDRESS = "notice_no_address"
    INSIDE_NETWORK = "notice_inside_network"
    NOT_ENCRYPTED = "notice_not_encrypted"
    HOST_UNKNOWN = "notice_host_unknown"
    NO_ANSWER = "notice_no_answer"
    REFUSED = "notice_refused"
    NO_REASON = "notice_no_reason"


class SweepFact(StrEnum):
    """Why a sweep is in its state, and why it pauses or stops a trial."""

    PAUSED_BY = "sweep_paused_by"
    STOPPED_BY = "sweep_stopped_by"
    TRIALS_SPENT = "sweep_trials_spent"
    DEVICE_TIME_SPENT = "sweep_device_time_spent"
    SPACE_TRIED = "sweep_space_tried"
    LITTLE_TO_GAIN = "sweep_little_to_gain"
    METRIC_MISSING = "sweep_metric_missing"
    SAME_ERROR = "sweep_same_error"
    TRIALS_LOST = "sweep_trials_lost"
    SAMPLER_FAILED = "sweep_sampler_failed"
    CANNOT_SUBMIT = "sweep_cannot_submit"

    TRIAL_PAUSED = "sweep_trial_paused"
    TRIAL_STOPPED = "sweep_trial_stopped"
    TRIAL_WAITS = "sweep_trial_waits"
    TRIAL_NOT_NEEDED = "sweep_trial_not_needed"


class FederationFact(StrEnum):
    """Why a federation is in its state, and why it stops a job of its own."""

    STOPPED_BY = "federation_stopped_by"
    FAILED_AT_START = "federation_failed_at_start"
    SERVER_ENDED = "federation_server_ended"
    NOT_KEPT = "federation_not_kept"

    SITE_OVER = "federation_site_over"


class ServiceFact(StrEnum):
    """Why a service is in its state, and why it stops a replica."""

    STOPPED_BY = "service_stopped_by"
    DIES_AGAIN = "service_dies_again"
    CANNOT_SUBMIT = "service_cannot_submit"
    UPDATE_FAILED = "service_update_failed"

    REPLICA_IDLE = "service_replica_idle"
    REPLICA_REPLACED = "service_replica_replaced"
    REPLICA_NOT_NEEDED = "service_replica_not_needed"
