"""The command that starts the ranks, and their environment."""

from collections.abc import Mapping
from pathlib import Path

from orchestrator.supervisor.protocol.folder import AttemptFolder
from orchestrator.supervisor.protocol.launch import Launch
from orchestrator.supervisor.sandbox.image import is_program

STARTER = Path(__file__).with_name("starter.py")
PROGRAM = Path(__file__).with_name("program.py")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_SHELL = "/bin/sh"
_MARKED = '[ -x "$0" ] || chmod u+x "$0" 2>/dev/null; exec "$0" "$@"'
# torchrun sets these for each rank; in torchrun's own environment they would name the wrong rank.
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


def run_command(launch: Launch) -> list[str]:
    """The command line inside the sandbox.

    Each rank becomes ``PYTHON -u entry.py SCRIPT ARGS``, or ``entry.py -m MODULE ARGS``; a command runs once, itself.
    """
    python = str(launch.python)
    if launch.is_command and launch.image is not None:
        return _of_image(launch)
    if launch.is_command:
        return [python, "-I", "-S", str(PROGRAM), launch.script, *launch.args]
    what = ["-m", launch.script] if launch.starts_as == "module" else [launch.script]
    script = [str(launch.entry), *what, *launch.args]
    if launch.ranks == 1 and not launch.torchrun:
        return [python, "-u", *script]
    if launch.torchrun:
        return [python, "-m", "torch.distributed.run", *_torchrun_options(launch), *script]
    starter = [python, "-I", "-S", str(STARTER), str(launch.ranks), str(master_port(launch))]
    return [*starter, python, "-u", *script]


def _of_image(launch: Launch) -> list[str]:
    """A command of an image, which need not have a Python that becomes it.

    Uploads carry no modes, so a file of the job's own folder may be executed without having been marked so.
    """
    words = [launch.script, *launch.args]
    if "/" not in launch.script or launch.image is None or not is_program(launch.image, _SHELL):
        return words
    return [_SHELL, "-c", _MARKED, *words]


def _torchrun_options(launch: Launch) -> list[str]:
    options = ["--nnodes", str(launch.nodes), "--node-rank", str(launch.node_rank)]
    options += ["--nproc-per-node", str(launch.ranks), "--max-restarts", "0"]
    if launch.meeting is not None:
        address, port = launch.meeting
        return [*options, "--master-addr", address, "--master-port", str(port)]
    options += ["--local-addr", MASTER_ADDRESS]
    if launch.own_network:
        return [*options, "--master-addr", MASTER_ADDRESS, "--master-port", str(OWN_NETWORK_PORT)]
    return [*options, "--standalone"]


def run_environment(launch: Launch, folder: AttemptFolder, secrets: Mapping[str, str]) -> dict[str, str]:
    """The environment of the sandbox's first process: the only rank, torchrun, or the starter.

    Built from scratch, so that nothing of the server's environment leaks.
    """
    environment = {
        "PATH": f"{launch.python.parent}:{SYSTEM_PATH}",
        "LANG": "C.UTF-8",
        "OMP_NUM_THREADS": str(launch.threads),
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
        "BERTH_MEDIA_DIR": str(folder.media),
    }
    if launch.gpu_memory_fraction is not None:
        environment["BERTH_GPU_MEMORY_FRACTION"] = str(launch.gpu_memory_fraction)
    if launch.hang_timeout_s is not None:
        environment["BERTH_STACKS_ON_SIGUSR2"] = "1"
    if launch.level == 0:
        environment["BERTH_DIE_WITH_PARENT"] = "1"
    if launch.is_command:
        environment |= _meeting_environment(master_port(launch))
        paths = [str(launch.entry.parent / "child"), environment.get("PYTHONPATH", "")]
        environment["PYTHONPATH"] = ":".join(filter(None, paths))
    elif launch.ranks == 1 and not launch.torchrun:
        environment |= rank_environment(0, 1, master_port(launch))
    return environment


def _meeting_environment(port: int) -> dict[str, str]:
    """Where the ranks of a command can meet: launchers default to one port, and two jobs would clash there.

    A command is no rank, so it gets none of a rank's other variables: launchers and trainers would take it for one.
    """
    return {"MASTER_ADDR": MASTER_ADDRESS, "MASTER_PORT": str(port), "PET_MASTER_PORT": str(port)}


def rank_environment(rank: int, ranks: int, port: int) -> dict[str, str]:
    """torchrun's variables for a rank on a single server."""
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
    """The port where ranks meet; in a network of its own the fixed port cannot clash."""
    return OWN_NETWORK_PORT if launch.own_network else _free_port()


def _free_port() -> int:
    import socket  # late import: slower than the search itself, and not needed in a network of its own

    with socket.socket() as probe:
        probe.bind((MASTER_ADDRESS, 0))
        port: int = probe.getsockname()[1]
    return port
