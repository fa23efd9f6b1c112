"""Replays in processes of their own: thousands of jobs take a minute, and no page may wait for that.

A question and its answer are files named by the question's key, so that equal questions are answered once.
"""

import fcntl
import json
import subprocess
import sys
import time
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Any

from django.conf import settings

from orchestrator.exceptions import Impossible, Malformed
from orchestrator.scheduler.forecast.replays import Question, answer
from orchestrator.store.durable import write_durably

STARTS_WITHIN_S = 30.0
_children: list[subprocess.Popen[bytes]] = []  # kept until they have ended, so that none stays a zombie


class State(StrEnum):
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"


def folder() -> Path:
    return settings.HOME.root / "whatif"


def ask(question: Question) -> str:
    """Begin a replay unless its answer is there or on its way; returns the key of the answer."""
    folder().mkdir(exist_ok=True)
    key = question.key
    if state_of(key) in {State.RUNNING, State.DONE}:
        return key
    _lock_file(key).unlink(missing_ok=True)  # of one that died: its age says nothing of the new one
    write_durably(_question_file(key), json.dumps(asdict(question)).encode())
    _children[:] = [child for child in _children if child.poll() is None]
    with (folder() / "whatif.log").open("ab") as log:
        _children.append(
            subprocess.Popen(  # noqa: S603  # our own command; the key is a digest of ours
                [sys.executable, "manage.py", "whatif", "--question", key],
                cwd=settings.BASE_DIR,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        )
    return key


def work_on(key: str) -> None:
    """Answer a question that was asked; only the process made for it calls this, one at a time works."""
    with _lock_file(key).open("w") as own, (folder() / "turn.lock").open("w") as turn:
        fcntl.flock(own, fcntl.LOCK_EX)
        fcntl.flock(turn, fcntl.LOCK_EX)
        question = Question.read(json.loads(_question_file(key).read_bytes()))
        try:
            found: dict[str, Any] = {"answer": answer(question)}
        except (Impossible, Malformed) as error:
            found = {"problem": str(error)}
        write_durably(_answer_file(key), json.dumps(found).encode())


def state_of(key: str) -> State | None:
    """How far a replay is; None: nobody asked."""
    if _answer_file(key).exists():
        return State.DONE
    if not _question_file(key).exists():
        return None
    try:
        with _lock_file(key).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        starts = time.time() - _question_file(key).stat().st_mtime < STARTS_WITHIN_S
        return State.RUNNING if starts else State.FAILED
    except BlockingIOError:
        return State.RUNNING
    return State.DONE if _answer_file(key).exists() else State.FAILED


def read_question(key: str) -> Question:
    return Question.read(json.loads(_question_file(key).read_bytes()))


def read_answer(key: str) -> dict[str, Any]:
    """``answer`` as the function of that name gives it, or ``problem``, a sentence."""
    found: dict[str, Any] = json.loads(_answer_file(key).read_bytes())
    return found


def _question_file(key: str) -> Path:
    return folder() / f"{key}.question.json"


def _answer_file(key: str) -> Path:
    return folder() / f"{key}.json"


def _lock_file(key: str) -> Path:
    return folder() / f"{key}.lock"
