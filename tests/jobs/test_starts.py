"""Submits that start a module or a command."""

import io
import shlex
import subprocess
import sys
import zipfile
from typing import Any

import pytest
from django.core.files.base import ContentFile
from django.utils import translation

from orchestrator.exceptions import Impossible, Malformed
from orchestrator.jobs.launch import launcher
from orchestrator.jobs.submission import clones, intake, starts
from orchestrator.jobs.submission.intake import parse_spec
from orchestrator.models import Attempt, Job
from orchestrator.sentences.errors import messages_of
from orchestrator.supervisor.protocol.records import read_record

PACKAGE = {"pkg/__init__.py": "", "pkg/train.py": "print(1)", "run.sh": "#!/bin/sh\necho 1"}


@pytest.fixture(autouse=True)
def _devices(home, make_device):
    for index in range(2):
        make_device(index)


def archive(files: dict[str, str]) -> ContentFile:  # type: ignore[type-arg]  # generic for the checker only
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as file:
        for name, text in files.items():
            file.writestr(name, text)
    return ContentFile(packed.getvalue(), name="code.zip")


def submit(user, files=PACKAGE, **fields) -> intake.Accepted:
    return intake.accept(user, parse_spec(fields), bundle=archive(files))


def test_module_and_command_are_kept_with_the_job_and_name_it(ada):
    module = submit(ada, module="pkg.train", gpus=2).job
    command = submit(ada, command=["./run.sh", "now"]).job

    assert (module.name, module.spec.module, module.spec.entrypoint) == ("train", "pkg.train", None)
    assert (command.name, command.spec.command, command.spec.entrypoint) == ("run", ["./run.sh", "now"], None)
    assert (module.log_count, command.log_count) == (2, 1)


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["acelerate", "launch"], "There is no program 'acelerate', neither beside the job's Python"),
        (["pythn3"], "Was 'python3' meant?"),
        (["run.sh"], "The upload has it: write bash run.sh."),
        (["./fit.sh"], "The upload has no file 'fit.sh', with which the command begins"),
        (["/opt/nowhere/tool"], "This server has no program /opt/nowhere/tool; check its path."),
    ],
)
def test_command_that_is_not_there_is_refused_before_it_waits(ada, command, sentence):
    with pytest.raises(Impossible) as error:
        submit(ada, command=command)

    assert sentence in error.value.fields["command"][0]
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (["pythn3"], "War 'python3' gemeint?"),
        (["run.sh"], "Der Upload enthält die Datei; so startet sie: bash run.sh."),
        (["./fit.sh"], "Der Upload hat keine Datei 'fit.sh', mit der der Befehl beginnt; den Pfad prüfen."),
        (["/opt/nowhere/tool"], "Dieser Server hat kein Programm /opt/nowhere/tool; den Pfad prüfen."),
        (["no-such-tool"], "Gehört es zu einem Paket, --with PAKET angeben."),
    ],
)
def test_why_a_command_is_refused_is_said_in_the_readers_language(ada, command, sentence):
    with pytest.raises(Impossible) as error:
        submit(ada, command=command)

    with translation.override("de"):
        assert messages_of(error.value)["command"][0].endswith(sentence)


def test_module_that_the_uploads_own_package_lacks_is_refused(ada):
    with pytest.raises(Malformed, match=r"neither pkg/fit\.py nor pkg/fit/__main__\.py") as error:
        submit(ada, module="pkg.fit")

    assert list(error.value.fields) == ["module"]


def test_module_that_is_not_uploaded_may_be_installed_and_is_warned_about(ada):
    assert submit(ada, module="json.tool").warnings == [
        "Module 'json.tool' is not in the upload, so it must be installed in the job's Python."
    ]
    assert submit(ada, module="pkg.train").warnings == []
    assert starts.check_module("pkg", {"pkg/__init__.py", "pkg/__main__.py"}) == []


