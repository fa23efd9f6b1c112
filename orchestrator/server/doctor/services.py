"""Berth's own processes: an agent that holds its lock must work, else nobody acts on what jobs do (I15)."""

from collections.abc import Iterator

from django.conf import settings

from orchestrator.agent import lock
from orchestrator.server.doctor.finding import Finding


def check_agent() -> Iterator[Finding]:
    found = lock.silent_holder(settings.HOME)
    if found is None or found.process is None:
        return
    yield Finding(
        "I15",
        f"The agent (pid {found.process.pid}) holds its lock, but has not worked for more than "
        f"{lock.SILENT_AFTER_S:.0f} s; jobs neither start nor end.",
        "end it; `make up` starts another",
        found.end,
    )
