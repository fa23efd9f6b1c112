"""How many small faults in a room do its tests notice?

make mutants ROOM=orchestrator/store COUNT=20 SEED=1

Works on what is committed, in a clone that goes with it: puts in one fault after the other and runs the fast tests that run its line,
the quickest first, then the room's other fast tests, those of other rooms whose files name the module, and the room's slow ones, as far
as all pass. Prints each fault that survives them, and last the share that was noticed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from tests.mutants.faults import Fault
from tests.mutants.room import NoSuchRoom, find_room, sample
from tests.mutants.tests_of_lines import NOTE_OF, NOTE_TO, ONLY, WITHOUT, Notes
from tests.tools.choice import ROOT, files_for
from tests.tools.parts import say

FAST, SLOW = "not slow and not gpu", "slow and not gpu"
PATIENCE = 10  # times as long as the tests take without a fault; then it hangs, and that is noticed
LEAST_WAIT_S = 120.0
SLOW_WAIT_S = 3600.0
CLEAR_UP_S = 30.0
PASSED, NO_TESTS = 0, 5  # pytest's exit statuses


class Clone:
    """A tree to put faults into, and its tests."""

    def __init__(self, root: Path, tests: Sequence[str], *, and_elsewhere: bool) -> None:
        self.root = root
        self.tests = tests
        self._and_elsewhere = and_elsewhere
        self._writes = 0

    def note(self, files: Sequence[str]) -> Notes | None:
        """Which fast test runs which lines of these files; None where one of them fails, as pytest tells."""
        path = self.root.parent / "notes.json"
        values = {NOTE_TO: str(path), NOTE_OF: json.dumps(list(files))}
        if not self.passes(FAST, values=values, output=sys.stderr):
            return None
        return Notes.read(path)

    def passes_fast(self, tests: Sequence[str], seconds: Mapping[str, float]) -> bool:
        """Do these fast tests pass, and then the others?

        Args:
            seconds: that each fast test takes without a fault.
        """
        path = self.root.parent / "tests.json"
        path.write_text(json.dumps(tests))
        files = sorted({test.partition("::")[0] for test in tests})
        near_s, all_s = sum(seconds[test] for test in tests), sum(seconds.values())
        near = not tests or self.passes(FAST, _limit_s(near_s), {ONLY: str(path)}, files)
        return near and self.passes(FAST, _limit_s(all_s), {WITHOUT: str(path)})

    def passes_elsewhere(self, file: str) -> bool:
        """Do the fast tests of other rooms that name a module pass?"""
        files = files_for([file], self.root) if self._and_elsewhere else []
        elsewhere = [test for test in files if not test.startswith(tuple(f"{room}/" for room in self.tests))]
        return not elsewhere or self.passes(FAST, SLOW_WAIT_S, tests=elsewhere)

    def passes(
        self,
        which: str,
        limit_s: float | None = None,
        values: Mapping[str, str] | None = None,
        tests: Sequence[str] = (),
        output: TextIO | int = subprocess.DEVNULL,
    ) -> bool:
        """Do the tests with these marks pass? One that hangs does not."""
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-x",
            "-m",
            which,
            "-p",
            "no:cacheprovider",
            "-p",
            "tests.mutants.tests_of_lines",
            *(tests or self.tests),
        ]
        environment = {**os.environ, "PYTHONPATH": str(self.root), "BERTH_CI": "", **(values or {})}
        child = subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=output,
            stderr=output,
            process_group=0,
        )
        try:
            return child.wait(limit_s) in (PASSED, NO_TESTS)
        except subprocess.TimeoutExpired:
            return False
        finally:
            end(child)

    @contextmanager
    def having(self, fault: Fault) -> Iterator[None]:
        text = (self.root / fault.file).read_text()
        self._write(fault.file, fault.applied_to(text))
        try:
            yield
        finally:
            self._write(fault.file, text)

    def _write(self, file: str, text: str) -> None:
        """Give each version a second of its own: Python takes compiled code of the same size and second for current."""
        path = self.root / file
        path.write_text(text)
        self._writes += 1
        moment = time.time() + self._writes
        os.utime(path, (moment, moment))


def _limit_s(usual_s: float) -> float:
    return max(LEAST_WAIT_S, PATIENCE * usual_s)


def end(child: subprocess.Popen[bytes]) -> None:
    """Let pytest clear up what its tests have started; end what does not listen."""
    for number, patience_s in ((signal.SIGINT, CLEAR_UP_S), (signal.SIGKILL, None)):
        if child.poll() is None:
            os.killpg(child.pid, number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(patience_s)


def survivors(clone: Clone, faults: Sequence[Fault], notes: Notes, *, slow: bool) -> list[Fault]:
    """The faults that neither the fast nor the slow tests notice."""
    found = []
    for number, fault in enumerate(faults, start=1):
        tests = notes.tests_of(fault.file, fault.line)
        with clone.having(fault):
            lives = (
                clone.passes_fast(tests, notes.seconds)
                and clone.passes_elsewhere(fault.file)
                and (not slow or clone.passes(SLOW, SLOW_WAIT_S))
            )
        if lives:
            found.append(fault)
            say(f"SURVIVED {fault}  (fast tests that run it: {len(tests)})")
        else:
            say(f"noticed  {number:3d} of {len(faults)}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("room", help="folder or module, such as orchestrator/store")
    parser.add_argument("--count", type=int, default=20, help="faults to try")
    parser.add_argument("--seed", type=int, default=1, help="of the sample")
    parser.add_argument(
        "--least", type=float, default=0.0, help="lowest share noticed that is a success, in percent"
    )
    parser.add_argument("--tests", nargs="+", help="test files instead of the room's own")
    parser.add_argument("--fast", action="store_true", help="leave out slow tests")
    chosen = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # the clone goes then, too
    with tempfile.TemporaryDirectory(prefix="berth-mutants-") as folder:
        tree = Path(folder, "berth")
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(tree)], check=True)
        try:
            room = find_room(chosen.room, tree)
        except NoSuchRoom as error:
            sys.exit(f"berth: {error}")
        faults, left_out = sample(room, chosen.count, chosen.seed, tree)
        clone = Clone(tree, chosen.tests or room.tests, and_elsewhere=not chosen.tests)
        if (notes := clone.note(room.files)) is None:
            sys.exit(f"berth: {' '.join(clone.tests)} fails without any fault; mend that first.")
        lives = survivors(clone, faults, notes, slow=not chosen.fast)
    noticed = 100 * (len(faults) - len(lives)) / max(1, len(faults))
    say(
        f"noticed {len(faults) - len(lives)} of {len(faults)} ({noticed:.0f} %), seed {chosen.seed}; {left_out} known equivalents left out"
    )
    return 0 if noticed >= chosen.least else 1


if __name__ == "__main__":
    sys.exit(main())