def test_script_uploaded_alone_can_be_started_by_a_command(ada):
    spec = parse_spec({"command": ["bash", "fit.sh"]})

    accepted = intake.accept(ada, spec, script=ContentFile(b"echo 1\n", name="fit.sh"))

    assert accepted.warnings == []
    assert accepted.job.name == "fit"


def test_clone_can_start_something_else(ada):
    first = submit(ada, module="pkg.train").job

    by_command = clones.retry(ada, first, resume=False, changes={"command": ["python", "-m", "pkg.train"]})
    by_script = clones.retry(ada, by_command, resume=False, changes={"entrypoint": "pkg/train.py"})

    assert (by_command.spec.module, by_command.spec.entrypoint) == (None, None)
    assert (by_script.spec.command, by_script.spec.entrypoint) == ([], "pkg/train.py")


def test_launch_record_of_a_command_has_its_words_and_all_devices(ada, home, make_attempt, make_device):
    job = submit(ada, command=["bash", "-c", "ls {output_dir}"], args=["--all"], gpus=2).job
    attempt = make_attempt(job, devices=list(job.pool.devices.all()))

    launcher.prepare(Job.objects.select_related("pool").get(pk=job.pk), Attempt.objects.get(pk=attempt.pk))

    record = read_record(launcher.folder_of(attempt).launch) or {}
    assert (record["starts_as"], record["script"], record["ranks"], record["devices"]) == (
        "command",
        "bash",
        1,
        2,
    )
    assert record["args"] == ["-c", f"ls {home.job(job.pk).output}", "--all"]
    assert record["python"] == sys.executable


SRC = {
    "src/pkg/__init__.py": "",
    "src/pkg/train.py": "",
    "src/fit.py": "print(1)",
    "data/a.csv": "",
    "src/go.sh": "",
}


@pytest.mark.parametrize(
    ("fields", "script"),
    [
        ({"entrypoint": "src/fit.py", "workdir": "src"}, "fit.py"),
        ({"entrypoint": "src/fit.py", "workdir": "./src/"}, "fit.py"),
        ({"entrypoint": "src/fit.py", "workdir": "data"}, "../src/fit.py"),
        ({"entrypoint": "src/fit.py"}, "src/fit.py"),
        ({"module": "pkg.train", "workdir": "src"}, "pkg.train"),
        ({"command": ["./go.sh"], "workdir": "src"}, "./go.sh"),
    ],
)
def test_job_runs_in_the_folder_that_it_names(ada, home, make_attempt, fields, script):
    accepted = submit(ada, files=SRC, **fields)
    job = accepted.job
    attempt = make_attempt(job, devices=list(job.pool.devices.all()[:1]))

    launcher.prepare(Job.objects.select_related("pool").get(pk=job.pk), Attempt.objects.get(pk=attempt.pk))

    record = read_record(launcher.folder_of(attempt).launch) or {}
    assert accepted.warnings == []
    assert record["script"] == script
    assert record["cwd"] == str(home.job(job.pk).work / job.spec.folder)


def test_folder_that_is_not_uploaded_is_refused(ada):
    with pytest.raises(Malformed, match=r"no folder 'source' to run in") as error:
        submit(ada, files=SRC, entrypoint="src/fit.py", workdir="source")

    assert list(error.value.fields) == ["workdir"]
    with pytest.raises(Malformed, match="inside the uploaded files"):
        parse_spec({"workdir": "../data"})


def test_package_below_src_of_a_project_is_found_and_importable(ada, home, make_attempt):
    project = {
        "pyproject.toml": "[project]\nname = 'x'\n",
        "src/pkg/__init__.py": "",
        "src/pkg/fit.py": "import pkg",
    }

    accepted = submit(ada, project, module="pkg.fit")

    assert accepted.warnings == []
    with pytest.raises(Malformed, match=r"neither src/pkg/no\.py nor src/pkg/no/__main__\.py"):
        submit(ada, project, module="pkg.no")
    assert "not in the upload" in submit(ada, {"src/pkg/fit.py": ""}, module="pkg.fit").warnings[0]
    attempt = make_attempt(accepted.job)
    launcher.prepare(accepted.job, attempt)
    record = read_record(home.job(accepted.job.pk).attempt(1).launch) or {}
    assert f"{home.job(accepted.job.pk).work}/src" in str(record["env"])


