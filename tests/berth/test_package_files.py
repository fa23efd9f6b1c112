"""The lists of packages that the command line sends beside the code."""

import pytest

from berth.cli.package_files import beside, named
from berth.client import BerthError
from orchestrator.spec.packages import EnvironmentFiles


def test_first_list_beside_a_script_is_sent_with_what_it_refers_to(tmp_path):
    (tmp_path / "requirements.txt").write_text(
        "-r ./base.txt\n-c pins.txt # ours\neinops\n-r ../outside.txt\n"
    )
    (tmp_path / "base.txt").write_text("numpy\n")
    (tmp_path / "pins.txt").write_text("numpy<3\n")
    (tmp_path / "pyproject.toml").write_text("[project]\n")

    found = beside(tmp_path / "train.py")

    sent = EnvironmentFiles.model_validate(found)
    assert list(sent.files) == ["requirements.txt", "base.txt", "pins.txt"]
    assert sent.found


def test_lists_in_a_folder_below_are_sent_by_their_paths(tmp_path):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements.txt").write_text("-r requirements/gpu.txt\n-r ./requirements/../plain.txt\n")
    (tmp_path / "requirements/gpu.txt").write_text(
        "-r base.txt\n-c ../pins.txt\n-r ../../outside.txt\neinops\n"
    )
    for name in ("requirements/base.txt", "pins.txt", "plain.txt"):
        (tmp_path / name).write_text("numpy\n")

    sent = EnvironmentFiles.model_validate(beside(tmp_path / "train.py"))

    assert list(sent.files) == [
        "requirements.txt", "requirements/gpu.txt", "plain.txt", "requirements/base.txt", "pins.txt",
    ]  # fmt: skip


def test_environment_of_conda_is_sent_with_the_lists_that_its_pip_part_names(tmp_path):
    (tmp_path / "environment.yml").write_text(
        'dependencies:\n  - python\n  - pip:\n    - -r requirements/gpu.txt\n    - "-c pins.txt"\n    - einops\n'
    )
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/gpu.txt").write_text("-r base.txt\n")
    (tmp_path / "requirements/base.txt").write_text("numpy\n")
    (tmp_path / "pins.txt").write_text("numpy<3\n")

    sent = EnvironmentFiles.model_validate(beside(tmp_path / "train.py"))

    assert list(sent.files) == [
        "environment.yml",
        "requirements/gpu.txt",
        "pins.txt",
        "requirements/base.txt",
    ]


def test_lock_of_uv_is_sent_with_its_project(tmp_path):
    for name in ("uv.lock", "pyproject.toml", "requirements.txt"):
        (tmp_path / name).write_text("")

    assert beside(tmp_path / "train.py") == {"files": {"uv.lock": "", "pyproject.toml": ""}, "found": True}


def test_project_is_sent_with_its_lock_its_lists_and_what_counts_where_it_lists_nothing(tmp_path):
    (tmp_path / "requirements").mkdir()
    (tmp_path / "LICENSE.txt").write_bytes(b"\xe9")
    project = (
        '[project]\nlicense = {file = "LICENSE.txt"}\n'
        '[tool.setuptools.dynamic]\ndependencies = {file = ["requirements/base.txt"]}\n'
    )
    texts = {
        "pyproject.toml": project,
        "setup.py": "",
        "poetry.lock": "",
        "requirements/base.txt": "einops\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)

    assert beside(tmp_path / "train.py") == {"files": texts, "found": True}


def test_script_without_a_list_beside_it_sends_none(tmp_path):
    assert beside(tmp_path / "train.py") is None


def test_environment_is_a_file_here_or_a_name_that_the_server_knows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpu.txt").write_text("einops\n")

    assert named("gpu.txt") == {"files": {"gpu.txt": "einops\n"}}
    assert named("torch-2.8") == "torch-2.8"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_list_is_read_as_editors_and_shells_write_it(tmp_path, encoding):
    (tmp_path / "requirements.txt").write_text("-r base.txt\neinops\n", encoding=encoding, newline="\r\n")
    (tmp_path / "base.txt").write_text("numpy\n", encoding=encoding)

    assert beside(tmp_path / "train.py") == {
        "files": {"requirements.txt": "-r base.txt\neinops\n", "base.txt": "numpy\n"},
        "found": True,
    }


def test_list_that_is_no_text_is_refused_with_its_path(tmp_path):
    (tmp_path / "requirements.txt").write_bytes(b"\xff\xfa")

    with pytest.raises(BerthError, match=r"requirements\.txt is not UTF-8"):
        beside(tmp_path / "train.py")


def test_lists_that_setup_cfg_names_are_sent_and_a_script_in_another_encoding_holds_nothing_up(tmp_path):
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires = file: deps.txt\n")
    (tmp_path / "deps.txt").write_text("einops\n")
    (tmp_path / "setup.py").write_bytes(b"# -*- coding: latin-1 -*-\n# \xe9\n")

    sent = beside(tmp_path / "train.py")

    assert list(EnvironmentFiles.model_validate(sent).files) == ["setup.cfg", "setup.py", "deps.txt"]


@pytest.mark.parametrize("file", ["3", "{a = 1}", "[3]"])
def test_project_whose_lists_are_none_is_sent_as_it_is(tmp_path, file):
    project = f"[tool.setuptools.dynamic]\ndependencies = {{file = {file}}}\n"
    (tmp_path / "pyproject.toml").write_text(project)

    assert beside(tmp_path / "train.py") == {"files": {"pyproject.toml": project}, "found": True}
