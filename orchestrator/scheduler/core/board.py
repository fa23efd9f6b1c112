"""Where jobs could go if others were stopped: the model that a ranked pass changes while it plans."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from orchestrator.scheduler.core.fragmentation import Ask, lost_milli, placement_score
from orchestrator.scheduler.core.packing import fullest, tightest
from orchestrator.scheduler.core.room import NOWHERE, Room, allows
from orchestrator.scheduler.core.types import (
    ANYWHERE,
    Device,
    Job,
    RunningJob,
)

ScoredChoice = tuple[tuple[Any, ...], list[Device]]  # score, smaller is better, and the choice on one node
Costs = Callable[[str], float | None]  # the cost of stopping a tenant; None: it must stay


@dataclass(slots=True)
class Site:
    """A device and its tenants in the plan."""

    device: Device
    whole_ok: bool
    share_bytes: int  # memory for shares; NOWHERE: none
    free_bytes: int
    tenants: dict[str, int | None] = field(default_factory=dict)  # bytes by job id; None: the whole device
    beyond: dict[str, int] = field(default_factory=dict)  # of these bytes, those beyond the job's claim

    def fits(self, memory_bytes: int | None) -> bool:
        if memory_bytes is None:
            return self.whole_ok and not self.tenants
        return self.free_bytes >= memory_bytes

    def could_fit(self, memory_bytes: int | None) -> bool:
        return self.whole_ok if memory_bytes is None else self.share_bytes >= memory_bytes

    def free_milli(self) -> int:
        """Free thousandths of the device; 1000 only if a job that needs the whole device fits."""
        if self.fits(None):
            return 1000
        return min(999, max(0, self.free_bytes) * 1000 // max(1, self.device.total_bytes))

    def count(self) -> None:
        """Recompute the free memory from the tenants."""
        if None in self.tenants.values():
            self.free_bytes = NOWHERE
        elif self.share_bytes != NOWHERE:
            self.free_bytes = self.share_bytes - sum(claim or 0 for claim in self.tenants.values())


@dataclass(frozen=True, slots=True)
class Spot:
    """Devices for a job, and the jobs that must leave them first."""

    device_ids: tuple[str, ...]
    victims: tuple[str, ...] = ()
    giving_back: frozenset[str] = frozenset()  # of these, the jobs that hold memory beyond their claims


class Board:
    """The usable devices of a pool with their planned tenants."""

    def __init__(self, room: Room, running: Iterable[RunningJob], mix: Sequence[Ask] = ()) -> None:
        """``mix``: recent request shapes; if given, shares go where they cost later requests least."""
        self._mix = mix
        self._room = room
        self._jobs: dict[str, Job] = {}  # whose work counts for their neighbours
        self.sites: dict[str, Site] = {}
        self.nodes: dict[str, list[Site]] = defaultdict(list)
        self._spots: dict[str, list[str]] = {}
        self._choices: dict[tuple[str, int], ScoredChoice | None] = {}
        for device in room.usable.values():
            share = max(0, device.total_bytes - device.others_bytes)
            taken = bool(room.tenants.get(device.id))
            free = share if taken else room.free_bytes(device, whole=False)
            site = Site(device, room.calm(device), share, free)
            self.sites[device.id] = site
            self.nodes[device.node].append(site)
        for job in running:
            self._occupy(job)
        self._sizes = sorted((len(sites) for sites in self.nodes.values()), reverse=True)

    def _occupy(self, job: RunningJob) -> None:
        spots = [share for share in job.shares if share.device_id in self.sites]
        if job.work:
            self._jobs[job.id] = job
        for share in spots:
            site = self.sites[share.device_id]
            site.tenants[job.id] = share.taken_bytes
            if share.beyond_bytes:
                site.beyond[job.id] = share.beyond_bytes
            site.count()
        self._spots[job.id] = [share.device_id for share in spots]

    def take(self, job: Job, device_ids: Sequence[str]) -> None:
        held = []
        job_id, memory_bytes = job.id, job.memory_bytes
        if job.work:
            self._jobs[job_id] = job
        for id_ in device_ids:
            site = self.sites.get(id_)
            if site is None:
                continue
            empty = not site.tenants
            site.tenants[job_id] = memory_bytes
            if empty and memory_bytes is not None:
                site.free_bytes -= memory_bytes  # memory that external processes hold here stays taken
            else:
                site.count()
            held.append(id_)
            self._forget(site)
        self._spots[job_id] = held

    def give(self, job_id: str) -> None:
        """Take a running job out of the plan."""
        for id_ in self._spots.pop(job_id, ()):
            site = self.sites[id_]
            del site.tenants[job_id]
            site.beyond.pop(job_id, None)
            site.count()
            self._forget(site)

    def _forget(self, site: Site) -> None:
        for key in [key for key in self._choices if key[0] == site.device.node]:
            del self._choices[key]

    def crowds(self, site: Site, job: Job, tenants: Iterable[str]) -> bool:
        """Whether a job and these tenants would slow each other on a device beyond the pool's limit."""
        if not job.work:
            return False
        beside = [self._jobs[id_] for id_ in tenants if id_ in self._jobs]
        return self._room.crowds(site.device, job, beside) is not None

    def _takes(self, site: Site, job: Job, closed: frozenset[str]) -> bool:
        """Whether one rank of a job can go to a device as it is in the plan."""
        return (
            site.fits(job.memory_bytes)
            and site.device.id not in closed
            and allows(job.constraints, site.device)
            and not self.crowds(site, job, site.tenants)
        )

    def units(self) -> float:
        """How many devices the pool can offer."""
        return float(sum(site.whole_ok or site.share_bytes > 0 for site in self.sites.values()))

    def node_limit(self) -> int:
        return self._sizes[0] if self._sizes else 0

    def parts(self, job: Job, *, span: bool) -> tuple[int, ...]:
        """How many ranks go to each node."""
        if parts := self._room.span(job):
            return parts
        largest = self.node_limit()
        if not span or job.gpus <= largest or largest == 0:
            return (job.gpus,)
        whole, rest = divmod(job.gpus, largest)
        return (largest,) * whole + ((rest,) if rest else ())

    def free_spot(
        self, job: Job, parts: tuple[int, ...], closed: frozenset[str] = frozenset()
    ) -> Spot | None:
        """Devices that are free in the plan, ``closed`` ones excluded."""
        chosen: list[str] = []
        used: set[str] = set()
        for count in parts:
            device_ids = self._free_part(job, count, used, closed)
            if device_ids is None:
                return None
            used.add(self.sites[device_ids[0]].device.node)
            chosen += device_ids
        return Spot(tuple(chosen))

    def _free_part(self, job: Job, count: int, used: set[str], closed: frozenset[str]) -> list[str] | None:
        if self._mix and count == 1 and job.memory_bytes is not None:
            return self._least_lost(job, job.memory_bytes, used, closed)
        plain = job.memory_bytes is None and not closed and job.constraints is ANYWHERE
        best: ScoredChoice | None = None
        for node, sites in self.nodes.items():
            if node in used:
                continue
            if plain and (node, count) in self._choices:
                choice = self._choices[node, count]
            else:
                choice = self._on_node(job, count, sites, closed)
                if plain:
                    self._choices[node, count] = choice
            if choice is not None and (best is None or choice[0] < best[0]):
                best = choice
        return None if best is None else [device.id for device in best[1]]

    def _least_lost(self, job: Job, need: int, used: set[str], closed: frozenset[str]) -> list[str] | None:
        """The device where a share adds least to the memory that later requests cannot use (``fragmentation``)."""
        best: tuple[float, int, str] | None = None
        for node, sites in self.nodes.items():
            if node in used:
                continue
            free = [site.free_milli() for site in sites]
            lost = lost_milli(free, self._mix)
            for place, site in enumerate(sites):
                if not self._takes(site, job, closed):
                    continue
                after = list(free)
                after[place] = max(0, after[place] - need * 1000 // max(1, site.device.total_bytes))
                rest = sum(after) / (1000 * len(sites))
                score = placement_score(lost_milli(after, self._mix) - lost, rest)
                if best is None or (score, site.device.index, site.device.id) < best:
                    best = (score, site.device.index, site.device.id)
        return None if best is None else [best[2]]

    def _on_node(
        self, job: Job, count: int, sites: Sequence[Site], closed: frozenset[str]
    ) -> ScoredChoice | None:
        need = job.memory_bytes
        fitting = [site for site in sites if self._takes(site, job, closed)]
        if len(fitting) < count:
            return None
        if need is None:
            return tightest([site.device for site in fitting], count)
        return fullest([(site.device, bool(site.tenants), site.free_bytes) for site in fitting], count)

    def cleared_spot(
        self, job: Job, parts: tuple[int, ...], costs: Costs, closed: frozenset[str] = frozenset()
    ) -> Spot | None:
        """Devices that are free once the cheapest victims have left them, ``closed`` ones excluded."""
        chosen: list[str] = []
        victims: list[str] = []
        used: set[str] = set()
        for count in parts:
            options = [
                (*option, node)
                for node, sites in self.nodes.items()
                if node not in used and (option := self._clear_node(job, count, sites, costs, closed))
            ]
            if not options:
                return None
            _, ids, leaving, node = min(options, key=lambda option: (option[0], option[3]))
            used.add(node)
            chosen += ids
            victims += [victim for victim in leaving if victim not in victims]
        giving = {id_ for device in chosen for id_ in self._who_gives_back(self.sites[device], job)}
        return Spot(tuple(chosen), tuple(victims), giving_back=frozenset(giving.intersection(victims)))

    def _clear_node(
        self, job: Job, count: int, sites: Sequence[Site], costs: Costs, closed: frozenset[str]
    ) -> tuple[float, list[str], list[str]] | None:
        able = [
            site
            for site in sites
            if site.could_fit(job.memory_bytes)
            and site.device.id not in closed
            and allows(job.constraints, site.device)
        ]
        if len(able) < count:
            return None
        options = []
        for site in able:
            cleared = self._clear_site(site, job, costs)
            if cleared is not None:
                options.append((cleared[0], site.device.index, site.device.id, cleared[1]))
        if len(options) < count:
            return None
        options.sort()
        leaving = sorted({victim for option in options[:count] for victim in option[3]})
        free = {id_ for option in options[:count] for id_ in self._who_gives_back(self.sites[option[2]], job)}
        total = sum(costs(victim) or 0.0 for victim in leaving if victim not in free)
        return total, [option[2] for option in options[:count]], leaving

    def _clear_site(self, site: Site, job: Job, costs: Costs) -> tuple[float, list[str]] | None:
        """The cheapest tenants to stop so that one rank fits; a tenant's cost is spread over its devices."""
        need = job.memory_bytes
        if site.fits(need) and not self.crowds(site, job, site.tenants):
            return 0.0, []
        if giving := self._who_gives_back(site, job):
            return 0.0, giving
        priced = [
            (cost / len(self._spots[id_]), id_) for id_ in site.tenants if (cost := costs(id_)) is not None
        ]
        if need is None or site.free_bytes == NOWHERE:  # all of them have to go
            stay = len(priced) < len(site.tenants)
            return None if stay else (sum(cost for cost, _ in priced), [id_ for _, id_ in priced])
        for cost, id_ in sorted(priced) if site.fits(need) else ():  # there is memory: one has to go
            if not self.crowds(site, job, [tenant for tenant in site.tenants if tenant != id_]):
                return cost, [id_]
        leaving: list[str] = []
        total, free = 0.0, site.free_bytes
        for cost, id_ in sorted(priced):
            leaving.append(id_)
            total += cost
            free += site.tenants[id_] or 0
            staying = [tenant for tenant in site.tenants if tenant not in leaving]
            if free >= need and not self.crowds(site, job, staying):
                return total, leaving
        return None

    def _who_gives_back(self, site: Site, job: Job) -> list[str]:
        """The jobs that must leave because they hold memory beyond their claims, where the claims have room for one rank.

        The largest first, until it fits: they return to what they claim, which stays theirs.
        """
        need = job.memory_bytes
        if need is None or not site.beyond or site.fits(need):
            return []
        giving: list[str] = []
        free = site.free_bytes
        for id_, beyond in sorted(site.beyond.items(), key=lambda one: (-one[1], one[0])):
            giving.append(id_)
            free += beyond
            if free >= need:
                staying = [tenant for tenant in site.tenants if tenant not in giving]
                return [] if self.crowds(site, job, [*staying, *giving]) else giving
        return []
