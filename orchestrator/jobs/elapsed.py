"""For how long an attempt has run, by a clock that nobody can set (F60)."""

import os
import time

from django.conf import settings

from orchestrator.models import Attempt
from orchestrator.supervisor.processes import boot_id, from_record
from orchestrator.supervisor.records import read_record


def supervised_s(attempt: Attempt) -> float | None:
    """For how long its supervisor lives; None where there is none, or the machine was started anew."""
    record = read_record(settings.HOME.job(attempt.job_id).attempt(attempt.number).supervisor)
    supervisor = from_record(record)
    if supervisor is None or supervisor.boot_id != boot_id():
        return None
    began_s = supervisor.start_ticks / os.sysconf("SC_CLK_TCK")
    return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
