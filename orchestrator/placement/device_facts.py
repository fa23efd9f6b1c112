"""A device as the scheduler sees it: its row, and what was measured on it last."""

from typing import Any

from orchestrator import scheduling
from orchestrator.models import Device


def device_facts(row: Device, reading: dict[str, Any] | None) -> scheduling.Device:
    return scheduling.Device(
        id=row.id,
        node=row.node,
        pool=row.pool_id,
        total_bytes=row.memory_bytes,
        kind=row.kind,
        index=row.index,
        used_bytes=reading["used_bytes"] if reading else 0,
        foreign_bytes=reading["foreign_bytes"] if reading else 0,
        admin_state=row.admin_state,
        health=row.health,
        numa_node=row.numa_node,
        nvlink=tuple(row.nvlink),
        mig_parent=row.mig_parent or None,
        mig_profile=row.mig_profile or None,
    )
