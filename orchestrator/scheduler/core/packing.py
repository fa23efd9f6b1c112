"""Which of the free devices a job gets: best fit, so that large holes stay whole."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from orchestrator.scheduler.core.room import Room, allows
from orchestrator.scheduler.core.types import Device, Job, Share


def place(room: Room, job: Job, held: frozenset[str] = frozenset()) -> tuple[Share, ...] | None:
    """Choose devices of one node for all ranks; None if no node has enough free devices.

    Whole devices: fewest NUMA groups, most NVLinks among the chosen, then the node with the fewest free
    devices.  Shares: the devices on which least memory remains, shared ones first.
    """
    whole = job.memory_bytes is None
    need = job.memory_bytes or 0
    if room.most_free_bytes(job.gpus, job.constraints, whole=whole, held=held) < need:
        return None
    by_node: dict[str, list[Device]] = defaultdict(list)
    for id_, device in room.usable.items():
        if id_ in held or not allows(job.constraints, device):
            continue
        if room.free_bytes(device, whole=whole) >= need and not room.crowded(device, job):
            by_node[device.node].append(device)
    nodes = [devices for devices in by_node.values() if len(devices) >= job.gpus]
    if not nodes:
        return None
    if whole:
        chosen = min((tightest(free, job.gpus) for free in nodes), key=lambda choice: choice[0])[1]
    else:
        chosen = min((_shared(room, free, job.gpus) for free in nodes), key=lambda choice: choice[0])[1]
    return tuple(Share(device.id, job.memory_bytes) for device in chosen)


def _shared(room: Room, fitting: Sequence[Device], count: int) -> tuple[tuple[object, ...], list[Device]]:
    return fullest(
        [
            (device, bool(room.tenants.get(device.id)), room.free_bytes(device, whole=False))
            for device in fitting
        ],
        count,
    )


def fullest(
    fitting: Sequence[tuple[Device, bool, int]], count: int
) -> tuple[tuple[object, ...], list[Device]]:
    """The devices of one node, given as (device, is shared, free bytes), on which least memory remains.

    MIG slices come first, the smallest that holds the claim before the others: a slice is of little other use,
    and its memory is safe from neighbours.
    """

    def rest(option: tuple[Device, bool, int]) -> tuple[bool, bool, int, int, str]:
        device, shared, free_bytes = option
        is_slice = device.mig_parent is not None
        return (not is_slice, not is_slice and not shared, free_bytes, device.index, device.id)

    chosen = sorted(fitting, key=rest)[:count]
    score = ([rest(option)[:3] for option in chosen], fitting[0][0].node)
    return score, sorted((option[0] for option in chosen), key=_number)


def tightest(free: Sequence[Device], count: int) -> tuple[tuple[int, int, int, str], list[Device]]:
    """The best choice on one node and its score, smaller is better."""
    groups: dict[int | None, list[Device]] = defaultdict(list)
    for device in free:
        groups[device.numa_node].append(device)
    chosen: list[Device] = []
    used_groups = 0
    # A job that asked for whole devices gets devices without slices if there are enough.
    whole = [device for device in free if device.mig_parent is None]
    if len(whole) >= count > 0 and len(whole) < len(free):
        return tightest(whole, count)
    # Largest groups first; for the remaining devices, the smallest group that holds them all.
    unused = sorted(groups.values(), key=lambda group: (-len(group), _number(group[0])))
    while len(chosen) < count:
        missing = count - len(chosen)
        holding = [group for group in unused if len(group) >= missing]
        group = min(holding, key=lambda group: (len(group), _number(group[0]))) if holding else unused[0]
        unused.remove(group)
        used_groups += 1
        chosen += _linked(group, min(missing, len(group)))
    chosen.sort(key=_number)
    return (used_groups, -_links(chosen, chosen), len(free), free[0].node), chosen


def _linked(group: Sequence[Device], count: int) -> list[Device]:
    """Grow a set from every device along its links; return the set with most links inside.

    Ties go to the set with the fewest links to devices that stay free, which leaves other cliques whole.
    """
    group = sorted(group, key=_number)
    if count >= len(group) or not any(device.nvlink for device in group):
        return list(group[:count])

    def score(chosen: Sequence[Device]) -> tuple[int, int, list[tuple[int, str]]]:
        inside = _links(chosen, chosen)
        return (-inside, _links(chosen, group) - inside, sorted(map(_number, chosen)))

    return min((_grow(seed, group, count) for seed in group), key=score)


def _grow(seed: Device, group: Sequence[Device], count: int) -> list[Device]:
    chosen = [seed]
    while len(chosen) < count:
        rest = [device for device in group if device not in chosen]
        chosen.append(min(rest, key=lambda device: (-_links([device], chosen), _number(device))))
    return chosen


def _links(some: Iterable[Device], others: Sequence[Device]) -> int:
    ids = {device.id for device in others}
    return sum(linked in ids for device in some for linked in device.nvlink)


def _number(device: Device) -> tuple[int, str]:
    return (device.index, device.id)
