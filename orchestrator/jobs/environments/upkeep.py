"""Removes what nobody needs any more of the built environments; a lock in the database makes them again."""

import logging
import secrets
import time
from datetime import datetime, timedelta
from pathlib import Path

from django.conf import settings
from django.db.models import Max

from orchestrator.jobs.environments.building import clear
from orchestrator.jobs.environments.bytecode import remove_unused
from orchestrator.models import FINAL_STATES, Job

logger = logging.getLogger(__name__)

KEPT = timedelta(days=30)  # after the last job of an environment ended
LEFT_OVER_S = 6 * 3600.0  # longer than any build takes


def sweep(now: datetime) -> None:
    """Remove environments that no job has used for long, and what killed builds left behind."""
    places, removed = settings.HOME.environments, False
    for place in _folders(places.root / "built"):
        if _is_old(place, now.timestamp() - KEPT.total_seconds()) and not is_needed(place.name, now):
            logger.info("Removing environment %s, which no job has used for %d days.", place.name, KEPT.days)
            aside = places.work / f"removed-{secrets.token_hex(4)}"
            aside.parent.mkdir(parents=True, exist_ok=True)
            removed = True
            place.rename(aside)  # so that readers see it whole or not at all
            clear(aside)
    for folder in (*_folders(places.work), *places.cache.glob(".tmp*")):
        if _is_old(folder, time.time() - LEFT_OVER_S):
            clear(folder)
    if removed:
        remove_unused(places.root)


def is_needed(key: str, now: datetime) -> bool:
    """Whether a job of this environment waits, runs, or ended lately."""
    jobs = Job.objects.filter(environment__key=key)
    if jobs.exclude(state__in=FINAL_STATES).exists():
        return True
    last = jobs.aggregate(at=Max("ended_at"))["at"]
    return last is not None and last > now - KEPT


def _folders(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []


def _is_old(folder: Path, before_s: float) -> bool:
    """Whether it was made before that time; no if its build ended just now and removed it."""
    try:
        return folder.stat().st_mtime < before_s
    except FileNotFoundError:
        return False
