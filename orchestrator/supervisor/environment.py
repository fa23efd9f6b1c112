"""What a run finds in its environment: a white list, so nothing of the server's own can leak (I20)."""

import os
from collections.abc import Mapping

from orchestrator.supervisor.folder import AttemptFolder
from orchestrator.supervisor.launch import Launch

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# torchrun sets these itself for each rank; in its own environment they would name the wrong one.
_OF_A_RANK = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
)
MASTER_ADDRESS = "127.0.0.1"
OWN_NETWORK_PORT = 29500


def run_environment(launch: Launch, folder: AttemptFolder, secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment of what the sandbox starts: the only rank, torchrun, or the starter of the ranks."""
    environment = {
        "PATH": f"{launch.python.parent}:{_SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // launch.ranks)),
        **launch.env,
        **secrets,
    }
    for name in _OF_A_RANK:
        environment.pop(name, None)
    environment |= {
        "HOME": str(launch.work),
        "PYTHONUNBUFFERED": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "BERTH_JOB_ID": launch.job_id,
        "BERTH_ATTEMPT": str(launch.number),
        "BERTH_NONCE": launch.nonce,
        "BERTH_ATTEMPT_FOLDER": str(folder.root),
        "BERTH_METRICS_FILE": str(folder.metrics),
    }
    if launch.gpu_memory_fraction is not None:
        environment["BERTH_GPU_MEMORY_FRACTION"] = str(launch.gpu_memory_fraction)
    if launch.hang_timeout_s is not None:
        environment["BERTH_STACKS_ON_SIGUSR2"] = "1"
    if launch.level == 0:
        environment["BERTH_DIE_WITH_PARENT"] = "1"
    if launch.ranks == 1:
        environment |= rank_environment(0, 1, master_port(launch))
    return environment


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """torchrun's variables for a rank of one server."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GROUP_RANK": "0",
        "MASTER_ADDR": MASTER_ADDRESS,
        "MASTER_PORT": str(port),
    }


def master_port(launch: Launch) -> int:
    """A port for the ranks to meet at; the fixed one cannot clash in a network of its own."""
    return OWN_NETWORK_PORT if launch.own_network else _free_port()


def _free_port() -> int:
    import socket  # loading it takes longer than the search, and own networks need none

    with socket.socket() as probe:
        probe.bind((MASTER_ADDRESS, 0))
        port: int = probe.getsockname()[1]
    return port
