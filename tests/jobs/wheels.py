"""Tiny packages, so that environments are built without a network."""

import hashlib
import io
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

SETUP = """
from pathlib import Path
from setuptools import setup

{first}
setup(name="{name}", version="{version}", py_modules=["{name}"])
"""


def make_wheel(
    folder: Path, name: str, version: str = "1.0", *, needs: Sequence[str] = (), package: str = ""
) -> Path:
    """A wheel with one module, which knows its version, and a package if one is named."""
    folder.mkdir(parents=True, exist_ok=True)
    module, info = f"{name}.py", f"{name}-{version}.dist-info"
    requires = "".join(f"Requires-Dist: {each}\n" for each in needs)
    files = {
        module: f'__version__ = "{version}"\n',
        **({f"{package}/__init__.py": "def where(): pass\n"} if package else {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for place, text in files.items():
            wheel.writestr(place, text)
        wheel.writestr(f"{info}/RECORD", "".join(f"{place},,\n" for place in [*files, f"{info}/RECORD"]))
    return path


def make_source(folder: Path, name: str, version: str = "1.0", *, first: str = "") -> Path:
    """A source distribution; ``first`` is what its setup does before it builds."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}.tar.gz"
    files = {
        "setup.py": SETUP.format(name=name, version=version, first=first),
        f"{name}.py": "built = True\n",
        "PKG-INFO": f"Metadata-Version: 1.0\nName: {name}\nVersion: {version}\n",
    }
    with tarfile.open(path, "w:gz") as archive:
        for place, text in files.items():
            member = tarfile.TarInfo(f"{name}-{version}/{place}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    return path


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
