"""What a campaign does to a server; each fault returns once it lasts no longer."""

import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.load import Load
from tests.chaos.witness import Witness
from tests.system.nodes import NodeServer
from tests.system.server import COMMANDS, REPOSITORY, Server, kill

SERVICES = (*COMMANDS, "redis")
FULL_FILE = "full"
CHECKPOINTED_AT = 40  # steps; the keeper has one by then
DAMAGES = ("bit", "page", "cut", "manifest", "no manifest")


@dataclass
class Field:
    """Where a fault happens."""

    server: Server
    load: Load
    witness: Witness
    random: random.Random
    clock: Path  # holds the seconds by which the server's clock is wrong
    small_disk: bool  # the home is on a file system of its own, which may be filled
    nodes: Sequence[NodeServer] = ()  # other servers that joined it
    fenced_s: list[float] = field(default_factory=list)  # until one that stood still got no more jobs
    hit_at: float = 0.0  # monotonic; set by faults that hurt at once, however long they take to return

    def victim(self, *, to_its_end: bool = False, here: bool = False) -> str | None:
        """A job that trains and has trained for a while; None where none does.

        Args:
            to_its_end: one that was promised its last step, so that an end before it is seen.
            here: one on this server, where its files are.
        """
        steps = self.witness.steps()
        known = self.witness.here if here else set(self.witness.running)
        running = sorted(job for job in known if steps.get(job, 0) > CHECKPOINTED_AT)
        if to_its_end:
            promises = self.load.promises
            running = [job for job in running if job in promises and promises[job].total]
        return self.random.choice(running) if running else None

    def supervisors(self, job: str) -> list[int]:
        servers: tuple[Server | NodeServer, ...] = (self.server, *self.nodes)
        return [pid for server in servers for pid in server.supervisors(job)]

    def hold(self, least_s: float, most_s: float) -> None:
        time.sleep(self.random.uniform(least_s, most_s))


Fault = Callable[[Field], str]


def kill_service(field: Field) -> str:
    name = field.random.choice(SERVICES)
    tree = field.random.random() < 0.5
    pids = field.server.service(name)
    kill(pids if tree else pids[:1])
    return f"SIGKILL {name}{' and its children' if tree else ''}"


def end_service(field: Field) -> str:
    name = field.random.choice(SERVICES)
    kill(field.server.service(name)[:1], signal.SIGTERM)
    return f"SIGTERM {name}"


def stop_service(field: Field) -> str:
    name = field.random.choice(SERVICES)
    return _stop(field, field.server.service(name), 6, name)


def kill_supervisor(field: Field) -> str:
    job, pids = _of_victim(field, field.supervisors)
    kill(pids)
    return f"SIGKILL supervisor of {job}"


def end_supervisor(field: Field) -> str:
    job, pids = _of_victim(field, field.supervisors)
    kill(pids, signal.SIGTERM)
    return f"SIGTERM supervisor of {job}"


def stop_supervisor(field: Field) -> str:
    job, pids = _of_victim(field, field.supervisors)
    return _stop(field, pids, 6, f"supervisor of {job}")


def kill_nursery(field: Field) -> str:
    """The next supervisor has to come from elsewhere, those that run stay."""
    kill(field.server.nurseries())
    return "SIGKILL nurseries of supervisors"


def stop_nursery(field: Field) -> str:
    return _stop(field, field.server.nurseries(), 6, "nurseries of supervisors")


def kill_rank(field: Field) -> str:
    job, ranks = _of_victim(field, field.server.ranks)
    kill(ranks[-1:])
    return f"SIGKILL rank {len(ranks) - 1} of {job}"


def stop_rank(field: Field) -> str:
    job, ranks = _of_victim(field, field.server.ranks)
    return _stop(field, ranks, 4, f"ranks of {job}")


def _of_victim(
    field: Field, find: Callable[[str], list[int]], *, here: bool = False
) -> tuple[str | None, list[int]]:
    """A job that trains, and some of its processes; nobody where none does."""
    job = field.victim(here=here)
    return job, find(job) if job else []


def _stop(field: Field, pids: list[int], most_s: float, whom: str) -> str:
    kill(pids, signal.SIGSTOP)
    field.hold(1, most_s)
    kill(pids, signal.SIGCONT)
    return f"SIGSTOP and SIGCONT {whom}"


def kill_services(field: Field) -> str:
    """All control processes, but neither their parent nor trainings."""
    kill([pid for name in SERVICES for pid in field.server.service(name)])
    return "SIGKILL web, worker, agent and Redis"


