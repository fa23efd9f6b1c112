"""Builds the NVML stub, with which everything above the driver runs as on a server with GPUs.

By hand: ``python tests/devices/stub.py FOLDER`` and start Berth with ``BERTH_DEVICES=nvml``,
``LD_LIBRARY_PATH=FOLDER`` and ``NVML_STUB_CONTROL=FOLDER/control``.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.waiting import PATIENCE_S

SOURCE = Path(__file__).parent / "nvml_stub" / "stub.c"
LIBRARY = "libnvidia-ml.so.1"


def build_stub(folder: Path) -> Path:
    """Compile the stub into a folder, with an empty control file; returns the library's path.

    Raises:
        FileNotFoundError: this machine has no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise FileNotFoundError("no C compiler (cc or gcc) on this machine")
    library = folder / LIBRARY
    command = [compiler, "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", f"-Wl,-soname,{LIBRARY}"]
    subprocess.run([*command, "-o", str(library), str(SOURCE)], check=True, timeout=PATIENCE_S)
    (folder / "control").touch()
    return library


def stub_environment(library: Path) -> dict[str, str]:
    """The environment of a process that is to see the stub's GPUs."""
    control = library.parent / "control"
    return {**os.environ, "LD_LIBRARY_PATH": str(library.parent), "NVML_STUB_CONTROL": str(control)}


if __name__ == "__main__":
    sys.stdout.write(f"{build_stub(Path(sys.argv[1]))}\n")
