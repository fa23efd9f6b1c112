"""``manage.py install_service``: let systemd run Berth, for this user or as a service of the system."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError, CommandParser

from berth.shared.words import server_command
from orchestrator.server.operation import service_units


class Command(BaseCommand):
    help = "Write systemd units for Berth's processes, and start them."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--folder", type=Path, help="folder for the units; starts nothing")
        parser.add_argument("--system", action="store_true", help="units of the system; needs root")
        parser.add_argument("--user", default="berth", help="with --system: whom they run as")

    def handle(self, *args: Any, **options: Any) -> None:
        user = options["user"] if options["system"] else None
        if user is not None:
            self._check_user(user, asks_for_root=options["folder"] is None)
        default = service_units.user_folder() if user is None else service_units.SYSTEM_FOLDER
        folder = options["folder"] or default
        folder.mkdir(parents=True, exist_ok=True)
        texts = service_units.units(settings.ENVIRONMENT, settings.BASE_DIR, os.environ, user=user)
        for name, text in texts.items():
            (folder / name).write_text(text)
        self.stdout.write(f"Wrote Berth's units to {folder}.")
        if options["folder"] is None:
            if user is not None:
                _hand_over(user)
            self._start(user)

    def _check_user(self, user: str, *, asks_for_root: bool) -> None:
        try:
            account = pwd.getpwnam(user)
        except KeyError:
            raise CommandError(
                f"There is no user {user}. Create one that may use the GPUs: "
                f"useradd --system --create-home --groups video {user}, or name another with --user."
            ) from None
        if account.pw_uid == 0:
            raise CommandError("Jobs would run as root. Name another user with --user.")
        if asks_for_root and os.geteuid() != 0:
            raise CommandError("Units of the system need root: run this command with sudo.")
        if "BERTH_HOME" not in os.environ:
            raise CommandError(
                f"Set BERTH_HOME to a local folder of {user}, such as "
                f"BERTH_HOME={account.pw_dir}/.berth; without it the state would be in this user's home."
            )

    def _start(self, user: str | None) -> None:
        if shutil.which("systemctl") is None:
            self.stdout.write(f"systemd is not installed. Start Berth with `{server_command('up')}` instead.")
            return
        words = ["systemctl"] if user is not None else ["systemctl", "--user"]
        steps = [[*words, "daemon-reload"], [*words, "enable", "--now", service_units.TARGET]]
        if user is not None:  # with a manager of its own, which gives each training a scope
            steps.insert(0, ["loginctl", "enable-linger", user])
        for step in steps:
            if problem := _problem_of(step):
                manager = "systemd" if user is not None else "systemd's user manager"
                advice = "" if user is not None else "Log in as this user, then run: "
                rest = " && ".join(" ".join(each) for each in steps)
                self.stdout.write(f"{manager} does not answer ({problem}). {advice}{rest}")
                return
        if user is not None:
            self.stdout.write(f"Berth is running as {user}, and starts at boot.")
            return
        self.stdout.write(
            "Berth is running, and starts when this user logs in. To start it at boot: loginctl enable-linger"
        )


def _problem_of(step: list[str]) -> str | None:
    done = subprocess.run(step, capture_output=True, text=True, check=False)  # noqa: S603  # fixed words
    if done.returncode == 0:
        return None
    return done.stderr.strip() or f"exit status {done.returncode}"


def _hand_over(user: str) -> None:
    """Give the state that loading the settings as root has made to the user who runs Berth."""
    for path in (settings.HOME.root, settings.HOME.uploads, settings.HOME.secret_key):
        if path.exists() and path.stat().st_uid == 0:
            shutil.chown(path, user, pwd.getpwnam(user).pw_gid)