def cut_power(field: Field) -> str:
    field.hit_at = time.monotonic()
    field.server.kill_everything()
    field.server.start()
    return "SIGKILL everything, supervisors too, and a new start"


def upgrade(field: Field) -> str:
    """Ctrl-C and a new start while jobs train (F32)."""
    field.server.stop()
    field.server.start()
    return "restart of everything but the trainings"


def empty_redis(field: Field) -> str:
    """Wake-ups wait in Redis, and it forgets them."""
    worker = field.server.service("worker")
    _stop_between_writes(field.server, worker)
    for _ in range(2):
        field.load.submit("brief")
    kill(field.server.service("redis"))
    for path in (field.server.home / "redis").rglob("*.aof"):  # its manifest stays: it cannot read the rest
        path.unlink(missing_ok=True)
    kill(worker, signal.SIGCONT)
    return "Redis dies with wake-ups and comes back empty"


def _stop_between_writes(server: Server, pids: list[int]) -> None:
    """Stop processes where none of them holds the lock of the database: no submit would be taken until they go on."""
    while True:
        kill(pids, signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(server.home / "db.sqlite3", timeout=2)) as database:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                kill(pids, signal.SIGCONT)
                time.sleep(0.1)
            else:
                database.rollback()
                return


def keep_redis_away(field: Field) -> str:
    until = time.monotonic() + field.random.uniform(3, 8)
    while time.monotonic() < until:
        kill(field.server.service("redis"))
        time.sleep(0.1)
    return "Redis killed at each start for some seconds"


def lock_database(field: Field) -> str:
    with contextlib.closing(sqlite3.connect(field.server.home / "db.sqlite3", timeout=20)) as database:
        database.execute("BEGIN IMMEDIATE")
        field.hold(2, 8)
        database.rollback()
    return "another process locks the database"


def fill_disk(field: Field) -> str:
    path = field.server.home / FULL_FILE
    try:
        with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            block = b"\0" * (1 << 20)
            while True:
                file.write(block)
        field.hold(2, 5)
    finally:
        path.unlink(missing_ok=True)
    return "disk full"


def corrupt_checkpoint(field: Field) -> str:
    return corrupt(field, field.random.choice(DAMAGES))


def flip_bit(field: Field) -> str:
    return corrupt(field, "bit")


def corrupt(field: Field, how: str) -> str:
    """The newest generation is damaged, the script's own file torn, and the rank dies."""
    job, ranks = _of_victim(field, field.server.ranks, here=True)
    if job is None:
        return "no checkpoint damaged: nothing trains here"
    kill(ranks, signal.SIGSTOP)  # it must not write another meanwhile
    time.sleep(1.5)  # the keeper takes what lies there, if it has not yet
    folder = field.server.home / "jobs" / str(job)
    generations = [path for path in folder.glob("generations/*") if path.name.isdigit()]
    if generations:
        newest = max(generations, key=lambda path: int(path.name))
        damage(newest, how, field.random)
        own = folder / "checkpoints" / "count.pt"
        own.unlink(missing_ok=True)
        own.write_bytes(b"PK\x03\x04 torn")
    kill(ranks)
    return f"checkpoint of {job} damaged ({how}), rank killed"


def damage(generation: Path, how: str, chance: random.Random) -> None:
    """Change the bytes of a kept checkpoint; its size stays but for ``cut``."""
    manifest = generation / "manifest.json"
    if how == "no manifest":
        manifest.unlink()
        return
    if how == "manifest":
        manifest.write_bytes(manifest.read_bytes()[:40])
        return
    path = next(path for path in generation.rglob("*") if path.is_file() and path != manifest)
    data = bytearray(path.read_bytes())
    path.unlink()  # the bytes may be shared with an older generation by a link
    if how == "bit":
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    elif how == "page":
        begin = chance.randrange(max(1, len(data) - 4096))
        data[begin : begin + 4096] = bytes(len(data[begin : begin + 4096]))
    else:
        del data[chance.randrange(len(data)) :]
    path.write_bytes(bytes(data))


def jump_clock(field: Field) -> str:
    jumps = field.random.choice(([3600], [-3600], [10, -10] * 4))
    for jump in jumps:
        set_clock(field.clock, jump)
        field.hold(4 / len(jumps), 6 / len(jumps))
    set_clock(field.clock, 0)
    return f"clock jumps by {' and '.join(f'{jump:+d}' for jump in dict.fromkeys(jumps))} s, and back"


