"""``python -m benchmarks.film``: Berth in a minute, as a film in ``build/film/berth.webm``.

A browser of our own goes through the pages of a server with simulated GPUs while jobs run; one of their ranks is killed before
the camera. ``make docs`` shows the film on the site's first page.
"""

import base64
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from playwright.sync_api import Page

from benchmarks.browsing import Visitor, chromium, submit, wait_for_numbers
from benchmarks.figures import ROOT
from benchmarks.recover import find_rank
from benchmarks.screens import busy
from benchmarks.server import Client, Server

FILM = ROOT / "build" / "film" / "berth.webm"
LONGEST_S = 60.0
_WIDTH, _HEIGHT = 1280, 800
_FRAMES_A_SECOND = 12
_QUALITY = 85  # of a frame's JPEG
_DEVICES = "sim:8x2GiB"
_STEPS_BETWEEN_SAVES = 20
_RUNS_WITHIN_S = 300.0
_CAPTION = """text => {
  const line = document.createElement("p");
  line.textContent = text;
  line.style.cssText = "position:fixed;inset:auto 0 0 0;margin:0;padding:14px 24px;background:#14213d;color:#fff;"
    + "font:600 20px/1.3 system-ui,sans-serif;z-index:99999;text-align:center";
  document.body.append(line);
}"""


@dataclass(frozen=True, slots=True)
class Scene:
    """A page, what is said of it, and how long it is shown."""

    path: str
    caption: str
    shown_s: float
    then: Callable[[], None] | None = None  # after it, while the camera rests


@dataclass(slots=True)
class Camera:
    """Keeps what a page shows, each picture with the time of its change."""

    folder: Path
    times: list[float] = field(default_factory=list)  # seconds since 1970, less what was cut
    cut_s: float = 0.0
    rests: bool = False

    def begin(self, page: Page) -> None:
        """Keep every change of the page from now on."""
        session = page.context.new_cdp_session(page)

        def keep(frame: dict[str, Any]) -> None:
            if not self.rests:
                self.picture(len(self.times)).write_bytes(base64.b64decode(frame["data"]))
                self.times.append(frame["metadata"]["timestamp"] - self.cut_s)
            session.send("Page.screencastFrameAck", {"sessionId": frame["sessionId"]})

        session.on("Page.screencastFrame", keep)
        session.send(
            "Page.startScreencast",
            {"format": "jpeg", "quality": _QUALITY, "maxWidth": _WIDTH, "maxHeight": _HEIGHT},
        )

    def cut(self, act: Callable[[], None]) -> None:
        """Do something that the film leaves out."""
        began = time.time()
        self.rests = True
        act()
        self.rests = False
        self.cut_s += time.time() - began

    def picture(self, number: int) -> Path:
        return self.folder / f"{number:06}.jpg"


