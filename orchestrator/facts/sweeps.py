"""The codes of what happens to sweeps; stored and answered by REST, so a code never changes its meaning."""

from enum import StrEnum


class SweepFact(StrEnum):
    """Why a sweep is in its state, and why it pauses or stops a trial."""

    STOPPED_BY = "sweep_stopped_by"
    TRIALS_SPENT = "sweep_trials_spent"
    DEVICE_TIME_SPENT = "sweep_device_time_spent"
    SPACE_TRIED = "sweep_space_tried"
    METRIC_MISSING = "sweep_metric_missing"
    SAME_ERROR = "sweep_same_error"
    CANNOT_SUBMIT = "sweep_cannot_submit"

    TRIAL_PAUSED = "sweep_trial_paused"
    TRIAL_STOPPED = "sweep_trial_stopped"
    TRIAL_NOT_NEEDED = "sweep_trial_not_needed"
