"""Hides the GPUs of this machine from the tests, so that they give the same result with and without one.

CUDA is told that there is none.  NVIDIA's driver library (NVML), which does not ask CUDA's variable, cannot be loaded:
not by this process, and not by its children, for which a file that is no library stands before it.  Tests that
fake the driver put their own before that.
"""

import atexit
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

LIBRARY = "libnvidia-ml.so.1"
_FOLDER = "TESTS_WITHOUT_DRIVER"  # set by the process that made the folder, for its workers


def wants_gpu(marks: str) -> bool:
    """Return whether a choice of marks (``-m``) takes only tests marked ``gpu``."""
    words = re.findall(r"\w+", marks)
    return "gpu" in words and not {"not", "or"} & {*words}


def require_one_worker(marks: str, workers: int) -> None:
    """Refuse several workers for tests on the GPU.

    Berth gives a GPU with another's process to nobody, and tests that measure memory would measure their neighbours'.

    Raises:
        pytest.UsageError: there are several.
    """
    if wants_gpu(marks) and workers > 1:
        raise pytest.UsageError(f"Tests on the GPU run one after the other; leave out -n {workers}.")


def hide() -> None:
    """Hide the GPUs from this process and from those that it will start."""
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if _FOLDER not in os.environ:
        folder = tempfile.mkdtemp(prefix="berth-no-driver-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        Path(folder, LIBRARY).touch()
        os.environ[_FOLDER] = folder
        earlier = os.environ.get("LD_LIBRARY_PATH")
        os.environ["LD_LIBRARY_PATH"] = f"{folder}:{earlier}" if earlier else folder
    import pynvml  # late: its import takes 20 ms, which a session with GPUs does not need

    pynvml.CDLL = _refuse  # the loader read LD_LIBRARY_PATH when this process started


def _refuse(name: str) -> NoReturn:
    raise OSError(f"{name}: tests that are not marked gpu see no driver")
