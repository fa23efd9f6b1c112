"""Watches a server through REST and /proc alone, and notes what must never be seen."""

import re
import threading
import time
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.chaos.load import GRACE_S, TRIALS, Load
from tests.system.nodes import NodeServer
from tests.system.server import FINAL, Server, processes
from tests.system.trainings import INTERVAL

LOOK_EVERY_S = 0.4
DOUBLED_AFTER_S = 1.0  # two looks at one instant are never quite one instant
ORPHANED_AFTER_S = GRACE_S + 10
GHOST_AFTER_S = 10.0
FENCED_WITHIN_S = 15.0  # another server that stands still
PROMISED_REFUSALS = frozenset({503, 507})  # while the database or the disk is not there


@dataclass
class Findings:
    """What was seen, a line each; empty lists are what everybody wants."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    ghosts: list[str] = field(default_factory=list)
    server_errors: list[str] = field(default_factory=list)
    intruders: list[str] = field(default_factory=list)
    rewound: list[str] = field(default_factory=list)  # more steps trained twice than one interval
    nodes: list[str] = field(
        default_factory=list
    )  # that got jobs while they stood still, or did not come back

    def counts(self) -> dict[str, int]:
        return {name: len(lines) for name, lines in asdict(self).items()}

    def lines(self) -> list[str]:
        return [f"{name}: {line}" for name, lines in asdict(self).items() for line in lines]


class Witness:
    """Looks a few times a second until it is stopped."""

    def __init__(self, server: Server, load: Load, nodes: Sequence[NodeServer] = ()) -> None:
        """
        Args:
            nodes: other servers, whose jobs are looked at, too.
        """
        self.findings = Findings()
        self.jobs: dict[str, dict[str, Any]] = {}  # as the newest answer that has them shows them
        self.looks = 0  # that were answered
        self.running: dict[str, set[int]] = {}  # attempts with processes, by job
        self.here: set[str] = set()  # those of them on the first server
        self._server, self._load, self._nodes = server, load, nodes
        # A server that stands still is found out after fifteen seconds.
        self._ghost_after_s = GHOST_AFTER_S + (FENCED_WITHIN_S if nodes else 0)
        self._since: dict[Hashable, float] = {}
        self._told: set[Hashable] = set()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="witness", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join(30)

    def forgive(self) -> None:
        """A fault ends now: what could not be put right while it lasted has its time from here on."""
        self._since = {key: time.monotonic() for key in self._since}

    def note_status(self, status: int, what: str) -> None:
        if status >= 500 and status not in PROMISED_REFUSALS:
            self.findings.server_errors.append(f"{status} for {what}")

    def _run(self) -> None:
        while not self._stopping.wait(LOOK_EVERY_S):
            try:
                self.look()
            except OSError:
                continue  # it is down just now

    def look(self) -> None:
        """One look at processes and jobs; OSError where the server does not answer."""
        self.here = set(find_attempts([self._server.home]))
        self.running = find_attempts(self._folders())
        for job, attempts in self.running.items():
            self._mind(len(attempts) > 1, DOUBLED_AFTER_S, "doubled", job, f"attempts {sorted(attempts)} run")
        status, answer = self._server.call("GET", "/jobs?limit=500", timeout_s=8)
        self.note_status(status, "GET /jobs")
        if status != 200:
            return
        self.jobs |= {
            each["id"]: each for each in answer["results"]
        }  # a long campaign has more than one page
        self._load.unfinished = {job for job, each in self.jobs.items() if each["state"] not in FINAL}
        self._look_at_sweeps()
        supervised = self._supervised()
        for job, each in self.jobs.items():
            state, processes_left = each["state"], bool(self.running.get(job))
            idle = state in FINAL or state in {"queued", "held", "backoff"}
            self._mind(
                idle and processes_left, ORPHANED_AFTER_S, "orphans", job, f"{state}, but its processes run"
            )
            gone = state == "running" and not processes_left and job not in supervised
            self._mind(gone, self._ghost_after_s, "ghosts", job, "shown as running, but no process is there")
        self._look_at_devices()
        self.looks += 1

    def _look_at_sweeps(self) -> None:
        status, answer = self._server.call("GET", "/sweeps?limit=500", timeout_s=8)
        self.note_status(status, "GET /sweeps")
        if status == 200:
            open_states = {"running", "paused"}
            self._load.open_sweeps = {one["id"] for one in answer["results"] if one["state"] in open_states}

    def _look_at_devices(self) -> None:
        status, answer = self._server.call("GET", "/devices", timeout_s=8)
        self.note_status(status, "GET /devices")
        held = set()
        for device in answer["results"] if status == 200 else ():
            for holder in device["holders"]:
                job = str(holder["job"])
                ended = job in self.jobs and self.jobs[job]["state"] in FINAL
                held.add((device["id"], job))
                what = f"{device['label']} is held for it after its end"
                self._mind(ended, self._ghost_after_s, "ghosts", job, what)

    def _supervised(self) -> set[str]:
        marks = [f"{folder}/jobs/" for folder in self._folders()]
        commands = [command for _, command, _ in processes() if "supervisor/__main__.py" in command]
        return {
            command.partition(mark)[2].partition("/")[0]
            for command in commands
            for mark in marks
            if mark in command
        }

    def _folders(self) -> list[Path]:
        """The folders whose ``jobs`` hold those of each server."""
        return [self._server.home, *(node.state for node in self._nodes)]

    def _mind(self, seen: bool, after_s: float, kind: str, job: str, what: str) -> None:
        """Note something once it has been seen for longer than it may last."""
        key = (kind, job, what)
        if not seen:
            self._since.pop(key, None)
            return
        since = self._since.setdefault(key, time.monotonic())
        if time.monotonic() - since > after_s and key not in self._told:
            self._told.add(key)
            getattr(self.findings, kind).append(f"{job}: {what} for {time.monotonic() - since:.1f} s")

    # Recovery

    def steps(self) -> dict[str, int]:
        """The newest step of each job that runs, as REST shows it."""
        return {job: step for job, step in self.reached().items() if self.jobs[job]["state"] == "running"}

    def reached(self) -> dict[str, int]:
        """The newest step of every job."""
        return {job: int((each.get("progress") or {}).get("step") or 0) for job, each in self.jobs.items()}

    def got_on(self, before: dict[str, int]) -> bool:
        """Whether every job that ran ``before`` has trained a new step since, or is over."""
        reached = self.reached()
        # A sweep pauses a trial at its rung, and what is held waits for nobody's recovery.
        over = {*FINAL, "held"}
        return all(self.jobs[job]["state"] in over or reached[job] > step for job, step in before.items())

    # At the end

    def judge_promises(self) -> None:
        """Compare every acknowledged submit with what became of it."""
        self.jobs = {each["id"]: each for each in self._all_jobs()}
        self.findings.doubled += ["a repeated submit made another job"] * self._load.doubled_submits
        for job, promise in self._load.promises.items():
            status, shown = self._server.call("GET", f"/jobs/{job}")
            if status != 200:
                self.findings.lost.append(f"{job}: {promise.kind} was acknowledged, now {status}")
            elif shown["state"] not in promise.ends:
                self.findings.lost.append(f"{job}: {promise.kind} is {shown['state']}: {shown['reason']}")
            elif promise.total:
                self._judge_steps(job, promise.total, shown)
        for sweep in self._load.sweeps:
            self._judge_sweep(sweep)
        for job, attempts in find_attempts(self._folders()).items():
            self.findings.orphans.append(f"{job}: attempts {sorted(attempts)} still run at the end")

    def _all_jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        query = "limit=500"
        while query:
            page = self._server.get(f"/jobs?{query}")
            found += page["results"]
            query = urlsplit(page["next"] or "").query
        return found

    def _judge_sweep(self, sweep: str) -> None:
        """Every trial of the budget was there once, and told each rung once."""
        status, shown = self._server.call("GET", f"/sweeps/{sweep}")
        if status != 200 or shown["state"] != "ended":
            found = f"{shown['state']}: {shown['reason']}" if status == 200 else str(status)
            self.findings.lost.append(f"sweep {sweep} is {found}")
            return
        trials = self._server.get(f"/sweeps/{sweep}/trials")["results"]
        kept = [trial for trial in trials if not trial["lost"]]
        if [trial["number"] for trial in trials] != list(range(len(trials))) or len(kept) != TRIALS:
            numbers = [trial["number"] for trial in kept]
            self.findings.lost.append(f"sweep {sweep} has the trials {numbers} of {TRIALS}")
        named = [job for job in self.jobs.values() if job["name"].startswith(f"{shown['name']} [")]
        if len(named) != len(trials):
            self.findings.doubled.append(f"sweep {sweep} has {len(trials)} trials and {len(named)} jobs")
        for trial in trials:
            told = [report["rung"] for report in trial["reports"]]
            if told != shown["rungs"][: len(told)]:
                self.findings.doubled.append(f"trial {trial['number']} of sweep {sweep} told {told}")
            if trial["state"] == "ended" and told != shown["rungs"]:
                self.findings.lost.append(f"trial {trial['number']} of sweep {sweep} told {told} and ended")

    def _judge_steps(self, job: str, total: int, shown: dict[str, Any]) -> None:
        if (step := (shown.get("progress") or {}).get("step")) != total:
            self.findings.lost.append(f"{job}: succeeded at step {step} of {total}")
        if any(reason.startswith("Fell back") for reason in self._server.reasons(job)):
            return  # a damaged checkpoint costs more than one interval, and its history says so
        reached = 0
        for attempt in self._server.attempts(job):
            log = self._server.log(job, attempt["number"])
            if (began := re.search(r"^began at (\d+)", log, re.MULTILINE)) is None:
                continue
            if reached - int(began[1]) > INTERVAL:
                what = f"attempt {attempt['number']} began at {began[1]}, {reached} had been reached"
                self.findings.rewound.append(f"{job}: {what}")
            reached = max([reached, *(int(step) for step in re.findall(r"^step (\d+)", log, re.MULTILINE))])


def find_attempts(folders: Sequence[Path]) -> dict[str, set[int]]:
    """The attempts of each job that have living processes.

    Args:
        folders: of the servers; their jobs are below ``jobs``.
    """
    found: dict[str, set[int]] = defaultdict(set)
    marks = [f"BERTH_ATTEMPT_FOLDER={folder}/jobs/" for folder in folders]
    for _, _, environ in processes():
        for entry in environ:
            for mark in marks:
                job, _, number = entry.removeprefix(mark).partition("/attempts/")
                if entry.startswith(mark) and number.isdigit():
                    found[job].add(int(number))
    return dict(found)
