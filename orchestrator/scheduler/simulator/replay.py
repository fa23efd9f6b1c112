"""The event loop of a replay: it ends, queues and starts jobs as ``decide`` says."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush
from random import Random
from typing import Literal, TypedDict

from orchestrator.scheduler.core import (
    ANYWHERE,
    WHOLE_GPUS,
    BackfillReservation,
    Constraints,
    Decisions,
    Device,
    Lengths,
    OwnerUsage,
    Policy,
    QueuedJob,
    RunningJob,
    Scaling,
    ShapeCount,
    Share,
    State,
    Wait,
    decide,
    learn_lengths,
    learn_start_errors,
)
from orchestrator.scheduler.simulator.trace import POOL, TraceJob, claim_bytes

Who = Literal["all", "half", "none"]
Limits = Literal["given", "equal", "shuffled"]
REPORTS_AFTER_S = 120.0  # from then on a job's own steps tell how long it takes
_REMEMBERED = 400  # finished jobs that run times and errors are learned from
_EPS = 1e-6
_MOST_PASSES = 50  # at one moment; two are usual: stop, then start
_HALF_LIFE_S = 7 * 86400.0
_SERIAL = (2.0, 18.0)  # of the beta distribution of serial shares: 0.1 in the mean
_SERIAL_SIGMA = 0.5  # of the logarithm of the error of what the scheduler believes of them


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What the scheduler knows about the jobs, and what stopping costs."""

    progress: Who = "all"
    limits: Limits = "given"
    eta_sigma: float = 0.0  # of the logarithm of the remaining time that jobs report
    restart_s: float = 60.0
    priorities: bool = False  # use the trace's
    preemptible: bool = True
    predict: bool = False  # ask for start estimates and check them
    elastic: bool = (
        False  # the scheduler chooses and changes the numbers of devices; jobs follow Amdahl's law
    )
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Segment:
    """A job on its devices without a break."""

    job_id: str
    start_s: float
    end_s: float
    device_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CheckedEstimate:
    """A start estimate given to a waiting job, and when the job really started."""

    job_id: str
    made_s: float
    earliest_s: float
    latest_s: float
    started_s: float

    @property
    def held(self) -> bool:
        return self.earliest_s - 1 <= self.started_s <= self.latest_s + 1


@dataclass(slots=True)
class ReplayOutcome:
    segments: list[Segment] = field(default_factory=list)
    restarts: int = 0
    lost_gpu_s: float = 0.0
    passes: int = 0
    estimates: list[CheckedEstimate] = field(default_factory=list)


class TraceFacts(TypedDict):
    """The fields of a scheduler's job that come from the trace."""

    id: str
    owner: str
    pool: str
    constraints: Constraints
    memory_bytes: int | None
    priority: int
    submitted: float
    time_limit_s: float | None
    restart_cost_s: float
    preemptible: bool
    scaling: Scaling | None


class VisibleFacts(TypedDict, total=False):
    """The fields of a scheduler's job that change while it runs."""

    gpus: int
    ran_s: float
    attained_gpu_s: float
    checkpoint_age_s: float
    progress_done: float
    progress_total: float
    step_s: float


@dataclass(slots=True)
class _Life:
    """The truth about a job; ``facts`` are what the scheduler always knows."""

    job: TraceJob
    facts: TraceFacts
    reports: bool
    noise: float
    left_s: float  # on the devices that the trace gives it
    gpus: int
    serial: float = 0.0  # the true share of its work that more devices do not shorten
    attained_gpu_s: float = 0.0
    restart_s: float = 0.0  # paid when it starts next
    ran_s: float = 0.0
    started: float = 0.0  # of the current segment, while there is one
    segments: int = 0  # started so far
    shares: tuple[Share, ...] = ()
    estimate: tuple[float, Wait] | None = None  # when it was made, and the answer with the range

    @property
    def pace(self) -> float:
        """Its speed compared with the devices that the trace gives it."""
        if self.gpus == self.job.gpus:
            return 1.0
        truth = Scaling(1, self.gpus, self.serial)
        return truth.speed(self.gpus) / truth.speed(self.job.gpus)


def replay(
    jobs: Sequence[TraceJob], devices: tuple[Device, ...], policy: Policy, knowledge: Knowledge
) -> ReplayOutcome:
    """Run a trace to its end.  ``duration_s`` only ends jobs and makes their reports."""
    return _Replay(jobs, devices, policy, knowledge).run()


