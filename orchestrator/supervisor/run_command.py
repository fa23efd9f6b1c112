"""The command that starts the ranks."""

from pathlib import Path

from orchestrator.supervisor.environment import MASTER_ADDRESS, OWN_NETWORK_PORT, master_port
from orchestrator.supervisor.launch import Launch

STARTER = Path(__file__).with_name("starter.py")


def run_command(launch: Launch) -> list[str]:
    """What runs inside the sandbox; each rank ends up as ``PYTHON -u entry.py SCRIPT ARGS``."""
    script = [str(launch.entry), launch.script, *launch.args]
    python = str(launch.python)
    if launch.ranks == 1:
        return [python, "-u", *script]
    if launch.torchrun:
        return [python, "-m", "torch.distributed.run", *_torchrun_options(launch), *script]
    starter = [python, "-I", "-S", str(STARTER), str(launch.ranks), str(master_port(launch))]
    return [*starter, python, "-u", *script]


def _torchrun_options(launch: Launch) -> list[str]:
    options = ["--nnodes", "1", "--node-rank", "0", "--nproc-per-node", str(launch.ranks)]
    options += ["--max-restarts", "0", "--local-addr", MASTER_ADDRESS]
    if launch.own_network:
        return [*options, "--master-addr", MASTER_ADDRESS, "--master-port", str(OWN_NETWORK_PORT)]
    return [*options, "--standalone"]
