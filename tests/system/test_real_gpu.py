"""Berth with NVIDIA's driver on one real GPU, through a whole server; ``make gpu PARTS=server`` runs it.

In a dry run the same jobs compute on the CPU: on a simulated GPU, or where the driver's answers matter, with a stub of it.
"""

import contextlib
import getpass
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import DRY_RUN_VARIABLE, read_device
from tests.devices.stub import build_stub, stub_environment
from tests.system.server import Prepared, Server, kill
from tests.system.trainings import assert_resumed

pytestmark = [pytest.mark.gpu, pytest.mark.slow]
DRY_RUN = DRY_RUN_VARIABLE in os.environ
GIB = 2**30
# On a GPU a claim also holds the CUDA context, 768 MiB of it.
CLAIM_GIB, MODEST_MIB, GREEDY_MIB = (1, 64, 1500) if DRY_RUN else (4, 1024, 8192)
AT_REST_BYTES = GIB  # an idle GPU, also where its driver does not tell what it keeps for itself
AT_ONCE: dict[str, Any] = {"grace_period_s": 0}

CHOOSE = """
import os, sys, time, torch
device = "cuda" if torch.cuda.is_available() else "cpu"
"""
COMPUTE = (
    CHOOSE
    + """
left, right = torch.randn(256, 256, dtype=torch.float64), torch.randn(256, 256, dtype=torch.float64)
error = float((left @ right - (left.to(device) @ right.to(device)).cpu()).abs().max())
print("computed", device, torch.cuda.device_count(), os.environ["CUDA_VISIBLE_DEVICES"] or "-", error < 1e-9, flush=True)
"""
)
TRAIN = (
    CHOOSE
    + """
from training import Checkpointer
torch.manual_seed(0)
model = torch.nn.Linear(64, 1).to(device)
optimizer = torch.optim.Adam(model.parameters())
checkpointer = Checkpointer()
saved = checkpointer.load_latest()
done = 0
if saved is not None:
    model.load_state_dict(saved.state["model"])
    optimizer.load_state_dict(saved.state["optimizer"])
    done = saved.step
print("began at", done, flush=True)
inputs = torch.randn(256, 64, device=device)
for step in range(done + 1, 101):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print("step", step, "loss", float(loss), flush=True)
    if step % 10 == 0:
        checkpointer.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, step)
        checkpointer.wait()
    time.sleep(0.05)
checkpointer.close()
"""
)
EXHAUST = (
    CHOOSE
    + """
if device == "cpu":
    raise torch.OutOfMemoryError(
        "CUDA out of memory. Tried to allocate 200.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 79.00 GiB is free."
    )
kept = [torch.empty(1 << 30, dtype=torch.uint8, device=device) for _ in range(1000)]
"""
)
HOLD = (
    CHOOSE
    + """
held = torch.zeros(int(os.environ["MIB"]) << 20, dtype=torch.uint8, device=device)
held += 1
print("holds", device, flush=True)
time.sleep(300)
"""
)
MEET = (
    CHOOSE
    + """
from torch import distributed
distributed.init_process_group("nccl" if device == "cuda" else "gloo")
if device == "cuda":
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
sums = torch.full((1000,), 3.0, device=device)
distributed.all_reduce(sums)
print("summed", distributed.get_backend(), distributed.get_world_size(), float(sums.sum()), flush=True)
distributed.destroy_process_group()
"""
)
STRANGER = (
    CHOOSE
    + """
kept = torch.zeros(2 << 30, dtype=torch.uint8, device=device)
print("there", flush=True)
input()
"""
)


