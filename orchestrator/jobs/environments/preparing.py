"""Builds what waiting jobs need, in threads of the worker or the agent, and lets the jobs go on or fail."""

import logging
import secrets
import threading
from collections.abc import Sequence
from datetime import datetime

from django.conf import settings
from django.db import InterfaceError, OperationalError
from django.utils import timezone

from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import preparations
from orchestrator.jobs.background import Background, locked
from orchestrator.jobs.environments import building, bytecode
from orchestrator.jobs.environments.failures import CannotPrepare
from orchestrator.jobs.environments.images import making as images
from orchestrator.jobs.environments.lock import Locked
from orchestrator.jobs.environments.uv import NoTool
from orchestrator.models import (
    WAITING_STATES,
    Environment,
    EnvironmentState,
    ExitKind,
)

logger = logging.getLogger(__name__)

AT_ONCE = 2  # builds in one process; each may use several processors
_compiling = threading.Lock()


def start(number: int) -> bool:
    """Build an environment in a thread of this process; False where one is at it already."""
    return _builds.start(number, then=_compile)


def _compile(number: int) -> None:
    """Compile the modules of an environment that has just been built; its jobs do not wait for that."""
    row = Environment.objects.filter(pk=number, state=EnvironmentState.READY).first()
    if row is not None and not row.interpreter and not row.image:  # which may have another version of Python
        with _compiling:
            bytecode.compile_modules(settings.HOME.environments.built(row.key))


def prepare(number: int) -> None:
    """Build an environment unless somebody is at it or it is ready; may be interrupted anywhere."""
    with locked(settings.HOME.environments.lock(number)) as mine:
        if not mine:
            return
        row = Environment.objects.filter(pk=number).first()
        if row is None or row.state not in {EnvironmentState.WAITING, EnvironmentState.BUILDING}:
            return
        preparations.change(row, state=EnvironmentState.BUILDING, started_at=timezone.now(), next_try_at=None)
        preparations.request_pass(row)
        try:
            built = _build(row)
        except CannotPrepare as error:
            _give_up(row, error)
        except NoTool as error:
            _give_up(row, CannotPrepare("tool", str(error)))
        except OSError as error:
            logger.exception("Preparing environment %s failed", number)
            _give_up(row, CannotPrepare("disk", error.strerror or str(error)))
        except (OperationalError, InterfaceError):  # the database is away; the sweep comes back to it
            raise
        except Exception as error:  # a row that stays at work would be tried for ever
            logger.exception("Preparing environment %s failed", number)
            _give_up(row, CannotPrepare("other", " ".join(str(error).split()) or type(error).__name__))
        else:
            row.own_torch = built.own_torch
            preparations.change(
                row,
                state=EnvironmentState.READY,
                key=built.key,
                lock=built.lock,
                own_torch=built.own_torch,
                packages=_names(built.packages),
                platform=_platform_now(row),
                ended_at=timezone.now(),
                why={},
            )
            preparations.request_pass(row)


_builds = Background("environment", prepare, at_once=AT_ONCE)


def _build(row: Environment) -> building.Built:
    places = settings.HOME.environments
    log = places.log(row.pk)
    folder = places.work / f"{row.pk}-{secrets.token_hex(4)}"
    for path in (log.parent, places.cache, folder):
        path.mkdir(parents=True, exist_ok=True)
    _clear_left_over(row.pk, but=folder.name)

    def tell(packages: Sequence[Locked]) -> None:
        preparations.change(row, packages=_names(packages))
        preparations.request_pass(row)

    try:
        if row.image:
            return images.make(row.image, row.lock, folder, log)
        return building.build(row.request, row.lock, folder, log, tell)
    finally:
        building.clear(folder)


def _clear_left_over(number: int, *, but: str) -> None:
    """Remove what a build left behind whose process was killed; we hold the lock, so none is at work."""
    for path in settings.HOME.environments.work.glob(f"{number}-*"):
        if path.name != but:
            building.clear(path)


def _names(packages: Sequence[Locked]) -> list[dict[str, str]]:
    return [{"name": each.name, "version": each.version} for each in packages]


def _give_up(row: Environment, error: CannotPrepare) -> None:
    """Try again later if only the network was missing, else fail what waits for it."""
    if row.image:
        why = fact(Ended.IMAGE_FAILED, cause=error.cause, image=row.image, message=error.words)
    else:
        why = fact(Ended.ENVIRONMENT_FAILED, cause=error.cause, origin=row.origin, message=error.words)
    if error.retriable and row.tries + 1 < preparations.MOST_TRIES:
        preparations.try_again_later(row, why, state=EnvironmentState.WAITING, tries=row.tries)
        return
    preparations.change(row, state=EnvironmentState.FAILED, why=why.as_json(), ended_at=timezone.now())
    fail_waiting(row)


def fail_waiting(row: Environment) -> None:
    """End the jobs that wait for an environment that cannot be made."""
    preparations.fail_jobs(row, row.jobs.all(), ExitKind.ENVIRONMENT)


def sweep(now: datetime) -> None:
    """Do what no worker did, or did not end; and find the jobs whose environment failed or is gone."""
    undone = Environment.objects.filter(state__in=[EnvironmentState.WAITING, EnvironmentState.BUILDING])
    for row in undone:
        if preparations.is_left_over(row, now):
            start(row.pk)
    waited_for = Environment.objects.filter(jobs__state__in=WAITING_STATES).distinct()
    for row in waited_for.filter(state__in=[EnvironmentState.FAILED, EnvironmentState.READY]):
        if row.state == EnvironmentState.FAILED:
            fail_waiting(row)
        elif not is_there(row):
            preparations.change(row, state=EnvironmentState.WAITING)


def _platform_now(row: Environment) -> str:
    return images.platform() if row.image else building.platform_now(row)


def is_there(row: Environment) -> bool:
    """Whether its files are, for this server's Python and torch."""
    try:
        platform = _platform_now(row)
    except CannotPrepare:  # which its next build will say
        return False
    return row.platform == platform and settings.HOME.environments.built(row.key).root.is_dir()
