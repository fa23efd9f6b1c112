"""What of the host's NVIDIA driver a run in an image needs: its libraries, which have to fit the kernel's part.

They come in by name, as NVIDIA's container toolkit does it; the CUDA libraries are the image's own.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PLACE = Path("/run/berth/driver")  # in the sandbox
LIBRARIES = (
    "libcuda.so",
    "libcudadebugger.so",
    "libnvidia-ml.so",
    "libnvidia-cfg.so",
    "libnvidia-nvvm.so",
    "libnvidia-nvvm70.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-gpucomp.so",
    "libnvidia-fatbinaryloader.so",
    "libnvidia-compiler.so",
    "libnvidia-opencl.so",
    "libnvidia-allocator.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvcuvid.so",
    "libnvidia-encode.so",
    "libnvidia-opticalflow.so",
    "libnvidia-tileiras.so",
)
PROGRAMS = ("nvidia-smi", "nvidia-debugdump")
LIBRARY_FOLDERS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/wsl/lib",
)
PROGRAM_FOLDERS = ("/usr/bin", "/usr/local/bin", "/usr/lib/wsl/lib")


def files(
    libraries: Sequence[str] = LIBRARY_FOLDERS, programs: Sequence[str] = PROGRAM_FOLDERS
) -> dict[str, str]:
    """Files of the host by where they appear in the sandbox; empty without a driver."""
    found: dict[str, str] = {}
    for path in _libraries(libraries):
        found.setdefault(str(PLACE / path.name), str(path))
    if not found:
        return {}
    for folder in programs:
        for name in PROGRAMS:
            if (path := Path(folder, name)).is_file():
                found.setdefault(str(PLACE / name), str(path))
    return found


def _libraries(folders: Iterable[str]) -> Iterator[Path]:
    for folder in folders:
        for name in LIBRARIES:
            yield from sorted(path for path in Path(folder).glob(f"{name}*") if path.is_file())
