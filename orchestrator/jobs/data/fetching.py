"""Fetches what waiting jobs need, in threads of the worker or the agent, and lets the jobs go on or fail."""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone

from orchestrator.exceptions import OrchestratorError
from orchestrator.facts.endings import Ended
from orchestrator.facts.record import fact
from orchestrator.jobs import fetches, preparations
from orchestrator.jobs.background import Background, locked
from orchestrator.jobs.data import eviction, program
from orchestrator.jobs.data.causes import CannotFetch
from orchestrator.jobs.data.transfer import DATA, JOURNAL, MANIFEST
from orchestrator.models import WAITING_STATES, ExitKind, Fetch, FetchState
from orchestrator.spec.remote_data import RemoteData, without_query
from orchestrator.store.files.durable import sync_tree

logger = logging.getLogger(__name__)

AT_ONCE = 3  # fetches in one process


class NotWanted(Exception):
    """No job waits for this fetch any more."""


def start(number: int) -> bool:
    """Fetch in a thread of this process; False where one is at it already."""
    return _fetches.start(number)


def fetch(number: int) -> None:
    """Fetch unless somebody is at it or it is there; may be interrupted anywhere, and goes on where it was."""
    row = Fetch.objects.select_related("owner").filter(pk=number).first()
    if row is None:
        return
    with locked(settings.HOME.fetched.lock(row.address_sha256)) as mine:
        if not mine:  # an equal one, or a private one of another person
            return
        row.refresh_from_db()
        if row.state not in {FetchState.WAITING, FetchState.FETCHING}:
            return
        preparations.change(row, state=FetchState.FETCHING, started_at=timezone.now(), next_try_at=None)
        preparations.request_pass(row)
        before_bytes = row.done_bytes
        try:
            _fetch(row)
        except NotWanted:
            preparations.change(row, state=FetchState.FAILED, ended_at=timezone.now())
        except CannotFetch as error:
            _give_up(row, error, gained=row.done_bytes > before_bytes)
        except OrchestratorError as error:  # a secret is lost, or no package can be installed
            _give_up(row, CannotFetch("tool", str(error)))
        except OSError as error:
            logger.exception("Fetch %s failed", number)
            _give_up(row, CannotFetch("disk", error.strerror or str(error)))


_fetches = Background("fetch", fetch, at_once=AT_ONCE)


def _fetch(row: Fetch) -> None:
    remote = RemoteData("data", row.address, row.sha256, row.unpack)
    folder = settings.HOME.fetched.work / row.address_sha256
    log = settings.HOME.fetched.log(row.pk)
    for path in (folder, log.parent, settings.HOME.fetched.trees):
        path.mkdir(parents=True, exist_ok=True)
    known = fetches.credentials(row.owner, remote.scheme)
    request = {
        "address": row.address,
        "sha256": row.sha256,
        "unpack": row.unpack,
        "folder": str(folder),
        "earlier": _earlier(row),
        "credentials": {name: value for name, value in known.items() if name not in {"AWS_ENDPOINT_URL"}},
        "allowed": fetches.allowed_hosts(),
        "most_bytes": eviction.room_bytes(),
    }
    watch = _Watch(row)
    program.run(remote.scheme, request, fetches.environment(known), folder, log, watch.hear)
    _keep(row, is_file=watch.is_file)


def _earlier(row: Fetch) -> str | None:
    """The files of the last fetch of the same address, of which those are taken that did not change."""
    rows = Fetch.objects.filter(address_sha256=row.address_sha256, state=FetchState.READY).exclude(key="")
    rows = rows.filter(is_private=False) | rows.filter(owner=row.owner)
    last = rows.exclude(pk=row.pk).order_by("-pk").first()
    return None if last is None else str(settings.HOME.fetched.tree(last.key))


