"""What a session or a service runs: a program on a unix socket in the attempt's folder, which variables name."""

from collections.abc import Sequence
from pathlib import Path

from django.conf import settings

from orchestrator.jobs.launch.start import CannotLaunch, Started
from orchestrator.models import Job
from orchestrator.spec.job_spec import JobSpec
from orchestrator.supervisor.protocol.folder import AttemptFolder

JUPYTER = "jupyterlab"
# Packages that bring `python -m jupyterlab`, as requirement lines begin with them.
_BRINGS_JUPYTER = (JUPYTER, "jupyter-lab", "jupyter")
LONGEST_SOCKET_BYTES = 107  # of a path that a program can listen on
# JupyterLab's browser code comes ready-made with its package. A check whether it needs a build runs Node twice while the
# first page waits.
_NO_BUILD = {"page_config_data": {"buildAvailable": False, "buildCheck": False}}
# Folders that may hold `node_modules` with language servers, beside the workspace and the environment. Without them
# Jupyter asks npm before it listens.
_NODE_ROOTS = ("/usr/local/lib", "/usr/lib")


def with_packages(spec: JobSpec, interpreters: Sequence[str]) -> JobSpec:
    """The session with the packages of its program added; an interpreter of the pool has to bring them itself."""
    if spec.program != "jupyter" or spec.python is not None or spec.environment in interpreters:
        return spec
    if any(_name_of(line) in _BRINGS_JUPYTER for line in spec.with_packages):
        return spec
    return spec.model_copy(update={"with_packages": [*spec.with_packages, JUPYTER]})


def _name_of(line: str) -> str:
    """The package's name at the start of a requirement."""
    end = next((index for index, sign in enumerate(line) if not (sign.isalnum() or sign in "-_.")), len(line))
    return line[:end].lower().replace("_", "-")


def base_path(job_id: object) -> str:
    """The path that all addresses of a session begin with: its own origin has no prefix."""
    return "/" if settings.ENVIRONMENT.sessions.own_origins else f"/s/{job_id}/"


def variables(job: Job, folder: AttemptFolder) -> dict[str, str]:
    """The variables by which a session's program knows where to listen.

    Raises:
        CannotLaunch: the path of the socket is longer than the kernel accepts.
    """
    socket = str(folder.session_socket)
    if len(socket.encode()) > LONGEST_SOCKET_BYTES:
        raise CannotLaunch(
            f"The program's socket would be {socket}, which is longer than the {LONGEST_SOCKET_BYTES} bytes that the "
            "system allows. Ask the operator for a shorter BERTH_HOME."
        )
    # A service is asked by paths of its own: what comes before them at Berth's address is taken off.
    return {"BERTH_SOCKET": socket, "BERTH_BASE_PATH": base_path(job.pk) if job.is_session else "/"}


def started(job: Job, spec: JobSpec, python: str, folder: AttemptFolder) -> Started:
    """What a session with one of our programs executes."""
    return {
        "starts_as": "command",
        "script": python,
        "args": [*_jupyter(base_path(job.pk), folder.session_socket, Path(python)), *spec.args],
    }


def _jupyter(base: str, socket: Path, python: Path) -> list[str]:
    """JupyterLab on the socket.  It asks for no password: only our proxy reaches the socket, and knows who calls."""
    options = {
        "IdentityProvider.token": "",
        "ServerApp.sock": str(socket),
        "ServerApp.base_url": base,
        "ServerApp.allow_remote_access": "True",  # the browser's Host is not localhost
        "ServerApp.shutdown_no_activity_timeout": "0",  # Berth decides what is idle
        "ServerApp.tornado_settings": repr(_NO_BUILD),
        "LabApp.check_for_updates_class": "jupyterlab.NeverCheckForUpdate",
        "LabApp.news_url": "None",
    }
    words = [f"--{name}={value}" for name, value in options.items()]
    roots = (".", f"{python.parent.parent}/lib", *_NODE_ROOTS)
    words += [f"--LanguageServerManager.node_roots={root}" for root in roots]
    return ["-m", "jupyterlab", "--no-browser", "--allow-root", *words]
