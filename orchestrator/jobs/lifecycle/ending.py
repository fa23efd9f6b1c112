"""How an attempt ended, as its exit record (or the lack of one) tells."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypedDict

from orchestrator.facts.record import Fact, FactRecord
from orchestrator.jobs import training_plans
from orchestrator.models import ExitKind
from orchestrator.supervisor.verdict.ending import RankRow
from orchestrator.supervisor.verdict.rules import FirstFailure

PORT_FREE_FOR_S = 60.0  # a run of this length shows that its port was free


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: its kind decides what comes next, its fact is for people."""

    kind: ExitKind
    how: Fact
    at: datetime
    run_s: float = 0
    ranks: list[RankRow] = field(default_factory=list)
    first_failure: FirstFailure | None = None
    log_tail: str = ""
    peak_memory_bytes: int | None = None
    dropped_log_bytes: int = 0
    progressed: bool = False  # a newer checkpoint verifies than the one it started from
    retriable: bool = True  # False where trying again cannot help
    no_room: bool = False  # the disk was full before it began: nothing the job could have done
    crowded_out: bool = False  # others' processes held the memory that it had claimed
    not_resumable: bool = False  # a trainer failed on the checkpoint that Berth gave it
    claim_bytes: int | None = None  # with which a job that outgrew its claim is tried again
    lighter: training_plans.Lighter | None = None  # the plan with which a model that ran out of memory is

    @property
    def port_taken(self) -> bool:
        """Whether another program had the script's port: the retry needs time, not the same devices."""
        return "port" in self.how.facts

    @property
    def gives_retries_back(self) -> bool:
        """Whether the attempt's progress resets the count of failures.

        A script that takes its own port twice dies again at the same place, after a few new steps.
        """
        return self.progressed and (not self.port_taken or self.run_s >= PORT_FREE_FOR_S)


class ColumnsOfEnd(TypedDict, total=False):
    """Columns of the job's row that change with every end, and with what it says of the next attempt."""

    exit_kind: ExitKind
    ending: FactRecord
    seconds_run: float
    attained_gpu_s: float
    now: datetime  # of the move itself
    claim_floor_bytes: int
    next_plan: Mapping[str, object]