@dataclass(slots=True)
class _Watch:
    """Writes the news of the fetching program to the row."""

    row: Fetch
    is_file: bool = False

    def hear(self, news: Mapping[str, Any]) -> None:
        """Take a line of the program.

        Raises:
            CannotFetch: the program gave up.
            NotWanted: its jobs were cancelled.
        """
        row = self.row
        if "cause" in news:
            raise CannotFetch(news["cause"], news["words"])
        if "private" in news:
            room = eviction.make_room(news["total_bytes"] or 0)
            if not room:
                raise CannotFetch("quota", "The server's cache of data is full of what other jobs use now.")
            preparations.change(
                row, total_bytes=news["total_bytes"], files=news["files"], is_private=news["private"]
            )
            if row.is_private:
                part_from_others(row)
            preparations.request_pass(row)
        if "done_bytes" in news:
            preparations.change(row, done_bytes=news["done_bytes"])
        self.is_file = news.get("is_file", self.is_file)
        if not row.jobs.filter(state__in=WAITING_STATES).exists():
            raise NotWanted


def part_from_others(row: Fetch) -> None:
    """Give each person a fetch of their own, with their own credentials, of what only the row's owner may read."""
    remote = RemoteData("data", row.address, row.sha256, row.unpack)
    for job in row.jobs.exclude(owner_id=row.owner_id).select_related("owner"):
        with transaction.atomic():
            row.jobs.remove(job)
            fetches.attach(fetches.row_for(remote, job.owner, timezone.now(), but=[row.pk]), [job])


def _keep(row: Fetch, *, is_file: bool) -> None:
    """Move what was fetched into its place, named by its content; equal content is there once."""
    folder = settings.HOME.fetched.work / row.address_sha256
    entries = json.loads((folder / MANIFEST).read_text())
    facts = json.dumps([[entry["path"], entry["sha256"]] for entry in entries])
    key = hashlib.sha256(facts.encode()).hexdigest()[:40]
    place = settings.HOME.fetched.tree(key)
    preparations.change(row, key=key)  # first: what no row names may be removed
    if not place.is_dir():
        files = [folder / DATA / entry["path"] for entry in entries]
        for path in files:
            path.chmod(0o444)
        (folder / JOURNAL).unlink(missing_ok=True)
        sync_tree(folder / DATA, files)
        folder.rename(place)
    else:
        (folder / MANIFEST).replace(place / MANIFEST)  # by it the next fetch knows what has not changed
        eviction.remove(folder)
        os.utime(place)
    size_bytes = sum(entry["size_bytes"] for entry in entries)
    path = f"{DATA}/{entries[0]['path']}" if is_file else DATA
    facts_now = {"total_bytes": size_bytes, "done_bytes": size_bytes, "files": len(entries), "path": path}
    preparations.change(row, state=FetchState.READY, why={}, ended_at=timezone.now(), **facts_now)
    preparations.request_pass(row)


def _give_up(row: Fetch, error: CannotFetch, *, gained: bool = False) -> None:
    """Try again later if only the network was missing, else fail what waits for it."""
    why = fact(Ended.DATA_FAILED, cause=error.cause, address=without_query(row.address), message=str(error))
    tries = 0 if gained else row.tries
    if error.cause == "network" and tries + 1 < preparations.MOST_TRIES:
        preparations.try_again_later(row, why, state=FetchState.WAITING, tries=tries)
        return
    preparations.change(row, state=FetchState.FAILED, why=why.as_json(), ended_at=timezone.now())
    fail_waiting(row)


def fail_waiting(row: Fetch) -> None:
    """End the jobs that wait for data that cannot be had."""
    preparations.fail_jobs(row, row.jobs.all(), ExitKind.DATA)


def sweep(now: datetime) -> None:
    """Do what no worker did, or did not end; and find the jobs whose data failed or is gone."""
    undone = Fetch.objects.filter(state__in=[FetchState.WAITING, FetchState.FETCHING])
    for row in undone.filter(jobs__state__in=WAITING_STATES).distinct():
        if preparations.is_left_over(row, now):
            start(row.pk)
    waited_for = Fetch.objects.filter(jobs__state__in=WAITING_STATES).distinct()
    for row in waited_for.filter(state__in=[FetchState.FAILED, FetchState.READY]):
        if row.state == FetchState.FAILED:
            fail_waiting(row)
        elif not settings.HOME.fetched.tree(row.key).is_dir():
            preparations.change(row, state=FetchState.WAITING)
