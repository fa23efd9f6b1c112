"""``manage.py install_service``: let systemd run Berth for this user."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandParser

from orchestrator.server.operation import service_units


class Command(BaseCommand):
    help = "Write systemd user units for Berth's processes, and start them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--folder", type=Path, help="folder for the units; starts nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        folder = options["folder"] or service_units.user_folder()
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in service_units.units(settings.ENVIRONMENT, settings.BASE_DIR, os.environ).items():
            (folder / name).write_text(text)
        self.stdout.write(f"Wrote Berth's units to {folder}.")
        if options["folder"] is None:
            self._start()

    def _start(self) -> None:
        if shutil.which("systemctl") is None:
            self.stdout.write("systemd is not installed. Start Berth with `make up` instead.")
            return
        for arguments in (["daemon-reload"], ["enable", "--now", "berth.target"]):
            done = subprocess.run(  # noqa: S603  # fixed words
                ["systemctl", "--user", *arguments],  # noqa: S607  # found on PATH above
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                problem = done.stderr.strip() or f"exit status {done.returncode}"
                self.stdout.write(
                    f"systemd's user manager does not answer ({problem}). Log in as this user, then run: "
                    "systemctl --user daemon-reload && systemctl --user enable --now berth.target"
                )
                return
        self.stdout.write(
            "Berth is running, and starts when this user logs in. To start it at boot: loginctl enable-linger"
        )
