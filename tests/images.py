"""Small container images, made of this machine's own shell and Python: folders, archives, and a registry."""

import base64
import gzip
import hashlib
import io
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

# Of the system: that of the tests may lie in a home.
PYTHON = Path("/usr/bin/python3")
_LEFT_OUT = (
    "test",
    "tests",
    "idlelib",
    "tkinter",
    "site-packages",
    "dist-packages",
    "__pycache__",
    "config-*",
    "ensurepip",
    "lib2to3",
    "pydoc_data",
)
PROGRAMS = ("sh", "chmod", "cat", "sleep", "ls", "env", "touch", "id")
OWN_PATH = "/opt/tools/bin:/usr/bin:/bin"


def make_root(folder: Path, *, python: bool = False, torch: str = "") -> Path:
    """The files of an image: /bin with a few programs, /usr with what they need, and a Python if it has one.

    Args:
        torch: the code of ``torch.distributed.run``.
    """
    for name in (
        "usr/bin",
        "etc",
        "home",
        "var/lib",
        "opt/tools/bin",
        "srv",
        "tmp",
        "usr/lib/x86_64-linux-gnu",
    ):
        (folder / name).mkdir(parents=True)
    (folder / "bin").symlink_to("usr/bin")
    (folder / "etc/os-release").write_text("NAME=tiny\n")
    (folder / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    for name in PROGRAMS:
        _copy(Path(shutil.which(name) or f"/bin/{name}"), folder, f"usr/bin/{name}")
    if python:
        _copy(PYTHON.resolve(), folder, "usr/bin/python3")
        _copy_library(folder, torch)
    return folder


def _copy(program: Path, root: Path, place: str) -> None:
    shutil.copy(program.resolve(), root / place)
    said = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
    for word in said.split():
        if word.startswith("/"):
            target = root / word.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if not target.exists():
                shutil.copy(Path(word).resolve(), target)


def _copy_library(root: Path, torch: str) -> None:
    said = subprocess.run(
        [PYTHON, "-I", "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"],
        capture_output=True,
        text=True,
        check=True,
    )
    library = Path(said.stdout.strip())
    target = root / str(library).lstrip("/")
    shutil.copytree(library, target, ignore=shutil.ignore_patterns(*_LEFT_OUT), dirs_exist_ok=True)
    for module in (target / "lib-dynload").glob("*.so"):
        for word in subprocess.run(
            ["ldd", module], capture_output=True, text=True, check=False
        ).stdout.split():
            place = root / word.lstrip("/")
            if word.startswith("/") and not place.exists():
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(word).resolve(), place)
    if torch:
        site = root / "usr/lib/python3/dist-packages"
        (site / "torch/distributed").mkdir(parents=True)
        (site / "torch/__init__.py").write_text("")
        (site / "torch/distributed/__init__.py").write_text("")
        (site / "torch/distributed/run.py").write_text(torch)
        (site / "torch-2.9.0.dist-info").mkdir()
        (site / "torch-2.9.0.dist-info/METADATA").write_text("Name: torch\nVersion: 2.9.0\n")


