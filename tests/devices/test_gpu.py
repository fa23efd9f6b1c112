"""Real readings of a real GPU; ``make gpu`` runs them, and a dry run collects them."""

import os
import shutil
import subprocess
import sys

import pytest

from orchestrator.devices.nvml import NvmlDevices

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def smi() -> list[str]:
    """What ``nvidia-smi`` says of the first GPU: UUID, name, total and used MiB."""
    if shutil.which("nvidia-smi") is None or os.environ.get("CUDA_VISIBLE_DEVICES") == "":
        pytest.skip("there is no NVIDIA GPU")
    query = [
        "nvidia-smi",
        "--query-gpu=uuid,name,memory.total,memory.used",
        "--format=csv,noheader,nounits",
        "-i",
        "0",
    ]
    done = subprocess.run(query, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip("there is no NVIDIA GPU")
    return [each.strip() for each in done.stdout.splitlines()[0].split(",")]


def test_readings_agree_with_nvidia_smi(smi: list[str]) -> None:
    devices = NvmlDevices()
    uuid, name, total_mib, used_mib = smi
    try:
        (info,) = [each for each in devices.inventory() if each.id == uuid]
        (reading,) = [each for each in devices.read([]) if each.device_id == uuid]
    finally:
        devices.close()

    assert info.name == name
    assert info.memory_bytes / 2**20 == pytest.approx(float(total_mib), rel=0.05)
    # What the driver keeps for itself is not in use: over 500 MiB on an H200, which nvidia-smi leaves out too.
    assert reading.used_bytes / 2**20 == pytest.approx(float(used_mib), abs=256)
    assert reading.error is None


def test_process_of_nobody_is_seen_on_its_gpu(smi: list[str]) -> None:
    code = "import torch; kept = torch.zeros(1 << 26, device='cuda'); print('there', flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "there\n"
        devices = NvmlDevices()
        try:
            (reading,) = [each for each in devices.read([]) if each.device_id == smi[0]]
        finally:
            devices.close()
            process.kill()

    # In a container the driver may know processes by other ids, so their number counts.
    assert any(each.used_bytes >= 1 << 28 and each.attempt is None for each in reading.processes)