def test_the_only_script_of_an_upload_starts_where_nothing_else_is_named(ada):
    helper = {"pkg/__init__.py": "", "pkg/net.py": ""}

    assert submit(ada, {"main.py": "print(1)", **helper}).job.spec.entrypoint == "main.py"
    assert submit(ada, {"src/fit.py": "print(1)"}).job.spec.entrypoint == "src/fit.py"
    assert submit(ada, {"train.py": "print(1)", "eval.py": ""}).job.spec.entrypoint == "train.py"
    with pytest.raises(Malformed, match=r"no file 'train\.py'"):
        submit(ada, {"main.py": "", "eval.py": ""})
    with pytest.raises(Malformed, match=r"no file 'train\.py'"):
        submit(ada, {"main.py": ""}, entrypoint="train.py")


def test_files_of_a_project_that_no_job_starts_are_not_its_only_script(ada):
    files = {"setup.py": "", "conftest.py": "", "src/pkg/__init__.py": "", "src/pkg/train.py": "print(1)"}

    assert submit(ada, {"setup.py": "", "fit.py": "print(1)"}).job.spec.entrypoint == "fit.py"
    assert submit(ada, files).job.spec.entrypoint == "src/pkg/train.py"
    with pytest.raises(Malformed, match=r"no file 'train\.py'"):
        submit(ada, {"setup.py": "print(1)"})


@pytest.mark.parametrize(
    ("files", "choices"),
    [
        ({"src/pkg/__init__.py": "", "src/pkg/train.py": "", "src/pkg/net.py": ""}, "-m pkg.train"),
        ({"src/train.py": "", "src/net.py": ""}, "-e src/train.py"),
        ({"lib/a/__init__.py": "", "lib/a/b/__init__.py": "", "lib/a/b/train.py": "", "x/y.py": ""}, "-m a.b.train --workdir lib"),
        ({"main.py": "", "eval.py": "", "setup.py": ""}, "-e eval.py; -e main.py"),
        ({"my code/a.py": "", "my code/b.py": "", "c d.py": "", "e.py": ""}, "-e 'c d.py'; -e e.py"),
        ({"pyproject.toml": "[project.scripts]\nx-fit = 'x:main'\n", "x.py": "", "y.py": ""}, "--command x-fit; -e x.py; -e y.py"),
    ],
)  # fmt: skip
def test_an_upload_without_the_script_is_answered_with_what_it_has(ada, files, choices):
    with pytest.raises(Malformed) as refused:
        submit(ada, files)

    assert str(refused.value).endswith(f"as entrypoint. It has: {choices}.")


PROJECT = {
    "pyproject.toml": "[project]\nname = 'x'\n[project.scripts]\nx-train = 'x.cli:app.main [fast]'\n",
    "src/x/__init__.py": "",
    "src/x/cli.py": "",
}
CALL = "import sys; sys.argv[0] = 'x-train'; from x.cli import app; sys.exit(app.main())"


@pytest.mark.parametrize(
    ("files", "fields"),
    [
        (PROJECT, {}),
        ({f"code/{name}": text for name, text in PROJECT.items()}, {"workdir": "code"}),
        (
            {**PROJECT, "pyproject.toml": "[tool.poetry.scripts]\nx-train = 'x.cli:app.main'\n"},
            {},
        ),
        (
            {
                "setup.py": "from setuptools import setup; setup()",
                "setup.cfg": "[options.entry_points]\nconsole_scripts =\n    x-train = x.cli:app.main  # of the lab\n",
                "src/x/__init__.py": "",
                "src/x/cli.py": "",
            },
            {},
        ),
    ],
)
def test_a_program_that_the_project_declares_starts_as_if_it_were_installed(
    ada, home, make_attempt, files, fields
):
    job = submit(ada, files, command=["x-train", "--epochs", "3"], **fields).job
    launcher.prepare(job, make_attempt(job))

    record = read_record(home.job(job.pk).attempt(1).launch) or {}
    assert job.name == "x-train"
    assert (record["script"], record["args"]) == ("python", ["-c", CALL, "--epochs", "3"])


