"""CPU slots and simulated GPUs, with real processes on them."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from orchestrator.devices import Devices, Holder, Reading, open_devices, read_host
from orchestrator.exceptions import Malformed

MIB = 2**20
GIB = 2**30
# 64 MiB that are really there, then one line, then idle or busy until the end of stdin.
HOLD = "import sys; kept = bytes([1]) * (64 << 20); print('ready', flush=True); sys.stdin.read()"
SPIN = "print('ready', flush=True)\nwhile True: pass"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start_rank() -> Iterator[Start]:
    """Starts a process as a rank of the attempt with a nonce."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, nonce: str, rank: int | None = 0, *arguments: str) -> subprocess.Popen[str]:
        mine = {"BERTH_NONCE": nonce} | ({} if rank is None else {"LOCAL_RANK": str(rank)})
        process = subprocess.Popen(
            [sys.executable, "-c", script, *arguments],
            env=os.environ | mine,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def _holder(device_id: str, rank: int = 0, nonce: str = "n1") -> Holder:
    return Holder(device_id, "job-1", 3, rank, None, nonce)


def _by_device(devices: Devices, *holders: Holder) -> dict[str, Reading]:
    return {reading.device_id: reading for reading in devices.read(holders)}


def test_slots_beside_gpus_are_read_with_them(start_rank):
    devices = open_devices("sim:2x80GiB", cpu_slots=3)
    process = start_rank(HOLD, "n1")
    ids = ["sim-0", "sim-1", "cpu-0", "cpu-1", "cpu-2"]

    readings = _by_device(devices, _holder("cpu-1"))

    assert (devices.kind, [info.id for info in devices.inventory()]) == ("sim", ids)
    assert list(readings) == ids
    assert [each.pid for each in readings["cpu-1"].processes] == [process.pid]
    assert readings["sim-0"].used_bytes == 0


@pytest.mark.parametrize(("spec", "slots"), [("sim:2x80GiB", None), ("sim:2x80GiB", 0), ("cpu:2", 3)])
def test_simulated_gpus_and_slots_get_no_slots_beside_them_unasked(spec, slots):
    assert {info.kind for info in open_devices(spec, slots).inventory()} == {spec[:3]}


def test_simulated_gpus_have_the_memory_they_were_given():
    found = open_devices("sim:8x80GiB").inventory()

    assert [info.index for info in found] == list(range(8))
    assert {(info.kind, info.name, info.memory_bytes) for info in found} == {
        ("sim", "Simulated GPU", 80 * GIB)
    }


def test_cpu_slots_divide_the_memory_of_the_host():
    found = open_devices("cpu:4").inventory()

    assert [info.id for info in found] == ["cpu-0", "cpu-1", "cpu-2", "cpu-3"]
    assert sum(info.memory_bytes for info in found) == pytest.approx(read_host().memory_total_bytes, abs=4)


@pytest.mark.parametrize(
    "spec", ["", "gpu", "cpu", "cpu:0", "cpu:-1", "sim:8", "sim:0x80GiB", "sim:8x80GB", "cpu:4 "]
)
def test_a_wrong_spec_is_refused_with_what_would_be_right(spec: str):
    with pytest.raises(Malformed, match=r"Use auto, nvml, cpu:4 or sim:8x80GiB"):
        open_devices(spec)


def test_each_rank_is_read_on_its_own_device(start_rank: Start):
    ranks = [start_rank(HOLD, "n1", rank) for rank in (0, 1)]

    seen = _by_device(open_devices("cpu:3"), _holder("cpu-2", 0), _holder("cpu-0", 1))

    assert [process.pid for process in seen["cpu-2"].processes] == [ranks[0].pid]
    assert [process.pid for process in seen["cpu-0"].processes] == [ranks[1].pid]
    assert seen["cpu-1"].processes == ()
    assert 64 * MIB < seen["cpu-2"].used_bytes < 256 * MIB
    assert seen["cpu-2"].processes[0].attempt == "job-1:3"


def test_children_that_drop_their_environment_count_for_their_rank(start_rank: Start):
    parent = start_rank(
        "import subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-c', {HOLD!r}], env={{}}, stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print('ready', flush=True); sys.stdin.read(); child.kill()",
        "n1",
        1,
    )

    seen = _by_device(open_devices("cpu:2"), _holder("cpu-0", 0), _holder("cpu-1", 1))

    assert len(seen["cpu-1"].processes) == 2
    assert seen["cpu-0"].processes == ()
    assert parent.stdin is not None
    parent.communicate("")


def test_the_launcher_of_the_ranks_counts_for_the_first(start_rank: Start):
    agent = start_rank(HOLD, "n1", None)

    seen = _by_device(open_devices("cpu:2"), _holder("cpu-0", 1), _holder("cpu-1", 0))

    assert [process.pid for process in seen["cpu-1"].processes] == [agent.pid]


def test_processes_of_another_nonce_are_not_counted(start_rank: Start):
    start_rank(HOLD, "of an attempt that ended")

    assert _by_device(open_devices("cpu:1"), _holder("cpu-0"))["cpu-0"].processes == ()


def test_a_busy_rank_shows_its_cpu_and_an_idle_one_none(start_rank: Start):
    start_rank(SPIN, "n1", 0)
    start_rank(HOLD, "n1", 1)
    devices = open_devices("sim:2x80GiB")
    holders = (_holder("sim-0", 0), _holder("sim-1", 1))

    first = _by_device(devices, *holders)
    time.sleep(0.6)
    second = _by_device(devices, *holders)

    assert first["sim-0"].utilization_percent is None
    busy, idle = (second[name].utilization_percent or 0 for name in ("sim-0", "sim-1"))
    assert busy > 1  # where twenty others compute, no more is left for it
    assert idle < 10
    assert busy > 4 * idle


def test_a_simulated_gpu_invents_no_numbers(start_rank: Start):
    start_rank(HOLD, "n1")

    reading = _by_device(open_devices("sim:2x80GiB"), _holder("sim-0"))["sim-0"]

    assert (reading.temperature_c, reading.power_w) == (None, None)


def test_a_free_device_shows_nothing_in_use():
    (reading,) = open_devices("cpu:1").read(())

    assert (reading.used_bytes, reading.processes, reading.utilization_percent) == (0, (), None)


def test_the_host_shows_plausible_numbers():
    host = read_host()

    assert 0 < host.memory_used_bytes < host.memory_total_bytes
    assert 0 <= host.cpu_percent <= 100
    assert host.disk_free_bytes > 0
