"""The copy of a node's attempt in our own state folder, through which engine and link speak.

The engine, in any process, leaves orders; the link of the node, one process, carries them out and keeps the copy up to
date:

- ``start.wanted`` becomes ``start.taken`` under the attempt's lock, just before the link may start it there;
- ``forestall.json`` and ``end_leftovers`` each ask for one call of the node's port;
- ``node.json`` holds the attempt's state there, written at each turn of the link, so its age tells a silent node;
- ``exit.part.json`` is how the part of rank 0 ended, where other nodes have parts of the same run;
- ``leased`` says that the run there stops by itself once the lease of its node has run out.
"""

import fcntl
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from orchestrator.supervisor.liveness import Liveness
from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.records import Record, read_record, write_record

SILENT_AFTER_S = 5.0
STATE, FORESTALL = "node.json", "forestall.json"
WANTED, TAKEN, LEFTOVERS, LEASED = "start.wanted", "start.taken", "end_leftovers", "leased"
LEASE = "lease"  # why a run is lost whose node is silent
# Of a run over several nodes: where its ranks meet, how the part of rank 0 ended, and what a part was brought.
MEETING, EXIT_PART, BROUGHT = "meeting.json", "exit.part.json", "brought.json"
OWN_NAMES = frozenset(
    {STATE, FORESTALL, WANTED, TAKEN, LEFTOVERS, LEASED, MEETING, EXIT_PART, BROUGHT}
)  # never copied


class Copy:
    """One attempt that runs on a node, as seen here."""

    def __init__(self, folder: AttemptFolder, nonce: str) -> None:
        self.folder = folder
        self.nonce = nonce

    @property
    def is_over(self) -> bool:
        """Whether the exit record of this attempt is here, and with it all that the run left."""
        return (read_record(self.folder.exit) or {}).get("nonce") == self.nonce

    @property
    def is_wanted(self) -> bool:
        """Whether the link is to start it, and has not begun to."""
        return (self.folder.root / WANTED).exists()

    @property
    def is_taken(self) -> bool:
        """Whether the link may have started it."""
        return (self.folder.root / TAKEN).exists()

    def want(self) -> None:
        """Have the link start it; once it was taken, or is over, this changes nothing."""
        with self._locked():
            if not self.is_over and not self.is_taken:
                (self.folder.root / WANTED).touch()

    def take(self) -> bool:
        """Begin the start that was wanted; from then on only the node can tell that it never runs."""
        root = self.folder.root
        if self.is_taken:
            return True
        if not self.is_wanted:
            return False
        with self._locked():
            if self.is_over:
                return False
            (root / WANTED).replace(root / TAKEN)
        return True

    def forestall(self, record: Mapping[str, object]) -> bool:
        """Leave an exit record before the link takes the start; False where it has: then the node is asked."""
        with self._locked():
            if self.folder.exit.exists() or self.folder.supervisor.exists():
                return False
            if self.is_taken:
                if not (self.folder.root / FORESTALL).exists():
                    write_record(self.folder.root / FORESTALL, record)
                return False
            write_record(self.folder.exit, record)
            return True

    def forestalled(self) -> Record | None:
        """The exit record that the node is to be left, if any."""
        return read_record(self.folder.root / FORESTALL)

    def end_leftovers(self) -> None:
        """Ask the node to end what a dead supervisor left behind."""
        (self.folder.root / LEFTOVERS).touch()

    def takes_leftovers(self) -> bool:
        """Whether the node was asked to, since the last call."""
        try:
            (self.folder.root / LEFTOVERS).unlink()
        except FileNotFoundError:
            return False
        return True

    @property
    def copies(self) -> "list[Copy]":
        """This copy and the copies of the other nodes of the same run."""
        try:
            names = sorted(path.name for path in self.folder.parts.iterdir())
        except (FileNotFoundError, NotADirectoryError):
            return [self]
        return [self, *(Copy(self.folder.part(name), self.nonce) for name in names)]

    def part_end(self) -> Record | None:
        """How this node's part ended; of a run on one node, how it ended."""
        for path in (self.folder.root / EXIT_PART, self.folder.exit):
            record = read_record(path)
            if record is not None and record.get("nonce") == self.nonce:
                return record
        return None

    def part_state(self) -> Liveness:
        """As ``state``, of this node alone."""
        return Liveness.ENDED if self.part_end() is not None else self._said()

    def _state_in_run(self) -> Liveness:
        """As ``part_state``; a part that was taken just now, of which its node has not spoken yet, is not silent."""
        state = self.part_state()
        is_new = state is Liveness.UNKNOWN and not (self.folder.root / STATE).exists()
        return Liveness.NEVER_STARTED if is_new else state

    def state(self) -> Liveness:
        """What the nodes of the run said last; UNKNOWN if that of one is too long ago."""
        if self.is_over:
            return Liveness.ENDED
        copies = self.copies
        if len(copies) == 1:
            return self._said()
        states = {copy._state_in_run() for copy in copies}
        for state in (Liveness.UNKNOWN, Liveness.DYING, Liveness.ALIVE, Liveness.NEVER_STARTED):
            if state in states and (state is not Liveness.NEVER_STARTED or len(states) == 1):
                return state
        # Some wait for the others, or all ended and the end of the whole is about to be written.
        return (
            Liveness.LOST
            if states <= {Liveness.LOST, Liveness.ENDED} and Liveness.LOST in states
            else Liveness.ALIVE
        )

    def _said(self) -> Liveness:
        """What the node said last; UNKNOWN if that is too long ago."""
        if not self.is_taken:
            return Liveness.NEVER_STARTED
        try:
            said_at = (self.folder.root / STATE).stat().st_mtime
        except OSError:
            return Liveness.UNKNOWN
        state = (read_record(self.folder.root / STATE) or {}).get("state")
        if state != Liveness.LOST and time.time() - said_at > SILENT_AFTER_S:
            return Liveness.UNKNOWN  # what is lost stays so, while the others of the run are stopped
        return Liveness(str(state)) if state in set(Liveness) else Liveness.UNKNOWN

    def lease(self) -> None:
        """Remember that its run stops with the lease of its node; before it is started."""
        (self.folder.root / LEASED).touch()

    @property
    def stops_within_s(self) -> float | None:
        """The time from the end of the lease until the run has been stopped; None if no lease stops it."""
        if not (self.folder.root / LEASED).exists():
            return None
        grace_s = (read_record(self.folder.launch) or {}).get("grace_s")
        return float(grace_s) if isinstance(grace_s, int | float) else 0.0

    def note(self, state: Liveness, *, why: str = "") -> None:
        """Keep what the node says, or what is certain though it says nothing.

        Raises:
            OSError: the disk is full.
        """
        path = self.folder.root / STATE
        if (read_record(path) or {}).get("state") != state:
            write_record(path, {"state": state, "why": why})
        else:
            os.utime(path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fd = os.open(self.folder.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