def test_a_program_of_the_whole_upload_finds_its_packages_from_a_folder_of_it(
    ada, home, make_attempt, tmp_path
):
    files = {
        "pyproject.toml": PROJECT["pyproject.toml"],
        "x/__init__.py": "",
        "x/cli.py": "class app:\n    def main(): print('started')\n",
        "random.py": "raise SystemExit('not this one')\n",
        "run/a.txt": "",
    }
    job = submit(ada, files, command=["x-train"], workdir="run").job
    launcher.prepare(job, make_attempt(job))

    record: Any = read_record(home.job(job.pk).attempt(1).launch)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    script = record["args"][1].replace("from x.cli", "import random; from x.cli")
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path / "run", capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "started\n"), ended.stderr


@pytest.mark.parametrize(
    "text", [f"version = {'1' * 5000}\n", f"x = {'[' * 5000}\n"], ids=["digits", "depth"]
)
def test_a_project_file_that_no_parser_takes_is_refused_with_a_sentence(ada, text):
    with pytest.raises(Malformed, match=r"pyproject.toml cannot be read as TOML: it nests too deeply, or"):
        submit(ada, {"pyproject.toml": text, "a.txt": ""}, command=["x-train"])


@pytest.mark.parametrize("text", ["[project.scripts]\nx-train = 1\n", "project = 3\n", "[project]\n"])
def test_a_project_that_declares_no_such_program_leaves_the_command_as_it_is(ada, text):
    with pytest.raises(
        Impossible, match=r"There is no program 'x-train', .* provides it, add --with PACKAGE\."
    ):
        submit(ada, {"pyproject.toml": text, "a.txt": ""}, command=["x-train"])


@pytest.mark.parametrize(
    ("script", "is_warned"),
    [
        ("nohup python train.py > log 2>&1 &\necho started\n", True),
        ("python a.py &\npython b.py &\nwait\n", False),
        ("python a.py && python b.py\n# python c.py &\n", False),
        ("python a.py &&\n  python b.py 2>&1 | tee log\n", False),
    ],
)
def test_a_shell_script_that_leaves_its_program_in_the_background_is_warned_about(ada, script, is_warned):
    warnings = submit(ada, {"run.sh": script, "train.py": ""}, command=["bash", "run.sh"]).warnings

    assert any("does not wait for it" in warning for warning in warnings) == is_warned


