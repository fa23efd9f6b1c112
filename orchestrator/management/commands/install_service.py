"""``manage.py install_service``: lets systemd run Berth for this user, also after a reboot."""

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
        parser.add_argument("--folder", type=Path, help="write the units there, and start nothing")

    def handle(self, *args: Any, **options: Any) -> None:
        folder = options["folder"] or service_units.user_folder()
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in service_units.units(settings.ENVIRONMENT, settings.BASE_DIR, os.environ).items():
            (folder / name).write_text(text)
        self.stdout.write(f"Wrote the units of Berth to {folder}.")
        if options["folder"] is None:
            self._start()

    def _start(self) -> None:
        if shutil.which("systemctl") is None:
            self.stdout.write("There is no systemd here; start Berth with `make up` instead.")
            return
        for arguments in (["daemon-reload"], ["enable", "--now", "berth.target"]):
            done = subprocess.run(  # noqa: S603  # fixed words
                ["systemctl", "--user", *arguments],  # noqa: S607  # the one on PATH was just found
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode:
                said = done.stderr.strip() or f"exit status {done.returncode}"
                self.stdout.write(
                    f"systemd's user manager does not answer ({said}). Log in as this user, then run: "
                    "systemctl --user daemon-reload && systemctl --user enable --now berth.target"
                )
                return
        self.stdout.write(
            "Berth runs, and starts again with this user. To start it at boot without a login: "
            "loginctl enable-linger"
        )
