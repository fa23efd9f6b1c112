"""A server with eight GPUs, one of them lost: Berth with NVIDIA's driver library replaced by a stub."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import lacking
from tests.devices.stub import build_stub, stub_environment
from tests.system.server import Server

pytestmark = pytest.mark.slow

SHOW = """
import os, time
print(os.environ["CUDA_VISIBLE_DEVICES"], flush=True)
time.sleep(float(os.environ.get("SECONDS", "0")))
"""


@pytest.fixture
def gpus(tmp_path: Path, make_server: Callable[..., Server]) -> Server:
    folder = tmp_path / "stub"
    folder.mkdir()
    try:
        library = build_stub(folder)
    except FileNotFoundError as error:
        lacking(str(error))
    (folder / "control").write_text("error.7 15\n")
    return make_server("nvml", stub_environment(library)).start()


def real(server: Server) -> list[dict[str, Any]]:
    """The GPUs, without the CPU slots beside them."""
    return [device for device in server.get("/devices")["results"] if device["kind"] == "gpu"]


def test_jobs_see_the_gpus_they_were_given_and_a_lost_one_is_given_to_nobody(gpus: Server) -> None:
    gpus.wait_until(lambda: real(gpus)[7]["health"] == "faulty")
    ids = [device["id"] for device in real(gpus)]

    first = gpus.submit(SHOW, gpus=4, env={"SECONDS": "30"}, launcher="direct", grace_period_s=0)
    second = gpus.submit(SHOW, gpus=3, env={"SECONDS": "30"}, launcher="direct", grace_period_s=0)
    third = gpus.submit(SHOW)
    seen = [gpus.wait_for_line(job, "\n").strip().split(",") for job in (first, second)]
    gpus.wait_until(lambda: (gpus.job(third)["explanation"] or {}).get("sentence"))
    without_gpu = gpus.submit(SHOW, gpus=0)  # all GPUs are held or lost
    gpus.wait_for_end(without_gpu)
    waiting = gpus.job(third)["state"]
    gpus.post(f"/jobs/{first}/cancel")
    gpus.wait_for_end(third)

    assert sorted(seen[0] + seen[1]) == sorted(ids[:7])
    assert waiting == "queued"
    assert gpus.log(without_gpu) == "\n"
    assert (gpus.job(without_gpu)["pool"], gpus.job(without_gpu)["gpus"]) == ("cpu", 0)
    assert gpus.log(third).strip() in seen[0]
    impossible, answer = gpus.call("POST", "/jobs", {"source": {"text": SHOW}, "gpus": 9})
    assert impossible == 422, answer
    gpus.post(f"/jobs/{second}/cancel")
    gpus.wait_for_end(second)


def test_f76_a_gpu_that_comes_back_is_used_again(gpus: Server, tmp_path: Path) -> None:
    gpus.wait_until(lambda: real(gpus)[7]["health"] == "faulty")

    (tmp_path / "stub/control").write_text("")

    gpus.wait_until(lambda: real(gpus)[7]["health"] == "ok")
    job = gpus.submit(SHOW, gpus=8, launcher="direct")
    assert gpus.wait_for_end(job)["state"] == "succeeded"
    assert len(gpus.log(job).split(",")) == 8