def pack(folder: Path, *, zipped: bool = True) -> bytes:
    """A layer with the files of a folder."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.add(folder, ".")
    return gzip.compress(data.getvalue(), 1) if zipped else data.getvalue()


def _packer(layer: bytes) -> str:
    return {b"\x1f\x8b": "gzip", b"\x28\xb5": "zstd"}.get(layer[:2], "")


def unpacked(layer: bytes) -> bytes:
    """A layer as a plain tar file."""
    packer = _packer(layer)
    return {"gzip": gzip.decompress, "zstd": zstd.decompress}[packer](layer) if packer else layer


def pack_by_zstd(layer: bytes) -> bytes:
    """A layer packed as ``zstd:chunked``: several frames, and one behind them that only names what is in the others."""
    tar = unpacked(layer)
    half = len(tar) // 2
    contents = b"\x50\x2a\x4d\x18" + struct.pack("<I", 1000) + bytes(1000)
    return zstd.compress(tar[:half]) + zstd.compress(tar[half:]) + contents


class Image:
    """An image in the format of the Open Container Initiative."""

    def __init__(
        self,
        layers: Sequence[bytes],
        variables: Mapping[str, str] | None = None,
        architecture: str = "",
        diff_ids: Sequence[str] | None = None,
    ) -> None:
        """``diff_ids``: what the configuration says of the layers, instead of the truth."""
        self.blobs: dict[str, bytes] = {}
        self.architecture = architecture or {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
        env = {"PATH": OWN_PATH, "MADE_BY": "tests", **(variables or {})}
        truth = [f"sha256:{hashlib.sha256(unpacked(layer)).hexdigest()}" for layer in layers]
        config = {
            "architecture": self.architecture,
            "os": "linux",
            "config": {"Env": [f"{name}={value}" for name, value in env.items()], "Entrypoint": ["/no/such"]},
            "rootfs": {"type": "layers", "diff_ids": truth if diff_ids is None else list(diff_ids)},
        }
        self.layers = [self._add(layer) for layer in layers]
        self.config = self._add(json.dumps(config).encode())
        kind = "application/vnd.oci.image"
        self.manifest = json.dumps(
            {
                "schemaVersion": 2,
                "mediaType": f"{kind}.manifest.v1+json",
                "config": {
                    "mediaType": f"{kind}.config.v1+json",
                    "digest": self.config,
                    "size": len(self.blobs[self.config]),
                },
                "layers": [
                    {
                        "mediaType": f"{kind}.layer.v1.tar+{_packer(self.blobs[each])}",
                        "digest": each,
                        "size": len(self.blobs[each]),
                    }
                    for each in self.layers
                ],
            }
        ).encode()
        self.digest = self.top = self._add(self.manifest)

    def _add(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.blobs[digest] = data
        return digest

    def nest(self, levels: int) -> None:
        """Put the manifest behind this many indexes beyond the first."""
        for _ in range(levels):
            self.top = self._add(self.index())

    def index(self) -> bytes:
        """What a tag for several processors leads to."""
        kind = "application/vnd.oci.image.manifest.v1+json"
        rows = [
            {"mediaType": kind, "digest": digest, "size": 1, "platform": {"os": "linux", "architecture": cpu}}
            for digest, cpu in (("sha256:" + "0" * 64, "s390x"), (self.top, self.architecture))
        ]
        return json.dumps({"schemaVersion": 2, "manifests": rows}).encode()

    def write_layout(self, folder: Path) -> Path:
        """The image as a folder, as ``skopeo copy ... oci:FOLDER`` leaves it."""
        for digest, data in self.blobs.items():
            place = folder / "blobs" / digest.replace(":", "/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(data)
        (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        (folder / "index.json").write_bytes(self.index())
        return folder

    def write_docker_archive(self, path: Path) -> Path:
        """The image as a file, as ``docker save`` left it before version 25."""
        names = [f"{digest.partition(':')[2]}/layer.tar" for digest in self.layers]
        rows = [{"Config": "config.json", "RepoTags": ["tiny:1"], "Layers": names}]
        texts = {
            "config.json": self.blobs[self.config],
            **{name: unpacked(self.blobs[each]) for name, each in zip(names, self.layers, strict=True)},
            "manifest.json": json.dumps(rows).encode(),
        }
        with tarfile.open(path, "w") as archive:
            for name, data in texts.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return path


class Registry:
    """A registry with images by "repository:tag", which asks for a token as Docker's does."""

    def __init__(self) -> None:
        self.images: dict[str, Image] = {}
        self.asked: list[str] = []
        self.needs_login = ""  # "user:password"
        self.statuses: dict[str, int] = {}  # by a part of the path, instead of an answer
        self.breaks: dict[str, int] = {}  # how many answers break off in the middle, by a part of the path
        self.port = 0

    def name(self, image: str) -> str:
        return f"127.0.0.1:{self.port}/{image}"

    def find(self, kind: str, repository: str, reference: str) -> bytes | None:
        """The index of a tag, or what has a digest."""
        for name, image in self.images.items():
            own, _, tag = name.partition(":")
            if own != repository:
                continue
            if kind == "manifests" and reference == tag:
                return image.index()
            if reference in image.blobs:
                return image.blobs[reference]
        return None


@contextmanager
def serve_registry() -> Iterator[Registry]:
    """Serve images on a port of the loopback device."""
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts, own = urlsplit(self.path), f"http://127.0.0.1:{registry.port}"
            registry.asked.append(parts.path)
            if parts.path == "/token":
                basic = base64.b64encode(registry.needs_login.encode()).decode()
                may = not registry.needs_login or self.headers.get("Authorization") == f"Basic {basic}"
                self._answer(200 if may else 401, b'{"token": "t0ken"}' if may else b"no")
                return
            status = next((code for part, code in registry.statuses.items() if part in parts.path), 0)
            if status:
                self._answer(status, b"no")
            elif self.headers.get("Authorization") != "Bearer t0ken":
                self._answer(401, b"no", f'Bearer realm="{own}/token",service="tests"')
            else:
                repository, kind, reference = parts.path.removeprefix("/v2/").rsplit("/", 2)
                found = registry.find(kind, repository, reference)
                breaking = next(
                    (part for part, left in registry.breaks.items() if left and part in parts.path), ""
                )
                if breaking and found is not None:
                    registry.breaks[breaking] -= 1
                    self._break_off(found)
                    return
                self._answer(200 if found is not None else 404, found or b"no")

        def _break_off(self, body: bytes) -> None:
            """Send half of an answer."""
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            if "/blobs/" in self.path:  # the line is cut, beside one that just ends
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                os.close(self.connection.detach())

        def _answer(self, status: int, body: bytes, challenge: str = "") -> None:
            self.send_response(status)
            if challenge:
                self.send_header("WWW-Authenticate", challenge)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.port = server.server_port
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
