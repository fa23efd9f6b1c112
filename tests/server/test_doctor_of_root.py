"""Root's doctor looks as the user whose state it is: what refuses a sandbox to users does not refuse it to root."""

import json
import os
import pwd
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOBODY = pwd.getpwnam("nobody")
LOOK = """
import json, os, subprocess, sys, django
from pathlib import Path
django.setup()
from orchestrator.server.doctor import owner
folder = Path(sys.argv[1])
told = {"name": owner.become_owner(folder)}
def of_child():
    return int(subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout)
def see(when):
    told[when] = [os.geteuid(), of_child(), owner.can_be_root()]
see("looks")
(folder / "written").touch()
with owner.root():
    see("cures")
see("after")
told["file"] = (folder / "written").stat().st_uid
print(json.dumps(told))
"""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="nobody but root becomes somebody else")


def looked(folder: Path) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, folder],
        cwd=ROOT,
        env={
            **os.environ,
            "BERTH_HOME": str(folder / "home"),
            "DJANGO_SETTINGS_MODULE": "orchestrator.server.settings",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@needs_root
def test_root_becomes_the_owner_of_the_state_and_is_root_for_the_cure_alone(tmp_path_factory):
    folder = tmp_path_factory.mktemp("state")
    os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
    for above in folder.parents:
        if not above.stat().st_mode & 0o001:
            above.chmod(above.stat().st_mode | 0o011)  # of pytest, for its user alone

    told = looked(folder)

    assert told == {
        "name": "nobody",
        "looks": [NOBODY.pw_uid, NOBODY.pw_uid, True],
        "cures": [0, 0, True],
        "after": [NOBODY.pw_uid, NOBODY.pw_uid, True],
        "file": NOBODY.pw_uid,
    }


def test_the_owner_of_the_state_stays_who_they_are(tmp_path):
    mine = os.geteuid()

    told = looked(tmp_path)

    assert (told["name"], told["looks"], told["cures"]) == (None, *2 * ([mine, mine, mine == 0],))
