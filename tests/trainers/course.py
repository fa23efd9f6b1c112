"""One trainer from its package to its end: trained on a real server, watched, killed, and resumed."""

import csv
import io
import time
from collections.abc import Callable
from typing import Any

from tests.system.server import FINAL, Server, kill, processes
from tests.trainers.rows import ADD_HERE, Row
from tests.waiting import PATIENCE_S, wait_until

INSTALL_S = 1800.0  # with downloads
LEARNING_RATES = ("lr", "learning_rate", "lr-Adam", "train/learning_rate")
BY_ITSELF = "by itself"
BEGINS_AGAIN = "no: it fails on its own checkpoint, so Berth lets it begin again"


def run(server: Server, row: Row, ranks: int) -> dict[str, Any]:
    """Run a trainer as ``resume`` does, with what the history of a first job says to add.

    Raises:
        AssertionError: as ``resume``.
    """
    return resume(server, row, ranks, advice_for(server, row, ranks))


def resume(server: Server, row: Row, ranks: int, words: str = "") -> dict[str, Any]:
    """Run a trainer to its end, with a SIGKILL after its first checkpoint; what was seen, for the table.

    Args:
        words: what Berth said to add: options, or code.

    Raises:
        AssertionError: something that should be live, kept or resumed is not; the message has the end of the log.
    """
    job = submit(server, row, ranks, words)
    live = watch(server, job, row)
    kept = _wait(
        server, job, lambda: server.get(f"/jobs/{job}/checkpoints")["results"], "no checkpoint is kept"
    )
    kill(victims(job))
    ended = server.wait_for_end(job, limit_s=INSTALL_S)
    resumed = _check_resumed(server, job, ended)
    live["end"] = ended["progress"]["fraction"] == 1 or "total" not in row.told
    return {
        "trainer": row.name,
        "ranks": ranks,
        "version": version_of(server, job, row),
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "live": live,
        "checkpoint": kept[0]["path"],
        "resumes": (words or BY_ITSELF) if resumed else BEGINS_AGAIN,
    }


def submit(server: Server, row: Row, ranks: int, words: str) -> str:
    """Submit a row's script; ``words`` is what Berth said to add: options, or code."""
    is_option = words.startswith("--")
    text = row.text if is_option else row.text.replace(ADD_HERE, f"{words}\n")
    fields: dict[str, Any] = (
        {"command": list(row.command)}
        if row.command
        else {"args": [word.replace("{ranks}", str(ranks)) for word in row.args]}
    )
    return server.submit(
        text,
        gpus=ranks,
        environment=None if row.packages else "berth",
        with_packages=list(row.packages),
        env={"HOLD_AT": str(row.hold_at)},
        resume_args=words.split() if is_option else [],
        **fields,
    )


def advice_for(server: Server, row: Row, ranks: int) -> str:
    """What the job's page says to add so that a retry resumes; empty for a trainer that resumes by itself."""
    job = submit(server, row, ranks, "")
    server.wait_for_state(job, "running", *FINAL, limit_s=INSTALL_S)
    events = server.get(f"/jobs/{job}/events")["results"]
    facts = [each["facts"] for each in events if each["code"] in {"resume_option", "resume_code"}]
    server.call("POST", f"/jobs/{job}/cancel", {"force": True})
    server.wait_for_end(job)
    return str(facts[0].get("words") or facts[0]["line"]) if facts else ""


def watch(server: Server, job: str, row: Row) -> dict[str, bool]:
    """Wait until everything that this trainer tells is live, while it runs."""
    seen: dict[str, bool] = {}

    def all_live() -> bool:
        now = server.job(job)
        values, progress = now["last_values"], now["progress"]
        names = " ".join(values).lower()
        seen.update(
            {
                "loss": "loss" in names,
                "learning rate": any(name.lower() in names for name in LEARNING_RATES),
                "throughput": progress["steps_per_s"] is not None or "_per_s" in names,
                "progress": bool(progress["step"]),
                "total": bool(progress["step"] and progress["total_steps"]),
            }
        )
        return all(seen[name] for name in row.told)

    server.wait_for_state(job, "running", limit_s=INSTALL_S)
    _wait(server, job, all_live, lambda: f"not live: {[name for name in row.told if not seen.get(name)]}")
    return seen


def victims(job: str) -> list[int]:
    """The processes that train: ranks, or of a command's processes the Python ones that are no launchers."""
    mine = [(pid, command) for pid, command, environ in processes() if f"BERTH_JOB_ID={job}" in environ]
    ranks = [pid for pid, command in mine if "entry.py" in command and "bwrap" not in command]
    ranks = [pid for pid in ranks if "torch.distributed" not in dict(mine)[pid]]
    trains = [pid for pid, command in mine if "/trl/scripts/" in command and "accelerate" not in command]
    return (trains or ranks)[:1]


def version_of(server: Server, job: str, row: Row) -> str:
    if not row.packages:
        import torch  # late import: only this row needs it

        return str(torch.__version__)
    packages = server.get(f"/jobs/{job}/environment")["packages"]
    return next(str(each["version"]) for each in packages if each["name"] == row.package)


def _check_resumed(server: Server, job: str, ended: dict[str, Any]) -> bool:
    """Check that the job ended well; False where its trainer could not read the checkpoint that it had written."""
    attempts = server.attempts(job)
    told = _told(server, job)
    events = server.get(f"/jobs/{job}/events")["results"]
    is_resumable = not any(each["facts"].get("not_resumable") for each in events)
    how = f"{ended['state']} after {len(attempts)} attempts"
    expected = 2 if is_resumable else 3
    assert (ended["state"], len(attempts)) == ("succeeded", expected), f"{how}\n{told}"
    assert attempts[1]["resumed_from_step"] is not None, f"the second attempt had no checkpoint\n{told}"
    if is_resumable:
        first = {number: _first_step(server, job, number) for number in (1, 2)}
        assert first[2] > first[1], (
            f"attempt 2 began at step {first[2]} again, as attempt 1 at {first[1]}\n{told}"
        )
    return is_resumable


def _first_step(server: Server, job: str, attempt: int) -> int:
    _, text = server.call("GET", f"/jobs/{job}/metrics.csv")
    rows = csv.DictReader(io.StringIO(text))
    steps = [int(each["step"]) for each in rows if int(each["attempt"]) == attempt]
    return min(steps, default=-1)


def _wait(server: Server, job: str, condition: Callable[[], object], why: str | Callable[[], str]) -> Any:
    """Wait for something of a running job; fails at once where the job ends before."""
    found: list[Any] = []

    def there() -> bool:
        found[:] = [condition()]
        return bool(found[0]) or server.job(job)["state"] in FINAL

    def message() -> str:
        return f"{why if isinstance(why, str) else why()}\n{_told(server, job)}"

    wait_until(there, PATIENCE_S, message, every_s=0.2)
    assert found[0], message()
    return found[0]


def _told(server: Server, job: str) -> str:
    logs = [server.log(job, each["number"])[-4000:] for each in server.attempts(job)]
    return "\n--- next attempt\n".join([*server.reasons(job), *logs])
