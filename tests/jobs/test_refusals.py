"""A machine that refuses the sandbox: the cause is named, with the words of the refusal and what to do."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from orchestrator.jobs.launch import isolation, refusals
from orchestrator.jobs.launch.refusals import Cause, Machine
from orchestrator.live import readings as live
from orchestrator.supervisor.sandbox import bwrap
from orchestrator.supervisor.sandbox.bwrap import Probe
from tests.conftest import lacking

ROOT = Path(__file__).resolve().parents[2]
# Prints the cause and the sandbox's own words, found on this machine as it is around this process.
FIND = """
from orchestrator.jobs.launch import refusals
from orchestrator.live import readings as live
from orchestrator.supervisor.sandbox import bwrap
refusal = refusals.find(bwrap.probe())
print(refusal.cause, refusal.sentence, sep="\\n")
"""
# Refuses clone and unshare with a new user namespace, and hides clone3, as container engines do.
FILTER_CALLS = """
import ctypes, os, platform, struct, sys
clone, unshare = {"x86_64": (56, 272), "aarch64": (220, 97)}[platform.machine()]
refuse, allow, no_call = 0x00050001, 0x7FFF0000, 0x00050026
rules = [
    (0x20, 0, 0, 0), (0x15, 3, 0, clone), (0x15, 2, 0, unshare), (0x15, 4, 0, 435), (0x06, 0, 0, allow),
    (0x20, 0, 0, 16), (0x45, 0, 2, 0x10000000), (0x06, 0, 0, refuse), (0x06, 0, 0, no_call), (0x06, 0, 0, allow),
]
code = b"".join(struct.pack("HBBI", *rule) for rule in rules)
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Program(len(rules), code)), 0, 0) == 0
os.execv(sys.argv[1], sys.argv[1:])
"""
IN_NEW_NAMESPACE = ("unshare", "--user", "--map-root-user")
UBUNTU = "bwrap: setting up uid map: Permission denied"


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., Machine]:
    """The kernel's files of another machine."""

    def make(**files: str) -> Machine:
        for name, text in files.items():
            path = tmp_path / "root" / name.replace("__", "/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return Machine(tmp_path / "root")

    return make


@pytest.fixture
def programs(tmp_path: Path, monkeypatch) -> Iterator[Callable[..., Path]]:
    """Programs that are alone on the path."""
    folder = tmp_path / "programs"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    isolation.forget()

    def make(**scripts: str) -> Path:
        for name, script in scripts.items():
            (folder / name).write_text(f"#!/bin/sh\n{script}\n")
            (folder / name).chmod(0o755)
        return folder

    yield make
    isolation.forget()


def found_behind(*before: str) -> tuple[str, str]:
    """The cause and the sentence in a process that was started through other programs."""
    if bwrap.detect() < 1:
        lacking("there is no sandbox on this machine to take away")
    done = subprocess.run(
        [*before, sys.executable, "-c", FIND],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "orchestrator.server.settings"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    cause, _, sentence = done.stdout.strip().partition("\n")
    return cause, sentence


def in_shell(*lines: str) -> Sequence[str]:
    """Words that run some lines of shell before the command that follows them."""
    return "sh", "-c", " && ".join([*lines, 'exec "$0" "$@"'])


def test_limit_of_no_user_namespaces_is_named_with_its_setting():
    cause, sentence = found_behind(
        *IN_NEW_NAMESPACE, *in_shell("echo 0 > /proc/sys/user/max_user_namespaces")
    )

    assert cause == "limit"
    assert "user.max_user_namespaces is 0" in sentence
    assert "nesting depth or /proc/sys/user/max_*_namespaces exceeded" in sentence
    assert "sudo sysctl -w user.max_user_namespaces=15000" in sentence


def test_covered_proc_of_a_container_is_named_with_the_option_for_its_engine():
    cause, sentence = found_behind(
        *(*IN_NEW_NAMESPACE, "--mount", "--pid", "--fork", "--mount-proc"),
        *in_shell("mount -t tmpfs none /proc/driver"),
    )

    assert cause == "masked_proc"
    assert "Parts of /proc are covered (/proc/driver)" in sentence
    # Newer versions of bubblewrap name the folder as the sandbox sees it.
    assert re.search(r"Can't mount proc on (/newroot)?/proc: Operation not permitted", sentence)
    assert "--security-opt systempaths=unconfined" in sentence


def test_filter_of_system_calls_is_named_with_the_option_for_its_engine():
    cause, sentence = found_behind(sys.executable, "-c", FILTER_CALLS)

    assert cause == "seccomp"
    assert "No permissions to creat" in sentence
    assert "--security-opt seccomp=unconfined" in sentence


def test_ubuntu_that_restricts_namespaces_gets_a_profile_for_bubblewrap(machine):
    ubuntu = machine(
        proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
        proc__self__attr__current="unconfined\n",
    )

    refusal = refusals.find(Probe(0, UBUNTU, "/usr/bin/bwrap"), ubuntu)

    assert refusal.cause is Cause.APPARMOR
    assert UBUNTU in refusal.sentence
    assert refusal.cure.files == (
        (
            "/etc/apparmor.d/berth-bwrap",
            "abi <abi/4.0>,\nprofile berth-bwrap /usr/bin/bwrap flags=(unconfined) {\n  userns,\n}\n",
        ),
    )
    assert refusal.cure.commands == (("apparmor_parser", "--replace", "/etc/apparmor.d/berth-bwrap"),)


def test_profile_that_a_package_brought_is_loaded_instead_of_a_second_one(machine):
    ubuntu = machine(
        proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n",
        **{
            "etc__apparmor.d__bwrap-userns-restrict": "profile bwrap /usr/bin/bwrap flags=(attach_disconnected) {\n}"
        },
    )

    cure = refusals.find(Probe(0, UBUNTU, "/usr/bin/bwrap"), ubuntu).cure

    assert cure.files == ()
    assert cure.commands == (("apparmor_parser", "--replace", "/etc/apparmor.d/bwrap-userns-restrict"),)


@pytest.mark.parametrize(
    ("error", "files", "cause", "cure"),
    [
        (
            "bwrap: loopback: Failed RTM_NEWADDR: Operation not permitted",
            {"proc__sys__kernel__apparmor_restrict_unprivileged_userns": "1\n"},
            Cause.APPARMOR,
            "doctor --fix",
        ),
        (
            "bwrap: No permissions to create new namespace, likely because the kernel does not allow it.",
            {"proc__sys__kernel__unprivileged_userns_clone": "0\n"},
            Cause.SWITCHED_OFF,
            "kernel.unprivileged_userns_clone=1",
        ),
        (
            "bwrap: Failed to make / slave: Permission denied",
            {"proc__self__attr__current": "docker-default (enforce)\n"},
            Cause.CONFINED,
            "apparmor=unconfined",
        ),
        ("bwrap: something new", {}, Cause.UNKNOWN, "harden.md"),
    ],
)
def test_words_of_the_refusal_and_settings_in_force_name_the_cause(machine, error, files, cause, cure):
    refusal = refusals.find(Probe(0, error, "/usr/bin/bwrap"), machine(**files))

    assert refusal.cause is cause
    assert refusal.error == error
    assert cure in refusal.cure.sentence


def test_missing_bubblewrap_is_installed_by_the_package_manager_of_the_machine(programs):
    programs(dnf="exit 0")

    refusal = refusals.find(bwrap.probe())

    assert refusal.cause is Cause.MISSING
    assert refusal.cure.commands == (("dnf", "install", "--assumeyes", "bubblewrap"),)


@pytest.mark.django_db
def test_two_people_without_a_sandbox_read_its_cause_on_pages_and_in_doctor(programs, home, ada, bob, client):
    programs(bwrap=f"echo {shlex.quote(UBUNTU)} >&2; exit 1")
    client.force_login(ada)

    band = client.get("/").content.decode()
    said = StringIO()
    with pytest.raises(CommandError, match="1 problem found"):
        call_command("doctor", stdout=said)

    assert UBUNTU in band.replace("&quot;", '"')
    assert "T13  This server has several users and no sandbox" in said.getvalue()
    assert f'The sandbox said: "{UBUNTU}"' in said.getvalue()


@pytest.mark.django_db
def test_doctor_installs_what_is_missing_and_starts_a_sandbox(programs, home, tmp_path):
    folder = programs(sudo='exec "$@"')
    working = folder / "bwrap"
    # The package manager brings the program.
    script = (
        f'echo "$@" > {tmp_path}/asked; printf "#!/bin/sh\\nexit 0\\n" > {working}; /bin/chmod 755 {working}'
    )
    programs(**{"apt-get": script})
    said = StringIO()

    call_command("doctor", fix=True, stdout=said)

    assert (tmp_path / "asked").read_text() == "install --yes bubblewrap\n"
    assert "run apt-get install --yes bubblewrap\nThe sandbox starts now." in said.getvalue()
    assert isolation.level() >= 1


@pytest.mark.django_db
def test_doctor_names_the_step_that_failed(programs, home):
    programs(sudo='exec "$@"', **{"apt-get": "echo 'E: no such package' >&2; exit 100"})

    with pytest.raises(CommandError, match="apt-get install --yes bubblewrap` failed: E: no such package"):
        call_command("doctor", fix=True, stdout=StringIO())


@pytest.mark.django_db
def test_doctor_writes_a_profile_through_sudo(programs, home, tmp_path, machine, monkeypatch):
    wrote = tmp_path / "wrote"
    programs(
        sudo='exec "$@"',
        tee=f'echo "$1" >> {wrote}; /bin/cat >> {wrote}',
        apparmor_parser=f'echo "$@" >> {wrote}; : > {tmp_path}/allowed',
        bwrap=f"test -e {tmp_path}/allowed || {{ echo {shlex.quote(UBUNTU)} >&2; exit 1; }}",
    )
    restricted = machine(proc__sys__kernel__apparmor_restrict_unprivileged_userns="1\n")
    monkeypatch.setattr(refusals, "HERE", restricted)

    call_command("doctor", fix=True, stdout=StringIO())

    program = tmp_path / "programs" / "bwrap"
    path = "/etc/apparmor.d/berth-bwrap"
    assert wrote.read_text() == f"{path}\n{refusals.apparmor_profile(str(program))}--replace {path}\n"


@pytest.mark.django_db
def test_a_german_reader_reads_why_there_is_no_sandbox_in_german(programs, home, ada, bob, client):
    programs(bwrap=f"echo {shlex.quote(UBUNTU)} >&2; exit 1")
    live.write_now(replace(live.NOTHING_READ, taken_at=1.0, sandbox=isolation.reading()))
    client.force_login(ada)
    client.cookies["berth_language"] = "de"

    band = client.get("/").content.decode().replace("&quot;", '"')

    assert "bwrap kann hier keine Sandbox starten. Die Sandbox sagte: " in band
    assert f'"{UBUNTU}". Was nötig ist, steht in docs/how-to/harden.md' in band
    assert "The sandbox said" not in band


@pytest.mark.django_db
def test_container_of_the_pages_believes_the_agent_about_the_sandbox(programs, home, ada, bob):
    seen = live.NOTHING_READ
    live.write_now(replace(seen, taken_at=1.0, sandbox={"level": 2, "refusal": None}))
    assert isolation.level() == 0  # where pages are served there is no bubblewrap

    isolation.check_where_jobs_run()
    with pytest.raises(isolation.NotKeptApart, match="bubblewrap is not installed"):
        isolation.check()

    live.write_now(replace(seen, taken_at=2.0, sandbox={"level": 0, "refusal": "The agent's words."}))
    with pytest.raises(isolation.NotKeptApart, match="The agent's words"):
        isolation.check_where_jobs_run()


def test_cured_sandbox_is_found_without_a_restart(programs, monkeypatch):
    monkeypatch.setattr(isolation, "PROBE_AGAIN_AFTER_S", 0.0)

    before = isolation.refusal()
    assert before is not None
    assert before.cause is Cause.MISSING
    programs(bwrap="exit 0")

    assert isolation.level() >= 1
    assert isolation.refusal() is None
