"""Keeps one attempt's copy here and its original on a node the same, as far as each side is the one that writes."""

import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from orchestrator.links.gang import Gang
from orchestrator.nodes.copies import BROUGHT, EXIT_PART, OWN_NAMES, Copy
from orchestrator.nodes.fence import FencedArrivals
from orchestrator.nodes.port import MOST_BYTES, Look, Port, Wish
from orchestrator.nodes.runs import Order
from orchestrator.nodes.trees import Chunk, Entry, entry_at, list_tree, read_chunk
from orchestrator.store.layout import JobFolder
from orchestrator.supervisor.linux.processes import boot_id
from orchestrator.supervisor.protocol.records import Record, parse_record, read_record, write_record
from orchestrator.supervisor.watch.finished_files import Signature, finished_files_of, write_finished_files

TREES = ("work", "checkpoints", "output")  # of a job's folder: the run's own
EVENT_FILE = ".tfevents."  # in the names of TensorBoard's files, which stay open and only grow
MOST_WISHES = 64
MOST_RESTARTS = 3  # of a file that changes while it is read


class Mirror:
    """The copy of one attempt."""

    def __init__(self, port: Port, order: Order, folder: JobFolder, gang: Gang | None = None) -> None:
        """``gang``: of a run over several nodes, each of which brings what it wrote itself."""
        self._gang = gang
        self._there: dict[str, Entry] = {}  # as it was listed last
        self._listed: tuple[float, dict[str, Entry]] | None = None  # the files of rank 0's node, and when
        self._port = port
        self._order = order
        self._root = folder.root
        attempt = folder.attempt(order.attempt)
        self.attempt = attempt.part(order.part) if order.part else attempt
        self.copy = Copy(self.attempt, order.nonce)
        self._below = str(self.attempt.root.relative_to(folder.root))
        self._arrivals = FencedArrivals(folder, order.attempt)
        self._known: dict[str, Entry] = {}  # the attempt's files on the node, as they were when they came
        self._brought: dict[str, Entry] = {}  # by the trees
        self._sent: set[str] = set()  # orders
        self._vouched: dict[str, Signature] = {}
        self._pulling = threading.Lock()  # a carrier brings the last files while the link takes its turns

    def push(self) -> None:
        """Bring everything there that a start needs; what is there already is not sent again.

        Raises:
            OSError: the node does not answer, or has no room.
        """
        trees = list_tree(self._root, TREES)
        here = {**trees, **self._prepared()}
        there = self._port.list_files(self._order, TREES)
        self._port.make(
            self._order,
            {path: entry for path, entry in here.items() if entry.kind != "file"},
            [path for path in there if path not in here],
        )
        self._put(
            path for path, entry in here.items() if entry.kind == "file" and not entry.equals(there.get(path))
        )
        if self._gang is not None:
            write_record(
                self.attempt.root / BROUGHT, {"files": {path: entry[:5] for path, entry in trees.items()}}
            )

    def _prepared(self) -> dict[str, Entry]:
        """The attempt's own folders; its files are records, which the other side writes itself."""
        entries = list_tree(self._root, [self._below])
        parts = f"{self._below}/{self.attempt.parts.name}"
        return {
            path: entry
            for path, entry in entries.items()
            if entry.kind == "folder" and path != parts and not path.startswith(f"{parts}/")
        }

    def _put(self, paths: Iterable[str]) -> None:
        chunks: list[Chunk] = []
        size_bytes = 0
        for path in paths:
            offset = 0
            while (chunk := read_chunk(self._root, path, offset, MOST_BYTES - size_bytes)) is not None:
                chunks.append(chunk)
                offset += len(chunk.data)
                size_bytes += len(chunk.data)
                if size_bytes >= MOST_BYTES or len(chunks) >= MOST_WISHES:
                    self._port.put(self._order, chunks)
                    chunks, size_bytes = [], 0
                if chunk.is_last:
                    break
        if chunks:
            self._port.put(self._order, chunks)

    def send_orders(self) -> None:
        """Pass on the orders that were left here since the last call; their files are only ever added.

        Raises:
            OSError: the node does not answer.
        """
        folder = f"{self._below}/{self.attempt.orders.name}"
        entries = list_tree(self._root, [folder])
        new = [
            path
            for path, entry in entries.items()
            if entry.kind == "file" and path not in self._sent and not _is_part(path)
        ]
        self._put(new)
        self._sent.update(new)

    def pull_attempt(self, look: Look) -> None:
        """Bring the attempt's changed files here, the exit record not among them.

        Raises:
            OSError: the node does not answer, or there is no room here.
        """
        wanted = {path: entry for path, entry in look.files.items() if self._is_pulled(path)}
        with self._pulling:
            self._arrivals.make(wanted)
            changed = [
                path
                for path, entry in wanted.items()
                if entry.kind == "file" and not entry.equals(self._known.get(path))
            ]
            self._fetch(changed, self._known, closed=False)

    def pull_trees(self, *, closed: bool) -> None:
        """Bring what the run wrote into its folders here.

        Args:
            closed: leave out files that a process has open for writing.

        Raises:
            OSError: the node does not answer, or there is no room here.
        """
        began_s = time.monotonic()
        there, here = self._port.list_files(self._order, TREES), list_tree(self._root, TREES)
        if not there:
            return  # the node lost its disk: what is here is all that is left
        if self._gang is not None:
            self._pull_share(self._gang, began_s, there, here, closed=closed)
            return
        self._arrivals.remove([path for path in here if path not in there])
        self._arrivals.make(there)
        changed = [
            path for path, entry in there.items() if entry.kind == "file" and not entry.equals(here.get(path))
        ]
        self._fetch(changed, self._brought, closed=closed)
        self._vouch(there)

    def _pull_share(
        self, gang: Gang, began_s: float, there: dict[str, Entry], here: Mapping[str, Entry], *, closed: bool
    ) -> None:
        """Bring what this node wrote; all nodes write into the same folders here.

        What rank 0's node has comes after everything that the others had then: the file that completes a checkpoint
        must not be here before all its shards.
        """
        leads = not self._order.part
        if leads and closed:
            listed, self._listed = self._listed, (began_s, there)
            if listed is None or not gang.others_pulled_since(listed[0]):
                self._listed = listed or self._listed
                return
            there = listed[1]
        brought = self._brought_there()
        own = {path: entry for path, entry in there.items() if not entry.equals(brought.get(path))}
        gone = {path: entry for path, entry in {**brought, **self._there}.items() if path not in there}
        self._there = there
        if leads:
            gang.leaders_files = {path for path, entry in own.items() if entry.kind == "file"}
            gang.removed.update(path for path, entry in gone.items() if entry.kind == "folder")
            gang.removed.difference_update(there)
        else:
            own = {path: entry for path, entry in own.items() if gang.lets_bring(path)}
            gone = {path: entry for path, entry in gone.items() if entry.kind != "folder"}
        self._arrivals.remove([path for path in gone if path in here])
        self._arrivals.make(own)
        changed = [
            path for path, entry in own.items() if entry.kind == "file" and not entry.equals(here.get(path))
        ]
        self._fetch(changed, self._brought, closed=closed, listed=own if leads and closed else None)
        self._vouch(there)
        gang.note_pulled(self._order.part, began_s)

    def _brought_there(self) -> dict[str, Entry]:
        """What the node was brought before its part began."""
        files = (read_record(self.attempt.root / BROUGHT) or {}).get("files")
        return {path: Entry(*row) for path, row in files.items()} if isinstance(files, dict) else {}

    def pull_exit(self) -> None:
        """Bring the exit record, after which nothing else is looked for.

        Raises:
            OSError: the node does not answer.
        """
        path = f"{self._below}/{self.attempt.exit.name}"
        if self._gang is None or self._order.part:
            self._fetch([path], {}, closed=False)
        elif (record := self.read_exit()) is not None:
            write_record(self.attempt.root / EXIT_PART, record)

    def read_exit(self) -> Record | None:
        """The exit record on the node.

        Raises:
            OSError: the node does not answer.
        """
        return parse_record(self._read_whole(f"{self._below}/{self.attempt.exit.name}"))

    def _is_pulled(self, path: str) -> bool:
        top = path.removeprefix(f"{self._below}/").partition("/")[0]
        ours = {
            self.attempt.launch.name,
            self.attempt.lock.name,
            self.attempt.exit.name,
            self.attempt.orders.name,
            self.attempt.shells.name,
            self.attempt.finished_files.name,
            self.attempt.parts.name,
            *OWN_NAMES,
        }
        return path != self._below and top not in ours and not _is_part(path)

    def _grows(self, path: str) -> bool:
        """Whether a file is only ever appended to."""
        if EVENT_FILE in path.rpartition("/")[2]:
            return True
        name = path.removeprefix(f"{self._below}/")
        return name == self.attempt.metrics.name or name.startswith(f"{self.attempt.logs.name}/")

    def _fetch(
        self,
        paths: Sequence[str],
        seen: dict[str, Entry],
        *,
        closed: bool,
        listed: Mapping[str, Entry] | None = None,
    ) -> None:
        """Bring files here, and note in ``seen`` what they were; a file that keeps changing waits for its next turn.

        Args:
            listed: leave out files that have changed since they were listed so.
        """
        waiting = deque(Wish(path, self._size_here(path), closed and not self._grows(path)) for path in paths)
        begun: dict[str, Entry] = {}
        restarts: dict[str, int] = {}
        while waiting:
            asked = [waiting.popleft() for _ in range(min(MOST_WISHES, len(waiting)))]
            answers = self._port.read(self._order, asked)
            waiting.extendleft(reversed(asked[len(answers) :]))
            for wish, chunk in zip(asked, answers, strict=False):
                if chunk is None or (listed is not None and not chunk.entry.equals(listed.get(wish.path))):
                    continue
                if self._grows(wish.path):
                    self._arrivals.append(chunk)
                    seen[wish.path] = chunk.entry
                    if not chunk.is_last:
                        waiting.append(wish._replace(offset=wish.offset + len(chunk.data)))
                    continue
                first = begun.setdefault(wish.path, chunk.entry)
                if first.signature != chunk.entry.signature:
                    del begun[wish.path]
                    restarts[wish.path] = restarts.get(wish.path, 0) + 1
                    if restarts[wish.path] <= MOST_RESTARTS:
                        waiting.append(wish._replace(offset=0))
                elif self._arrivals.take(chunk):
                    seen[wish.path] = chunk.entry
                else:
                    waiting.appendleft(wish._replace(offset=wish.offset + len(chunk.data)))

    def _size_here(self, path: str) -> int:
        entry = entry_at(self._root / path) if self._grows(path) else None
        return entry.size_bytes if entry is not None else 0

    def _vouch(self, there: Mapping[str, Entry]) -> None:
        """Pass on which files the supervisor saw finished, by what their copies look like here."""
        record = f"{self._below}/{self.attempt.finished_files.name}"
        files = finished_files_of(parse_record(self._read_whole(record)) or {})
        vouched: dict[str, Signature] = {}
        for path, signature in files.items():
            seen = there.get(path)
            entry = entry_at(self._root / path)
            if seen is not None and seen.signature == signature and entry is not None and entry.equals(seen):
                vouched[path] = entry.signature
        if vouched != self._vouched:
            self._vouched = vouched
            write_finished_files(self.attempt.finished_files, vouched, boot=boot_id())

    def _read_whole(self, path: str) -> bytes:
        answers = self._port.read(self._order, [Wish(path, 0, closed=False)])
        chunk = answers[0] if answers else None
        return chunk.data if chunk is not None and chunk.is_last else b""


def _is_part(path: str) -> bool:
    """Whether a record is being written under this name."""
    name = path.rpartition("/")[2]
    return name.startswith(".") and name.endswith(".part")