class _Replay:
    def __init__(
        self, jobs: Sequence[TraceJob], devices: tuple[Device, ...], policy: Policy, knowledge: Knowledge
    ) -> None:
        self.devices = devices
        self.policy = replace(policy, predicted_jobs=0, restart_cost_s=knowledge.restart_s)
        self.asking = replace(self.policy, predicted_jobs=policy.predicted_jobs)
        self.knowledge = knowledge
        self.now = 0.0
        self.outcome = ReplayOutcome()
        self.lives = _lives(jobs, devices, knowledge)
        self.arrivals = deque(self.lives.values())
        self.queued: dict[str, QueuedJob] = {}
        self.running: dict[str, _Life] = {}
        self.ends: list[tuple[float, str, int]] = []  # time, job and number of the segment
        self.reservations: tuple[BackfillReservation, ...] = ()
        self.finished: deque[tuple[float, float | None]] = deque(maxlen=_REMEMBERED)
        self.new_finished = 0
        self.lengths = Lengths()
        self.errors: deque[float] = deque(maxlen=_REMEMBERED)
        self.start_errors: tuple[float, float] | None = None
        self.usage: dict[str, float] = {}
        self.usage_at = 0.0
        self.unestimated: set[str] = set()
        self.shapes: Counter[tuple[int, int | None]] = Counter()
        self.wake: float | None = None

    def run(self) -> ReplayOutcome:
        while self.arrivals or self.running:
            self.now = self._next_moment()
            self._end_jobs()
            while self.arrivals and self.arrivals[0].job.arrival_s <= self.now + _EPS:
                life = self.arrivals.popleft()
                self.shapes[life.job.gpus, life.facts["memory_bytes"]] += 1
                self._enqueue(life)
            self.wake = None
            if self.queued or self.knowledge.elastic:
                self._pass()
        if self.queued:
            raise ValueError(f"{len(self.queued)} jobs never fit this pool: {sorted(self.queued)[:5]}.")
        return self.outcome

    def _next_moment(self) -> float:
        while self.ends and not self._current(self.ends[0]):
            heappop(self.ends)
        moments = [self.ends[0][0]] if self.ends else []
        if self.arrivals:
            moments.append(self.arrivals[0].job.arrival_s)
        if self.wake is not None:
            moments.append(self.wake)
        return max(self.now, min(moments))

    def _current(self, end: tuple[float, str, int]) -> bool:
        life = self.running.get(end[1])
        return life is not None and life.segments == end[2]

    def _end_jobs(self) -> None:
        while self.ends and self.ends[0][0] <= self.now + _EPS:
            end = heappop(self.ends)
            if self._current(end):
                life = self._leave(end[1])
                self.finished.append((life.ran_s, life.facts["time_limit_s"]))
                self.new_finished += 1
        if self.new_finished >= max(5, len(self.finished) // 10):
            self.lengths, self.new_finished = learn_lengths(self.finished), 0

    def _leave(self, job_id: str) -> _Life:
        life = self.running.pop(job_id)
        ran_s = self.now - life.started
        life.ran_s += ran_s
        life.attained_gpu_s += ran_s * _units(life)
        life.left_s -= ran_s * life.pace
        ids = tuple(share.device_id for share in life.shares)
        self.outcome.segments.append(Segment(job_id, life.started, self.now, ids))
        if self.policy.fair_share_ratio is not None:
            self._decay()
            user = life.job.user
            self.usage[user] = self.usage.get(user, 0.0) + ran_s * _units(life)
        return life

    def _decay(self) -> None:
        factor = 0.5 ** ((self.now - self.usage_at) / _HALF_LIFE_S)
        self.usage = {user: used * factor for user, used in self.usage.items()}
        self.usage_at = self.now

    def _enqueue(self, life: _Life) -> None:
        if self.policy.fair_share_ratio is not None:
            self.usage.setdefault(life.job.user, 0.0)
        self.queued[life.job.id] = QueuedJob(**life.facts, **_seen(life, 0.0))
        if self.knowledge.predict:
            self.unestimated.add(life.job.id)

    def _pass(self) -> None:
        for _ in range(_MOST_PASSES):
            policy = self.asking if self.unestimated else self.policy
            decisions = decide(self._state(), policy, tell=bool(self.unestimated))
            self.outcome.passes += 1
            self._apply(decisions)
            if not decisions.preempt and not decisions.resize:
                break
        self.wake = decisions.next_wake

    def _state(self) -> State:
        return State(
            now=self.now,
            devices=self.devices,
            queued=tuple(self.queued.values()),
            running=tuple([self._as_seen(life) for life in self.running.values()]),
            usage=tuple(OwnerUsage(owner=user, decayed_gpu_s=used) for user, used in self.usage.items()),
            reservations=self.reservations,
            recent_shapes=tuple([ShapeCount(*shape, count) for shape, count in self.shapes.items()]),
            lengths=self.lengths,
            start_errors=self.start_errors,
        )

    def _as_seen(self, life: _Life) -> RunningJob:
        ran_s = self.now - life.started
        return RunningJob(**life.facts, **_seen(life, ran_s), shares=life.shares, started=life.started)

    def _apply(self, decisions: Decisions) -> None:
        for start in decisions.start:
            del self.queued[start.job_id]
            self._start(self.lives[start.job_id], start.devices)
        stopped = [one.job_id for one in decisions.preempt] + [one.job_id for one in decisions.resize]
        for job_id in stopped:
            life = self._leave(job_id)
            life.restart_s = self.knowledge.restart_s
            life.left_s += life.restart_s * life.pace
            self.outcome.restarts += 1
            self.outcome.lost_gpu_s += self.knowledge.restart_s * _units(life)
            self._enqueue(life)
        self.reservations = tuple(
            BackfillReservation(reserve.job_id, reserve.device_ids, self.now) for reserve in decisions.reserve
        )
        if self.unestimated:
            self._note_estimates(decisions)

    def _start(self, life: _Life, shares: tuple[Share, ...]) -> None:
        before, life.gpus = life.pace, len(shares)
        life.left_s += life.restart_s * (life.pace - before)  # the time is lost on the new number of devices
        life.started, life.shares, life.restart_s = self.now, shares, 0.0
        self.running[life.job.id] = life
        life.segments += 1
        heappush(self.ends, (self.now + life.left_s / life.pace, life.job.id, life.segments))
        if life.estimate is not None:
            self._check_estimate(life, *life.estimate)
        self.unestimated.discard(life.job.id)

    def _note_estimates(self, decisions: Decisions) -> None:
        for wait in decisions.wait:
            if (
                wait.job_id in self.unestimated
                and wait.start_earliest is not None
                and wait.start_latest is not None
            ):
                self.unestimated.discard(wait.job_id)
                self.lives[wait.job_id].estimate = (self.now, wait)

    def _check_estimate(self, life: _Life, made: float, wait: Wait) -> None:
        life.estimate = None
        if self.now <= made + _EPS or wait.start_earliest is None or wait.start_latest is None:
            return  # its devices were cleared at once, so there was no wait
        self.outcome.estimates.append(
            CheckedEstimate(life.job.id, made, wait.start_earliest, wait.start_latest, self.now)
        )
        if wait.foreseen_s is not None:
            self.errors.append((self.now - made) / wait.foreseen_s)
        if len(self.outcome.estimates) % 5 == 0:
            self.start_errors = learn_start_errors(self.errors)


def _lives(jobs: Sequence[TraceJob], devices: Sequence[Device], knowledge: Knowledge) -> dict[str, _Life]:
    limits = _limits(jobs, knowledge)
    device_bytes = max(device.total_bytes for device in devices)
    most = max(Counter(device.node for device in devices).values())
    random = Random(knowledge.seed)  # noqa: S311 -- a simulation, not a secret
    part = {"all": 1.0, "half": 0.5, "none": 0.0}[knowledge.progress]
    dice = Random(f"serial {knowledge.seed}")  # noqa: S311 -- a simulation, not a secret
    lives = {}
    for job, limit_s in zip(jobs, limits, strict=True):
        facts: TraceFacts = {
            "id": job.id,
            "owner": job.user,
            "pool": POOL,
            "constraints": ANYWHERE if job.gpus == 1 and job.gpu_milli < 1000 else WHOLE_GPUS,
            "memory_bytes": claim_bytes(job, device_bytes),
            "priority": job.priority if knowledge.priorities else 50,
            "submitted": job.arrival_s,
            "time_limit_s": limit_s,
            "restart_cost_s": knowledge.restart_s,
            "preemptible": knowledge.preemptible,
            "scaling": None,
        }
        serial = 0.0
        if knowledge.elastic and job.gpu_milli >= 1000:
            serial = dice.betavariate(*_SERIAL)
            facts["scaling"] = Scaling(1, most, dice.lognormvariate(0.0, _SERIAL_SIGMA) * serial)
        reports, noise = random.random() < part, random.lognormvariate(0.0, knowledge.eta_sigma)
        lives[job.id] = _Life(job, facts, reports, noise, job.duration_s, job.gpus, serial)
    return lives


def _limits(jobs: Sequence[TraceJob], knowledge: Knowledge) -> list[float | None]:
    given = [job.limit_s for job in jobs]
    if knowledge.limits == "equal":
        largest = max((limit for limit in given if limit is not None), default=None)
        return [largest] * len(given)
    if knowledge.limits == "shuffled":
        Random(knowledge.seed).shuffle(given)  # noqa: S311 -- a simulation, not a secret
    return given


def _units(life: _Life) -> float:
    return life.gpus * life.job.gpu_milli / 1000


def _seen(life: _Life, for_s: float) -> VisibleFacts:
    """What the scheduler sees of a job that has run ``for_s`` now: time, and steps if the job reports them."""
    ran_s, left_s = life.ran_s + for_s, life.left_s - for_s * life.pace
    visible: VisibleFacts = {
        "gpus": life.gpus,
        "ran_s": ran_s,
        "attained_gpu_s": life.attained_gpu_s + for_s * _units(life),
    }
    if ran_s > 0:
        visible["checkpoint_age_s"] = 0.0  # stopping writes one
    if life.reports and ran_s >= REPORTS_AFTER_S - _EPS:
        done = max(0.0, life.job.duration_s - left_s)
        visible |= {
            "progress_done": done,
            "progress_total": done + left_s * life.noise,
            "step_s": 1.0 / life.pace,
        }
    return visible