@pytest.mark.parametrize(
    ("script", "command", "warning"),
    [
        ("python prep.py\npython train.py\n", ["bash", "run.sh"], "add at the top: set -e"),
        ("CUDA=1 python3 prep.py\ntorchrun train.py --x\n", ["./run.sh"], "add at the top: set -e"),
        ("#!/bin/bash\nset -euo pipefail\npython prep.py\npython train.py\n", ["bash", "run.sh"], None),
        ("#!/bin/sh -e\npython prep.py\npython train.py\n", ["./run.sh"], None),
        ("python prep.py\npython train.py\n", ["bash", "-ex", "run.sh"], None),
        ("python prep.py && python train.py\n", ["bash", "run.sh"], None),
        ("python prep.py || exit 1\npython train.py\n", ["bash", "run.sh"], None),
        ("cd src\npython train.py\n", ["bash", "run.sh"], None),
        ("set -Eeuo pipefail\npython prep.py\npython train.py\n", ["bash", "run.sh"], None),
        ("set -o pipefail -e\npython prep.py\npython train.py\n", ["bash", "run.sh"], None),
        ("set -o nounset -o errexit\npython prep.py\npython train.py\n", ["bash", "run.sh"], None),
        ("cd x && set -e\npython prep.py\npython train.py\n", ["bash", "run.sh"], None),
        ("# set -e\npython prep.py\npython train.py\n", ["bash", "run.sh"], "set -e"),
        ("python prep.py --set -x\npython train.py -e\n", ["bash", "run.sh"], "set -e"),
        ("python prep.py \\\n  --x 1 || exit 1\npython train.py\n", ["bash", "run.sh"], None),
        ("python prep.py \\\n  --x 1 \\\n  && python train.py\npython end.py\n", ["bash", "run.sh"], None),
        ("python a.py \\\n  --x 1 &\npython b.py &\nwait\n", ["bash", "run.sh"], None),
        ("if [ -f x ]; then\n  python a.py\nelse\n\tpython b.py\nfi\n", ["bash", "run.sh"], None),
        ("python --version\npython -V 2>&1\npython train.py\n", ["bash", "run.sh"], None),
        ("set -e\r\npython train.py\r\n", ["bash", "run.sh"], "sed -i 's/\\r$//' run.sh"),
    ],
)
def test_a_shell_script_is_warned_about_that_would_go_wrong(ada, script, command, warning):
    warnings = submit(ada, {"run.sh": script, "train.py": ""}, command=command).warnings

    assert len(warnings) == (warning is not None), warnings
    assert warning is None or warning in warnings[0]


@pytest.mark.parametrize(
    ("words", "instead"),
    [
        ("train.py --output_dir {tmp}/out", "Instead of {tmp}/out name a folder of the job (out)"),
        ("train.py --out={tmp}", "Instead of {tmp} name a folder of the job (output)"),
        ("python train.py {tmp}/a/b", "name a folder of the job (a/b)"),
        ("train.py --out tmp/out --like {tmp}fs/x", None),
        ("train.py --log_dir=file://{tmp}/x", "Instead of {tmp}/x name a folder of the job (x)"),
        ("train.py --uri file:{tmp}/runs", "Instead of {tmp}/runs name a folder of the job (runs)"),
        ("train.py paths=[a,{tmp}/b] other=1", "Instead of {tmp}/b name a folder of the job (b)"),
        ("bash -c 'python train.py > {tmp}/y'", "Instead of {tmp}/y name a folder of the job (y)"),
        ("bash -ec 'python train.py --out={tmp}/z 2>{tmp}/err'", "Instead of {tmp}/z name a folder"),
        ("bash -c 'scp a host:{tmp}/y; cat /var{tmp}/y'", None),
        ("train.py --prompt 'what is in {tmp}/x?'", None),
        ("train.py --init_method file://{tmp}/sync", None),
        ("train.py --dist-url=file://{tmp}/x", None),
        ("train.py --rdzv_endpoint {tmp}/x", None),
        (
            "train.py --dist-url file://{tmp}/x --out {tmp}/y",
            "Instead of {tmp}/y name a folder of the job (y)",
        ),
        ("env TMPDIR={tmp} python train.py", None),
        ("bash -c 'TMPDIR={tmp} python train.py --init-method file://{tmp}/x'", None),
        (
            "bash -o pipefail -c 'python train.py > {tmp}/y'",
            "Instead of {tmp}/y name a folder of the job (y)",
        ),
        ("python -c 'print(\"see {tmp}/x\")'", None),
    ],
)
def test_an_option_that_names_a_place_in_tmp_is_warned_about(ada, words, instead):
    first, *others = shlex.split(words.format(tmp=starts.TEMPORARY))
    start = {"entrypoint": first, "args": others} if first == "train.py" else {"command": [first, *others]}
    warnings = submit(ada, {"train.py": "print(1)"}, **start).warnings

    found = [warning for warning in warnings if f"{starts.TEMPORARY} of its own" in warning]
    assert len(found) == (instead is not None)
    assert instead is None or instead.format(tmp=starts.TEMPORARY) in found[0]
