"""Which build of torch fits the NVIDIA driver and the GPUs of this host.

``python -m orchestrator.devices.torch_builds`` prints the build for this host, and on standard error why.
"""

import importlib.util
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pynvml

from orchestrator.devices.lanes import Lane
from orchestrator.devices.nvml_calls import driver_sentence

CPU = "cpu"
_ANSWERS_WITHIN_S = 20.0  # without the persistence daemon the driver first wakes each GPU
Version = tuple[int, ...]
# NVIDIA's CUDA compatibility guide: within a major version a program runs on the major version's first driver.
DRIVERS: dict[int, Version] = {13: (580,), 12: (525, 60, 13), 11: (450, 80, 2)}


@dataclass(frozen=True, slots=True)
class Build:
    """A build of torch, by the name of its index, with the GPUs that it has code for (PyTorch's support matrix)."""

    name: str
    cuda: Version
    driver: Version
    oldest: Version  # compute capability
    newest: Version

    def runs(self, capability: Version) -> bool:
        return self.oldest <= capability <= self.newest


# In the order of choice.  CUDA 12.8 serves Blackwell GPUs below driver 580 alone: newer torch has no build for it.
BUILDS = (
    Build("cu130", (13, 0), DRIVERS[13], (7, 5), (99, 0)),
    Build("cu126", (12, 6), DRIVERS[12], (5, 0), (9, 99)),
    Build("cu128", (12, 8), (570, 26), (7, 5), (12, 99)),
)


@dataclass(frozen=True, slots=True)
class Host:
    """The driver and the GPUs of a host; ``problem`` says why there is no driver."""

    driver: str | None
    capabilities: tuple[Version, ...] = field(default=())
    problem: str = ""

    @property
    def version(self) -> Version:
        """The driver's version as numbers; empty without a driver."""
        numbers = re.match(r"\d+(?:\.\d+)*", self.driver or "")
        return tuple(map(int, numbers[0].split("."))) if numbers else ()


@dataclass(frozen=True, slots=True)
class Choice:
    """A build's name, and why it was chosen."""

    name: str
    why: str


def read_host() -> Host:
    """Ask the driver; one that hangs counts as one that does not answer."""
    lane = Lane("torch-builds")
    try:
        return lane.start(_ask_driver).wait(_ANSWERS_WITHIN_S)
    except TimeoutError:
        return Host(None, problem=f"The NVIDIA driver has not answered for over {_ANSWERS_WITHIN_S:.0f} s.")
    except pynvml.NVMLError as error:
        return Host(None, problem=driver_sentence(error))
    finally:
        lane.close()


def _ask_driver() -> Host:
    pynvml.nvmlInit()
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        capabilities = {tuple(pynvml.nvmlDeviceGetCudaComputeCapability(handle)) for handle in handles}
        driver = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    text = driver.decode() if isinstance(driver, bytes) else str(driver)
    return Host(text, tuple(sorted(capabilities)))


def choose(host: Host) -> Choice:
    """The first build that this driver and all of these GPUs can use, else the one for most GPUs, else the CPU's."""
    if not host.version:
        return Choice(CPU, host.problem)
    usable = [build for build in BUILDS if host.version >= build.driver]
    if not usable:
        oldest = _dotted(DRIVERS[12])
        why = f"Driver {host.driver} is too old for this torch, which needs {oldest} or newer; GPUs are not used."
        return Choice(CPU, why)
    best = max(usable, key=lambda build: _share(build, host))  # of equal ones the first
    return Choice(best.name, f"Driver {host.driver} runs CUDA {_dotted(best.cuda)}.{_unserved(best, host)}")


def _share(build: Build, host: Host) -> int:
    return sum(map(build.runs, host.capabilities))


def _unserved(build: Build, host: Host) -> str:
    others = [_dotted(each) for each in host.capabilities if not build.runs(each)]
    if not others:
        return ""
    return (
        f" It has no code for GPUs of compute capability {' and '.join(others)}: Blackwell (10 and newer) needs driver "
        "570.26 or newer, and no build serves GPUs older than Turing (7.5) beside Blackwell."
    )


def misfit(torch_version: str, cuda: str | None, host: Host) -> str | None:
    """Why the installed torch cannot use the GPUs of this host; None if it can, or without GPUs."""
    if not host.version:
        return None
    best = choose(host)
    if cuda is None:
        if best.name == CPU:
            return best.why
        return f"torch {torch_version} is a build for CPUs, but there is an NVIDIA driver {host.driver}."
    built_for = tuple(map(int, cuda.split(".")))
    needed = DRIVERS.get(built_for[0])
    if needed and host.version < needed:
        return (
            f"torch {torch_version} is built for CUDA {cuda}, which needs driver {_dotted(needed)} or newer, "
            f"and this is driver {host.driver}."
        )
    build = next((each for each in BUILDS if each.cuda == built_for), None)
    if build is not None and best.name != build.name and (gap := _unserved(build, host)):
        return f"torch {torch_version} is built for CUDA {cuda}.{gap}"
    return None


def installed() -> tuple[str, str | None] | None:
    """The version of the torch of this environment and its CUDA (None: CPU); None without torch. Does not load it."""
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return None
    try:
        text = Path(found.origin).with_name("version.py").read_text()
    except OSError:
        return None
    version = re.search(r"^__version__\s*=\s*'([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b[^=\n]*=\s*'([\d.]+)'", text, re.MULTILINE)
    return (version[1], cuda[1] if cuda else None) if version else None


def _dotted(version: Version) -> str:
    return ".".join(map(str, version))


def main(read: Callable[[], Host] = read_host) -> None:
    host = read()
    choice = choose(host)
    here = installed()
    fits = here is not None and misfit(*here, host) is None
    sys.stderr.write(f"{choice.why}\n")
    sys.stdout.write(f"{choice.name} {'fits' if fits else 'differs'}\n")


if __name__ == "__main__":
    main()
