"""What a pool allows sessions: devices, time, memory where none is named, and how many one person may have."""

from django.contrib.auth.models import AbstractBaseUser

from berth.shared import words
from orchestrator.exceptions import Conflict, Impossible, Sentence, count_devices
from orchestrator.models import Job, JobState, Pool
from orchestrator.spec.job_spec import JobSpec


def fill(spec: JobSpec) -> JobSpec:
    """The session with its pool's time limit and memory where it names none; other jobs unchanged."""
    if not spec.is_session:
        return spec
    pool = Pool.objects.get(pk=spec.pool)
    filled: dict[str, float] = {}
    if spec.time_limit_s is None and pool.session_most_s:
        filled["time_limit_s"] = float(pool.session_most_s)
    if spec.gpu_memory_gib is None and spec.gpus > 0 and pool.session_memory_gib:
        filled["gpu_memory_gib"] = pool.session_memory_gib
    return spec.model_copy(update=filled)


def check(spec: JobSpec, pool: Pool) -> None:
    """Check what a session asks for against its pool; other jobs pass.

    Raises:
        Impossible: it asks for more.
    """
    if not spec.is_session:
        return
    most, most_s = pool.session_most_devices, pool.session_most_s
    if most and spec.gpus > most:
        sentence = Sentence(
            "A session in pool {pool} has at most {devices}.",
            pool=pool.name,
            devices=count_devices(most),
        )
        raise Impossible(sentence, fields={"gpus": [sentence]})
    if most_s and spec.time_limit_s is not None and spec.time_limit_s > most_s:
        sentence = Sentence(
            "A session in pool {pool} ends after {duration} at the latest.",
            pool=pool.name,
            duration=words.duration(most_s),
        )
        raise Impossible(sentence, fields={"time_limit_s": [sentence]})


def check_count(user: AbstractBaseUser, pool: Pool) -> None:
    """Check that a person may have one more session in a pool; those that wait for being woken hold nothing.

    Raises:
        Conflict: they have as many as the pool allows.
    """
    if not (most := pool.sessions_a_person):
        return
    own = Job.objects.filter(owner_id=user.pk, pool=pool, spec_fields__kind="session").unfinished()
    if own.exclude(state=JobState.HELD).count() >= most:
        has = Sentence("one session") if most == 1 else Sentence("{sessions} sessions", sessions=most)
        raise Conflict(
            Sentence(
                "You have {has} in pool {pool}, as many as it allows; stop one first.",
                has=has,
                pool=pool.name,
            )
        )
