"""What a run reports to Berth: JSON lines appended to the file that ``BERTH_METRICS_FILE`` names.

Each line is one JSON object of one of five kinds, distinguished by its key:

``{"step": 10, "time": 1718000000.123, "loss": 0.5, "total_steps": 1000}``
    Values at a step.  ``step`` counts optimizer updates from 0 or 1 on; ``time`` is the wall
    clock in seconds; ``total_steps``, if present, is the last step of the run.  Every other key
    is a metric.  NaN and infinities are the tokens ``NaN``, ``Infinity``, ``-Infinity``, as
    Python's ``json`` writes and reads them; strict parsers must accept them.
``{"heartbeat": 1718000000.1}``
    The training thread was alive at this wall time (seconds), although no step has ended.
``{"total_steps": 1000}``
    The last step of the run, on a line of its own.
``{"event": "fallback", "time": 1718000000.1, ...}``
    Something happened; the other keys depend on the kind (the ``*_EVENT`` names below).

``{"tracker": "wandb", "step": 10, "time": 1718000000.1, "loss": 0.5}``
    Values that the script gave to its experiment tracker (``training/tee``).  They add what the run does not report or print
    itself.  Without values: values of this tracker follow.

Lines are ASCII and end in one newline.  Readers skip what they do not know.  This module imports no
torch: the server reads it.
"""

import json
import time
from collections.abc import Mapping
from typing import Final

METRICS_FILE_VARIABLE: Final = "BERTH_METRICS_FILE"

STEP: Final = "step"
TIME: Final = "time"
TOTAL_STEPS: Final = "total_steps"
HEARTBEAT: Final = "heartbeat"
EVENT: Final = "event"
TRACKER: Final = "tracker"
RESERVED: Final = frozenset({STEP, TIME, TOTAL_STEPS, HEARTBEAT, EVENT})
"""Keys that are not names of metrics."""

FALLBACK_EVENT: Final = "fallback"
"""A checkpoint did not verify: ``skipped`` (folder), ``reason``, ``from_step``, ``to_step`` (null: no checkpoint remains)."""
RESUMED_EVENT: Final = "resumed"
"""The run continues: ``step``, ``checkpoint`` (folder)."""
CHECKPOINT_EVENT: Final = "checkpoint"
"""A checkpoint is whole on disk: ``step``, ``bytes``, ``stall_s``, ``write_s``."""
CHECKPOINT_FAILED_EVENT: Final = "checkpoint_failed"
"""A checkpoint could not be written; the older ones stay: ``step``, ``reason``."""
PAUSED_EVENT: Final = "paused"
"""Several checkpoints in a row could not be written; the run waits until one can: ``step``, ``failures``, ``reason``."""
WENT_ON_EVENT: Final = "went_on"
"""A checkpoint was written after a pause, and the run continues: ``step``, ``paused_s``."""
DROPPED_EVENT: Final = "dropped"
"""Lines that never reached the file: ``lines``, ``reason``."""
UNREADABLE_EVENT: Final = "unreadable_value"
"""A reported value is not a number: ``name``, ``reason``; reported once per name."""
BAD_LOSS_EVENT: Final = "bad_loss"
"""A loss was NaN or infinite: ``step``, ``rank``, ``loss`` (text), ``stops``; reported once per run, by rank 0 only."""
SLOW_RANK_EVENT: Final = "slow_rank"
"""A rank takes longer than the others in each step: ``rank``, ``busy_s``, ``median_s``, ``step``."""
BALANCED_EVENT: Final = "balanced"
"""The work was redistributed by measured speed: ``step``, ``shares`` or ``stage_bounds`` (text)."""
LESS_MEMORY_EVENT: Final = "less_memory"
"""A step ran out of memory and was retried: ``step``, ``rank``, ``from_batch_size``, ``to_batch_size`` (micro-batches)."""
UNUSED_EVENT: Final = "unused_parameters"
"""Parameters got no gradient; the exchange accepts that from now on: ``step``, ``parameters`` (text: the first names)."""
PROFILE_EVENT: Final = "profile"
"""Steps were profiled on request: ``steps``, ``wall_s``, and of it ``compute_s``, ``copy_s``, ``exchange_s``, ``data_s`` (waiting
for data), ``idle_s``; ``device`` ("gpu" or "cpu"), ``trace`` (a file of the output folder)."""
PROFILE_FAILED_EVENT: Final = "profile_failed"
"""The requested profile could not be made: ``reason``."""
HANG_EVENT: Final = "hang"
"""No rank has made progress for too long: ``ranks`` that are stuck (text, numbers with commas), ``reason`` (a sentence)."""

Value = int | float | str | bool | None


def metric_line(step: int, time_s: float, values: Mapping[str, int | float]) -> bytes:
    return _line({STEP: step, TIME: round(time_s, 3), **values})


def heartbeat_line(time_s: float) -> bytes:
    return _line({HEARTBEAT: round(time_s, 3)})


def total_steps_line(total_steps: int) -> bytes:
    return _line({TOTAL_STEPS: total_steps})


def event_line(kind: str, fields: Mapping[str, Value]) -> bytes:
    return _line({EVENT: kind, TIME: round(time.time(), 3), **fields})


def _line(record: Mapping[str, Value]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode("ascii") + b"\n"
