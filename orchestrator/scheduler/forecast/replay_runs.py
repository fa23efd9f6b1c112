"""Replays in their own processes: thousands of jobs take a minute, too long for a page.

A question and its answer are files named by the question's key, so equal questions are answered once.
"""

import fcntl
import json
import subprocess
import sys
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any, TypedDict

from django.conf import settings

from orchestrator.exceptions import Impossible, Malformed, Sentence
from orchestrator.scheduler.forecast.replays import Question, ReplayAnswer, answer
from orchestrator.store.files.durable import write_durably

STARTS_WITHIN_S = 30.0
_children: list[subprocess.Popen[bytes]] = []  # until they end, so that none stays a zombie


class StoredAnswer(TypedDict, total=False):
    """The answer to a question, or the sentence that says why it is missing, as ``Sentence.as_json`` keeps it."""

    answer: ReplayAnswer
    problem: dict[str, Any] | str  # a str in the files of earlier versions


class ReplayState(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


def folder() -> Path:
    return settings.HOME.root / "whatif"


def ask(question: Question) -> str:
    """Start a replay unless its answer exists or is being made; return the key of the answer."""
    folder().mkdir(exist_ok=True)
    key = question.key
    if state_of(key) in {ReplayState.RUNNING, ReplayState.DONE}:
        return key
    _lock_file(key).unlink(missing_ok=True)  # left by a replay that died; its age would be misleading
    write_durably(_question_file(key), json.dumps(asdict(question)).encode())
    _children[:] = [child for child in _children if child.poll() is None]
    with (folder() / "whatif.log").open("ab") as log:
        _children.append(
            subprocess.Popen(  # noqa: S603  # our own command; the key is a digest of ours
                [sys.executable, "-m", "orchestrator.management", "whatif", "--question", key],
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
    return key


def work_on(key: str) -> None:
    """Answer a question; called only by the process started for it.  Replays run one at a time."""
    with _lock_file(key).open("w") as own, (folder() / "turn.lock").open("w") as turn:
        fcntl.flock(own, fcntl.LOCK_EX)
        fcntl.flock(turn, fcntl.LOCK_EX)
        question = Question.read(json.loads(_question_file(key).read_bytes()))
        try:
            result: StoredAnswer = {"answer": answer(question)}
        except (Impossible, Malformed) as error:
            result = {"problem": error.args[0].as_json()}
        write_durably(_answer_file(key), json.dumps(result).encode())


def state_of(key: str) -> ReplayState | None:
    """The state of a replay; None if it was never asked for."""
    if _answer_file(key).exists():
        return ReplayState.DONE
    if not _question_file(key).exists():
        return None
    try:
        with _lock_file(key).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        starts = time.time() - _question_file(key).stat().st_mtime < STARTS_WITHIN_S
        return ReplayState.RUNNING if starts else ReplayState.FAILED
    except BlockingIOError:
        return ReplayState.RUNNING
    return ReplayState.DONE if _answer_file(key).exists() else ReplayState.FAILED


def read_question(key: str) -> Question:
    return Question.read(json.loads(_question_file(key).read_bytes()))


def read_answer(key: str) -> StoredAnswer:
    stored: StoredAnswer = json.loads(_answer_file(key).read_bytes())
    return stored


def problem_of(stored: StoredAnswer) -> str:
    """Why an answer is missing; empty if it is there."""
    problem = stored.get("problem", "")
    return problem if isinstance(problem, str) else Sentence.read(problem)


def _question_file(key: str) -> Path:
    return folder() / f"{key}.question.json"


def _answer_file(key: str) -> Path:
    return folder() / f"{key}.json"


def _lock_file(key: str) -> Path:
    return folder() / f"{key}.lock"