def main() -> int:
    encoder = shutil.which("ffmpeg")
    if encoder is None:
        print("ffmpeg is not installed; `apt-get install ffmpeg`.", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, chromium() as browser, Server(_DEVICES) as server:
        camera = Camera(Path(folder))
        scenes = prepare(server.client())
        with Visitor(browser, server).context(width=_WIDTH) as context:
            page = context.new_page()
            page.set_viewport_size({"width": _WIDTH, "height": _HEIGHT})
            ended_at = play(page, f"http://127.0.0.1:{server.port}", scenes, camera)
        encode(encoder, camera, ended_at)
    print(f"{FILM.relative_to(ROOT)}: {FILM.stat().st_size / 1e6:.1f} MB")
    return 0


def prepare(client: Client) -> Sequence[Scene]:
    """Submit jobs that run and wait; returns the scenes that show them."""
    first = submit(client, "tiny-gpt", *busy(1200, 6), "--lr", "3e-4", gpus=2)
    second = submit(client, "tiny-gpt-lr", *busy(900, 4), "--lr", "1e-3", gpus=2)
    submit(client, "vit-s", *busy(700, 3), gpu_memory_gib=1)
    submit(client, "ner", *busy(400, 2), gpu_memory_gib=0.75)
    for job in (first, second):
        wait_for_numbers(client, job)
    digits = str(client.post("/jobs", _saves_itself())["id"])
    submit(client, "big-7b", gpus=8)
    wait_for_step(client, digits, 2 * _STEPS_BETWEEN_SAVES)

    def kill() -> None:
        os.kill(find_rank(digits, 0), signal.SIGKILL)
        wait_for_step(client, digits, 1, attempt=2)

    return (
        Scene("/", "One server, eight GPUs: who holds them, and what runs", 10),
        Scene("/submit", "Submit a script as it is, and see when it would start", 8),
        Scene("/queue", "Jobs that wait say why, and when they are expected to start", 8),
        Scene(f"/jobs/{first}", "Loss, progress and log come live, without a change to the script", 9),
        Scene(f"/jobs/{digits}", "This one saves checkpoints. Now one of its ranks is killed ...", 5, kill),
        Scene(f"/jobs/{digits}/history", "... and it resumed by itself from its newest checkpoint", 8),
        Scene(f"/compare?jobs={first},{second}", "Compare runs: curves, arguments, code, packages", 8),
        Scene("/usage", "Who used what, and how much was wasted", 4),
    )


def _saves_itself() -> dict[str, Any]:
    script = ROOT / "examples" / "digits.py"
    options = ["--steps", "100000", "--checkpoint-every", str(_STEPS_BETWEEN_SAVES), "--step-delay", "0.05"]
    data = str(ROOT / "examples" / "data" / "digits.csv.gz")
    return {
        "name": "digits",
        "source": {"text": script.read_text()},
        "entrypoint": script.name,
        "args": [*options, "--data", data, "--checkpoint-dir", "{checkpoint_dir}"],
        "resume_args": ["--resume", "{checkpoint}"],
    }


def wait_for_step(client: Client, job: str, step: int, *, attempt: int = 1) -> None:
    """Until an attempt has come to a step.

    Raises:
        RuntimeError: it did not within some minutes.
    """
    deadline = time.monotonic() + _RUNS_WITHIN_S
    while time.monotonic() < deadline:
        told = client.get(f"/jobs/{job}")
        began = len(client.get(f"/jobs/{job}/attempts")["results"]) >= attempt
        if began and told["state"] == "running" and (told["progress"]["step"] or 0) >= step:
            return
        time.sleep(0.3)
    raise RuntimeError(f"Job {job} did not come to step {step} in attempt {attempt}.")


def play(page: Page, address: str, scenes: Sequence[Scene], camera: Camera) -> float:
    """Show each scene for its time; returns when the last one ended, in seconds since 1970."""
    page.goto(address + scenes[0].path)
    camera.begin(page)
    for scene in scenes:
        page.goto(address + scene.path)
        page.evaluate(_CAPTION, scene.caption)
        page.wait_for_timeout(scene.shown_s * 1000)
        if scene.then is not None:
            camera.cut(scene.then)
    return time.time() - camera.cut_s


def encode(encoder: str, camera: Camera, ended_at: float) -> None:
    """Make a film of the pictures; one that became too long on a busy machine is played faster."""
    listing = camera.folder / "pictures.txt"
    listing.write_text("\n".join(listed(camera, ended_at)) + "\n")
    FILM.parent.mkdir(parents=True, exist_ok=True)
    command = [encoder, "-y", "-loglevel", "error", "-f", "concat", "-safe", "0", "-i", str(listing)]
    command += [
        "-vf",
        f"fps={_FRAMES_A_SECOND},scale={_WIDTH}:-2",
        "-c:v",
        "libvpx-vp9",
        "-deadline",
        "realtime",
    ]
    command += ["-cpu-used", "6", "-crf", "36", "-b:v", "0", "-t", str(LONGEST_S), str(FILM)]
    subprocess.run(command, check=True)


def listed(camera: Camera, ended_at: float) -> list[str]:
    """The pictures and how long each is shown, in the words of ffmpeg's concat demuxer."""
    length_s = ended_at - camera.times[0]
    faster = max(1.0, length_s / LONGEST_S)
    lines = []
    for number, (begin, end) in enumerate(zip(camera.times, [*camera.times[1:], ended_at], strict=True)):
        lines += [f"file '{camera.picture(number)}'", f"duration {max(0.0, end - begin) / faster:.4f}"]
    return [*lines, f"file '{camera.picture(len(camera.times) - 1)}'"]  # the last duration counts only so


if __name__ == "__main__":
    sys.exit(main())
