"""Runs tests on a PostgreSQL of their own, which is thrown away afterwards.

python -m tests.postgresql [pytest's arguments]     without any: the suite that both databases must pass
"""

import contextlib
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.system.server import free_port

SUITE = (
    "tests/jobs/test_lifecycle.py",
    "tests/scheduler/test_placement.py",
    "tests/jobs/test_clones.py",
    "tests/jobs/test_submission.py",
    "tests/jobs/test_updates.py",
    "tests/models/test_transactions.py",
    "tests/jobs/test_state_machine.py",
    "tests/server/test_doctor.py",
    "tests/server/test_backup.py",
    "tests/api/test_jobs.py",
    "tests/api/test_submit.py",
    "tests/api/test_metrics.py",
)
# They damage the file of an SQLite database, or are about folders alone.
SAME_ON_BOTH = (
    "tests/server/test_backup.py::test_a_damaged_database_is_kept_aside_as_it_is_and_replaced",
    "tests/server/test_backup.py::test_a_folder_that_is_too_deep_for_paths_stops_neither_backup_nor_restore",
    "tests/server/test_doctor.py::test_f52_a_damaged_database_is_a_line_with_what_to_do",
)
UNPRIVILEGED = "nobody"  # PostgreSQL refuses to run as root


def find_programs() -> Path | None:
    """The folder of initdb and pg_ctl; Debian keeps them off PATH."""
    found = shutil.which("initdb")
    if found and shutil.which("pg_ctl"):
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@dataclass(frozen=True)
class Cluster:
    """A PostgreSQL that trusts everybody on this machine."""

    url: str  # for DATABASE_URL
    start: Callable[[], None]
    stop: Callable[[], None]  # at once, as by a power cut


@contextlib.contextmanager
def cluster(programs: Path, *, durable: bool = False) -> Iterator[Cluster]:
    """A started cluster in a folder that goes with it.

    Args:
        durable: a commit is on the disk when it returns, as in use; tests need not wait for that.
    """
    with tempfile.TemporaryDirectory(prefix="berth-pg-") as name:
        folder = Path(name)
        user = {}
        if os.getuid() == 0:
            person = pwd.getpwnam(UNPRIVILEGED)
            os.chown(folder, person.pw_uid, person.pw_gid)
            user = {"user": person.pw_uid, "group": person.pw_gid, "extra_groups": []}
        data, port = folder / "data", free_port()
        _run([programs / "initdb", "--no-sync", "-U", "berth", "-A", "trust", "-D", data], user)
        options = f"-p {port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync={'on' if durable else 'off'}"
        control = [programs / "pg_ctl", "-w", "-D", data]
        one = Cluster(
            f"postgresql://berth@127.0.0.1:{port}/postgres",
            partial(_run, [*control, "-l", folder / "log", "-o", options, "start"], user),
            partial(_run, [*control, "-m", "immediate", "stop"], user),
        )
        one.start()
        try:
            yield one
        finally:
            one.stop()


@contextlib.contextmanager
def running(programs: Path, *, durable: bool = False) -> Iterator[str]:
    """The DATABASE_URL of a cluster, as long as it runs."""
    with cluster(programs, durable=durable) as one:
        yield one.url


def _run(command: Sequence[object], user: dict[str, object]) -> None:
    subprocess.run(
        [str(word) for word in command],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd="/",
        **user,  # type: ignore[call-overload]  # names of the keywords are checked by Python
    )


def main() -> int:
    programs = find_programs()
    if programs is None:
        sys.stderr.write("PostgreSQL is not installed here (apt install postgresql).\n")
        return 0 if os.environ.get("BERTH_CI") != "1" else 1
    left_out = [option for test in SAME_ON_BOTH for option in ("--deselect", test)]
    chosen = sys.argv[1:] or ["-n", "2", "--dist", "loadfile", "-q", *SUITE, *left_out]
    with running(programs) as url:
        environment = {**os.environ, "DATABASE_URL": url, "PATH": f"{programs}:{os.environ['PATH']}"}
        return subprocess.run(
            [sys.executable, "-m", "tests.tools.attempts", "postgresql", *chosen],
            env=environment,
            check=False,
        ).returncode


if __name__ == "__main__":
    sys.exit(main())