@pytest.fixture(scope="module")
def gpu(prepared: Prepared, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose only enabled GPU is real; in a dry run it is simulated."""
    if not DRY_RUN and (os.environ.get("CUDA_VISIBLE_DEVICES") == "" or read_device() is None):
        pytest.skip("there is no NVIDIA GPU, or -m gpu does not show it")
    devices = "sim:1x80GiB" if DRY_RUN else "nvml"
    server = Server.copy_of(prepared, tmp_path_factory.mktemp("gpu") / "berth", devices)
    try:
        yield with_one_gpu(server.start())
    finally:
        server.clean_up()


@pytest.fixture(autouse=True)
def _idle_gpu(request: pytest.FixtureRequest) -> Iterator[None]:
    """Each test begins with an empty GPU: Berth rightly gives one with another's process to nobody."""
    if "gpu" not in request.fixturenames:
        yield
        return
    server: Server = request.getfixturevalue("gpu")
    server.wait_until(lambda: (reading := the_gpu(server)["reading"]) and is_empty(reading))
    yield
    server.leave_idle()


def with_one_gpu(server: Server) -> Server:
    """Disable all GPUs but the first, so that two jobs meet on it."""
    for each in gpus(server)[1:]:
        status, answer = server.call("PATCH", f"/devices/{each['id']}", {"state": "disabled"})
        assert status == 200, answer
    return server


def gpus(server: Server) -> list[dict[str, Any]]:
    found = [each for each in server.get("/devices")["results"] if each["kind"] != "cpu"]
    return sorted(found, key=lambda each: int(each["index"]))


def the_gpu(server: Server) -> dict[str, Any]:
    return gpus(server)[0]


def is_empty(reading: dict[str, Any]) -> bool:
    return not reading["processes"] and reading["used_bytes"] < AT_REST_BYTES


def test_job_computes_in_the_sandbox_on_its_gpu(gpu: Server) -> None:
    job = gpu.submit(COMPUTE)

    assert gpu.wait_for_end(job)["state"] == "succeeded", gpu.log(job)

    seen = next(line for line in gpu.log(job).splitlines() if line.startswith("computed"))
    assert seen == ("computed cpu 0 - True" if DRY_RUN else f"computed cuda 1 {the_gpu(gpu)['id']} True")


def test_killed_training_resumes(gpu: Server) -> None:
    job = gpu.submit(TRAIN)
    gpu.wait_for_line(job, "step 25 ")

    kill(gpu.ranks(job), signal.SIGKILL)

    assert gpu.wait_for_end(job)["state"] == "succeeded", gpu.log(job)
    assert_resumed(gpu, job)


def test_out_of_memory_is_told_as_that(gpu: Server) -> None:
    job = gpu.submit(EXHAUST)

    assert gpu.wait_for_end(job)["state"] == "failed"

    (attempt,) = gpu.attempts(job)  # a job with the whole device would get no more
    assert attempt["exit_kind"] == "oom_gpu"
    assert re.search(r"\d GiB", " ".join(gpu.reasons(job))), gpu.reasons(job)


def test_two_jobs_share_the_gpu_and_the_claim_of_one_limits_it(gpu: Server) -> None:
    claim = {"gpu_memory_gib": CLAIM_GIB, "max_retries": 3, **AT_ONCE}
    modest = gpu.submit(HOLD, env={"MIB": str(MODEST_MIB)}, **claim)
    gpu.wait_for_line(modest, "holds ")
    greedy = gpu.submit(HOLD, env={"MIB": str(GREEDY_MIB)}, **claim)

    # Limited, and then given what it showed to need.
    gpu.wait_until(lambda: gpu.job(greedy)["attempt_count"] > 1)
    first = gpu.attempts(greedy)[0]
    beside = gpu.job(modest)

    assert first["exit_kind"] == "oom_gpu"
    assert first["devices"][0]["id"] == beside["attempt"]["devices"][0]["id"] == the_gpu(gpu)["id"]
    assert (beside["state"], beside["attempt_count"]) == ("running", 1)
    assert gpu.job(greedy)["memory_claim"]["bytes"] > CLAIM_GIB * GIB


def test_cancel_frees_the_memory(gpu: Server) -> None:
    job = gpu.submit(HOLD, env={"MIB": str(MODEST_MIB)}, **AT_ONCE)
    gpu.wait_for_line(job, "holds ")
    gpu.wait_until(lambda: the_gpu(gpu)["reading"]["used_bytes"] >= MODEST_MIB << 20)

    gpu.post(f"/jobs/{job}/cancel")

    assert gpu.wait_for_end(job)["state"] == "cancelled"
    gpu.wait_until(lambda: is_empty(the_gpu(gpu)["reading"]))
    after = gpu.submit(COMPUTE)
    assert gpu.wait_for_end(after)["state"] == "succeeded", gpu.log(after)


def test_one_rank_of_torchrun_uses_nccl(gpu: Server) -> None:
    job = gpu.submit(MEET, launcher="torchrun")

    assert gpu.wait_for_end(job)["state"] == "succeeded", gpu.log(job)

    assert f"summed {'gloo' if DRY_RUN else 'nccl'} 1 3000.0" in gpu.log(job)


@pytest.fixture
def watched(
    request: pytest.FixtureRequest, tmp_path: Path, make_server: Callable[..., Server]
) -> Iterator[tuple[Server, Callable[[], contextlib.AbstractContextManager[int]]]]:
    """A server with the driver, and what lets a process that is not Berth's appear on the GPU; it gives its pid."""
    if not DRY_RUN:
        server = request.getfixturevalue("gpu")
        server.wait_until(lambda: is_empty(the_gpu(server)["reading"]))
        yield server, stranger
        return
    try:
        library = build_stub(tmp_path)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    control = tmp_path / "control"
    control.write_text("count 1\n")

    @contextlib.contextmanager
    def appear() -> Iterator[int]:
        with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
            control.write_text(f"count 1\nprocess.0 {process.pid} {2 * GIB}\n")
            yield process.pid
            control.write_text("count 1\n")
            process.kill()

    yield make_server("nvml", stub_environment(library)).start(), appear


@contextlib.contextmanager
def stranger() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", STRANGER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "there\n"
            yield process.pid
        finally:
            process.kill()


def test_gpu_with_an_external_process_is_given_to_nobody_and_the_process_is_named(
    watched: tuple[Server, Callable[[], contextlib.AbstractContextManager[int]]],
) -> None:
    server, appear = watched
    with appear() as pid:
        server.wait_until(lambda: the_gpu(server)["reading"]["foreign_bytes"] >= 2 * GIB)
        (process,) = [each for each in the_gpu(server)["reading"]["processes"] if each["job"] is None]
        job = server.submit(COMPUTE)
        server.wait_until(lambda: "in use outside Berth" in sentence_of(server, job))
        waiting = server.job(job)["state"]
        state = the_gpu(server)["availability"]["state"]

    assert (waiting, state) == ("queued", "foreign")
    # In a container the driver may know processes by other ids; then only their memory is told.
    assert process["pid"] == pid or not Path(f"/proc/{process['pid']}").exists()
    if process["pid"] == pid:
        assert "python" in process["command"]
        assert process["user"] == getpass.getuser()
    assert server.wait_for_end(job)["state"] == "succeeded", server.log(job)


def sentence_of(server: Server, job: str) -> str:
    """Why a job waits."""
    return (server.job(job)["explanation"] or {}).get("sentence") or ""