def set_clock(path: Path, offset_s: int) -> None:
    part = path.with_suffix(".part")
    part.write_text(str(offset_s))
    part.replace(path)


def plant_old_record(field: Field) -> str:
    """The exit record of another attempt lies where this one's belongs: it must not end it."""
    job = field.victim(to_its_end=True, here=True)
    if job is not None:
        number = max(field.witness.running.get(job, {1}))
        record = {
            "v": 1,
            "number": number - 1,
            "nonce": "of another",
            "kind": "ok",
            "detail": "",
            "ranks": [],
        }
        folder = field.server.folder(job, number)
        part = folder / ".planted"
        part.write_text(json.dumps(record))
        part.replace(folder / "exit.json")
        time.sleep(1)
    return f"exit record of an older attempt in the folder of {job}"


def open_socket_from_elsewhere(field: Field) -> str:
    """A page of another site opens the websocket (B62)."""
    with contextlib.suppress(OSError):
        if b" 101 " in shake_hands(field.server, "https://elsewhere.example"):
            field.witness.findings.intruders.append("a page of another site got a websocket")
    return "websocket from another origin"


def shake_hands(server: Server, origin: str) -> bytes:
    """The first line of the answer to a websocket's handshake with a valid token."""
    head = (
        f"GET /ws/v1/ HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: {origin}\r\n"
        f"Authorization: Token {server.token}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(head.encode())
        return connection.recv(4096).split(b"\r\n")[0]


def submit_eight_times(field: Field) -> str:
    field.load.repeat()
    return "one submit eight times at once"


def start_second_agent(field: Field) -> str:
    """It must refuse (F31), unless the first is just being started again and it comes first."""
    second = subprocess.Popen(
        [sys.executable, "manage.py", "agent"],
        cwd=REPOSITORY,
        env=field.server.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    lock = field.server.home / "agent.lock"
    deadline = time.monotonic() + 60
    while second.poll() is None and not holds(second.pid, lock) and time.monotonic() < deadline:
        time.sleep(0.1)
    if second.poll() is None and not holds(second.pid, lock):
        field.witness.findings.doubled.append("a second agent ran beside the first")
    second.kill()
    second.wait()
    return "a second agent is started"


def holds(pid: int, lock: Path) -> bool:
    """Whether a process has the flock on a file."""
    inode = lock.stat().st_ino
    words = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
    return any(line[1] == "FLOCK" and line[4] == str(pid) and line[5].endswith(f":{inode}") for line in words)


def cut_submit(field: Field) -> str:
    """The web process dies while a submit is under way; its key is used again (F01, F02)."""
    pids = field.server.service("web")
    killer = os.fork()
    if killer == 0:
        time.sleep(field.random.uniform(0, 0.05))
        kill(pids)
        os._exit(0)
    field.load.submit("brief")
    os.waitpid(killer, 0)
    return "SIGKILL web during a submit"


# How often each is chosen, beside the others.
FAULTS: tuple[tuple[int, Fault], ...] = (
    (6, kill_service),
    (3, end_service),
    (4, stop_service),
    (4, kill_supervisor),
    (1, end_supervisor),
    (2, stop_supervisor),
    (2, kill_nursery),
    (2, stop_nursery),
    (6, kill_rank),
    (2, stop_rank),
    (2, kill_services),
    (2, cut_power),
    (1, upgrade),
    (2, empty_redis),
    (1, keep_redis_away),
    (2, lock_database),
    (2, fill_disk),
    (4, corrupt_checkpoint),
    (2, jump_clock),
    (2, plant_old_record),
    (1, open_socket_from_elsewhere),
    (1, submit_eight_times),
    (1, start_second_agent),
    (2, cut_submit),
)


def draw(field: Field, count: int, more: Sequence[tuple[int, Fault]] = ()) -> list[Fault]:
    """The faults of a campaign in their order: each kind once if there is room, then by weight."""
    known = (*FAULTS, *more)
    possible = [(weight, fault) for weight, fault in known if fault is not fill_disk or field.small_disk]
    kinds = [fault for _, fault in possible]
    field.random.shuffle(kinds)
    rest = field.random.choices(
        [fault for _, fault in possible], [weight for weight, _ in possible], k=max(0, count - len(kinds))
    )
    chosen = [*kinds, *rest][:count]
    field.random.shuffle(chosen)
    return chosen
