"""What projects of Poetry, PDM, Pipenv and setuptools declare, read without running anything of theirs."""

import json
from importlib import metadata

import pytest

from orchestrator.exceptions import Malformed
from orchestrator.jobs.environments.declarations import read_file
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.environments.poetry import specifiers
from orchestrator.jobs.environments.requests import choose
from orchestrator.spec.job_spec import JobSpec

POETRY = """
[tool.poetry]
name = "lab"
version = "0.1.0"

[tool.poetry.dependencies]
python = ">=3.9,<4.0"
einops = "^0.7.0"
timm = {version = "~1.0.3", extras = ["hub"]}
pywin32 = {version = "*", markers = "sys_platform == 'win32'"}
tomli = {version = "^2", python = "<3.11"}
clip = {git = "https://example.org/clip.git", rev = "abc123"}
mine = {path = "libs/mine", develop = true}
wandb = {version = "*", optional = true}
numpy = [{version = "<2", python = "<3.12"}, {version = ">=2", python = ">=3.12"}]

[tool.poetry.group.train.dependencies]
tqdm = "4.66.1"

[tool.poetry.group.dev.dependencies]
pytest = "*"

[tool.poetry.group.extra]
optional = true
[tool.poetry.group.extra.dependencies]
hydra-core = "*"

[[tool.poetry.source]]
name = "wheels"
url = "https://example.org/simple"
priority = "explicit"
"""
POETRY_LOCK = """
[[package]]
name = "einops"
version = "0.7.0"
files = [{file = "einops-0.7.0-py3-none-any.whl", hash = "sha256:ab"}]

[[package]]
name = "clip"
version = "1.0"
[package.source]
type = "git"
url = "https://example.org/clip.git"

[[package]]
name = "numpy"
version = "1.26.4"

[[package]]
name = "numpy"
version = "2.1.0"

[[package]]
name = "torch"
version = "2.9.0+cpu"
[package.source]
type = "legacy"
url = "https://example.org/simple"
"""


def read(name: str, **files: str) -> Declared:
    texts = {each.replace("__", "."): text for each, text in files.items()}
    found = read_file(name, texts.get)
    assert found is not None
    return found


def test_project_of_poetry_brings_what_its_install_would_without_developers_tools():
    found = read("pyproject.toml", pyproject__toml=POETRY)

    assert found.lines == (
        "--extra-index-url https://example.org/simple",
        "einops<0.8,>=0.7.0",
        "timm[hub]<1.1,>=1.0.3",
        "pywin32 ; (sys_platform == 'win32')",
        "tomli<3,>=2 ; python_version < '3.11'",
        "clip @ git+https://example.org/clip.git@abc123",
        "numpy<2 ; python_version < '3.12'",
        "numpy>=2 ; python_version >= '3.12'",
        "tqdm==4.66.1",
    )
    assert found.requires_python == "<4.0,>=3.9"
    assert ["mine" in found.notes[0], "wandb" in found.notes[1]] == [True, True]


@pytest.mark.parametrize("named", ["pyproject.toml", "poetry.lock"])
def test_versions_of_poetrys_lock_are_taken_where_they_are_one_and_of_an_index(named):
    found = read(named, pyproject__toml=POETRY, poetry__lock=POETRY_LOCK)

    assert found.constraints == ("einops==0.7.0", "torch==2.9.0")  # in whichever build
    assert "tqdm==4.66.1" in found.lines


def test_lock_of_pdm_pins_the_packages_of_its_project():
    project = '[project]\nname = "mine"\ndependencies = ["einops", "timm"]\n[tool.pdm]\n'
    lock = '[[package]]\nname = "einops"\nversion = "0.8.1"\n[[package]]\nname = "near"\nversion = "1"\npath = "./near"\n'

    found = read("pyproject.toml", pyproject__toml=project, pdm__lock=lock)

    assert (found.lines, found.constraints) == (("einops", "timm"), ("einops==0.8.1",))


@pytest.mark.parametrize(
    ("poetrys", "pips"),
    [
        ("*", ""),
        ("1.2.3", "==1.2.3"),
        ("=1.2", "==1.2"),
        ("1.2.*", "==1.2.*"),
        ("1.2.x", "==1.2.*"),
        ("^2.1.0+cu118", "<3,>=2.1.0"),
        ("^1", "<2,>=1"),
        ("^1.2.3", "<2,>=1.2.3"),
        ("^0.2.3", "<0.3,>=0.2.3"),
        ("^0.0.3", "<0.0.4,>=0.0.3"),
        ("^0.0", "<0.1,>=0.0"),
        ("^2.0.0b1", "<3,>=2.0.0b1"),
        ("~1.2.3", "<1.3,>=1.2.3"),
        ("~1", "<2,>=1"),
        ("~=1.4", "~=1.4"),
        (">=1.0 <2.0", "<2.0,>=1.0"),
        (">= 1.0, != 1.5", "!=1.5,>=1.0"),
        ("^1.0 || ^2.0", "<3,>=2.0"),
    ],
)
def test_versions_as_poetry_writes_them_are_those_of_pip(poetrys, pips):
    assert specifiers(poetrys) == pips


@pytest.mark.parametrize(
    "wanted", ['"^one"', '"1.2 ?"', "{git = 3}", '{version = "1", markers = "on mondays"}']
)
def test_package_of_poetry_that_cannot_be_read_is_named(wanted):
    project = f"[tool.poetry.dependencies]\neinops = {wanted}\n"

    with pytest.raises(Malformed, match=r"pyproject\.toml: the version or the place of 'einops'"):
        read("pyproject.toml", pyproject__toml=project)


PIPFILE = """
[[source]]
name = "pypi"
url = "https://pypi.example/simple"
[[source]]
name = "lab"
url = "https://example.org/lab"
[packages]
einops = "*"
timm = {version = "==1.0.3", extras = ["hub"], index = "lab"}
lib = {git = "git@example.org:lab/lib.git", ref = "main"}
mine = {path = ".", editable = true}
[dev-packages]
pytest = "*"
[requires]
python_version = "3.6"
"""


def test_pipfile_and_its_lock_bring_what_is_for_everybody():
    lock = {
        "_meta": {"sources": [{"name": "lab", "url": "https://example.org/lab"}], "requires": {}},
        "default": {
            "einops": {"version": "==0.8.0", "hashes": ["sha256:ab"], "markers": "python_version >= '3.8'"},
            "mine": {"path": ".", "editable": True},
        },
        "develop": {"pytest": {"version": "==8.0"}},
    }

    found = read("Pipfile", Pipfile=PIPFILE)
    locked = read("Pipfile.lock", Pipfile__lock=json.dumps(lock))

    assert found.lines == (
        "--extra-index-url https://example.org/lab",
        "einops",
        "timm[hub]==1.0.3",
        "lib @ git+ssh://git@example.org/lab/lib.git@main",
    )
    assert ["mine" in found.notes[0], "Python 3.6" in found.notes[1]] == [True, True]
    assert locked.lines == (
        "--extra-index-url https://example.org/lab",
        "einops==0.8.0 ; (python_version >= '3.8')",
    )
    assert (locked.locked, found.locked) == (True, False)


@pytest.mark.parametrize("text", ["{", "[]", '{"default": 3}', "[" * 100_000])
def test_text_that_is_no_lock_of_pipenv_is_refused(text):
    with pytest.raises(Malformed, match=r"Pipfile\.lock is no lock of Pipenv"):
        read("Pipfile.lock", Pipfile__lock=text)


@pytest.mark.parametrize(
    "code",
    [
        'setup(name="x", python_requires=">=3.8", install_requires=["einops>=0.7", "tqdm"])',
        'import setuptools\nsetuptools.setup(python_requires=">=3.8", install_requires=("einops>=0.7", "tqdm"))',
        'NEEDS = ["einops>=0.7"]\nMORE = NEEDS + ["tqdm"]\nsetup(install_requires=MORE, python_requires=">=3.8")',
    ],
)
def test_list_of_a_setup_script_is_read_without_running_it(code):
    found = read("setup.py", setup__py=f"raise SystemExit('was run')\n{code}\n")

    assert (found.lines, found.requires_python) == (("einops>=0.7", "tqdm"), ">=3.8")


def test_list_that_a_setup_script_computes_is_left_out_and_said():
    found = read("setup.py", setup__py='setup(install_requires=open("needs.txt").read().split())')

    assert found.is_empty
    assert "by code" in found.notes[0]


@pytest.mark.parametrize("text", ["def (", "print(1)", "setup(name='x')", "x = " + "(" * 5000])
def test_script_that_lists_nothing_declares_nothing(text):
    assert read_file("setup.py", {"setup.py": text}.get) is None


@pytest.mark.parametrize(
    "listed",
    [
        "\n    einops>=0.7\n    tqdm # bars\n",
        " einops>=0.7; tqdm",
        " file: needs.txt",
        "\n    file: needs.txt",
    ],
)
def test_list_of_setup_cfg_is_read(listed):
    text = f"[metadata]\nname = x\n[options]\npython_requires = >=3.8\ninstall_requires ={listed}\n"

    found = read("setup.cfg", setup__cfg=text, needs__txt="einops>=0.7\ntqdm\n")

    assert (found.lines, found.requires_python) == (("einops>=0.7", "tqdm"), ">=3.8")


def test_broken_setup_cfg_is_refused():
    with pytest.raises(Malformed, match=r"setup\.cfg cannot be read: .*line"):
        read("setup.cfg", setup__cfg="no section\n")


def test_lists_that_setuptools_reads_for_a_project_are_its_packages():
    project = (
        '[project]\nname = "x"\nrequires-python = ">=3.8"\ndynamic = ["dependencies"]\n'
        '[tool.setuptools.dynamic]\ndependencies = {file = ["requirements/base.txt"]}\n'
    )

    found = read_file("pyproject.toml", {"pyproject.toml": project, "requirements/base.txt": "einops\n"}.get)

    assert found is not None
    assert (found.lines, found.requires_python) == (("einops",), ">=3.8")


def test_project_file_without_packages_leaves_the_word_to_the_next_list():
    files = {
        "pyproject.toml": "[build-system]\nrequires = ['setuptools']\n[tool.black]\nline-length = 100\n",
        "setup.py": 'setup(install_requires=["never-heard-of"])',
    }

    found = choose(JobSpec.model_validate({"entrypoint": "train.py"}), files.get, {}, lambda _: None)

    assert found.declared is not None
    assert (found.spec.environment, found.declared.lines) == ("setup.py", ("never-heard-of",))


@pytest.mark.parametrize(
    ("wanted", "line"),
    [
        ('{version = "*", python = "<=3.11"}', "einops ; python_version <= '3.11'"),
        ('{version = "*", python = "<3.11.4"}', "einops ; python_full_version < '3.11.4'"),
        (
            '{version = "*", python = "<3.10 || >=3.12"}',
            "einops ; (python_version < '3.10' or python_version >= '3.12')",
        ),
        ('{version = "*", python = 3.8}', "einops ; python_version == '3.8'"),
        ('{version = "1", extras = "all"}', "einops[all]==1"),
        ('{git = "git+https://example.org/x.git"}', "einops @ git+https://example.org/x.git"),
    ],
)
def test_fields_of_a_package_of_poetry_mean_what_they_mean_there(wanted, line):
    project = f"[tool.poetry.dependencies]\neinops = {wanted}\n"

    assert read("pyproject.toml", pyproject__toml=project).lines == (line,)


def test_locked_version_chooses_among_alternatives():
    project = '[tool.poetry.dependencies]\neinops = "^0.7 || ^1.0"\n'
    lock = '[[package]]\nname = "einops"\nversion = "0.7.3"\n'

    found = read("pyproject.toml", pyproject__toml=project, poetry__lock=lock)

    assert (found.lines, found.constraints) == (("einops<0.8,>=0.7",), ("einops==0.7.3",))


@pytest.mark.parametrize(
    "package",
    [
        'name = "a\\n-r /etc/passwd"\nversion = "1"',
        'name = "a b"\nversion = "1"',
        f'name = "a"\nversion = "{"9" * 5000}"',
    ],
)
def test_package_of_a_lock_that_is_none_is_passed_over(package):
    project = '[tool.poetry.dependencies]\neinops = "*"\n'

    assert (
        read("pyproject.toml", pyproject__toml=project, poetry__lock=f"[[package]]\n{package}\n").constraints
        == ()
    )


def test_address_of_an_index_with_a_line_end_is_refused():
    project = '[tool.poetry.dependencies]\neinops = "*"\n[[tool.poetry.source]]\nurl = "https://x/y\\n-r /etc/passwd"\n'

    with pytest.raises(Malformed, match="the address of an index"):
        read("pyproject.toml", pyproject__toml=project)


def test_project_of_poetry_2_takes_places_groups_and_sources_of_poetrys_own_table():
    project = (
        '[project]\nname = "x"\ndependencies = ["einops", "Fork"]\n'
        '[tool.poetry.dependencies]\nfork = {git = "https://example.org/fork.git"}\ntimm = {source = "lab"}\n'
        '[tool.poetry.group.train.dependencies]\ntqdm = "*"\n'
        '[[tool.poetry.source]]\nname = "lab"\nurl = "https://example.org/lab"\n'
    )

    assert read("pyproject.toml", pyproject__toml=project).lines == (
        "--extra-index-url https://example.org/lab",
        "fork @ git+https://example.org/fork.git",
        "tqdm",
        "einops",
    )


def test_lock_that_berths_own_packages_meet_changes_nothing():
    project = '[project]\nname = "x"\ndependencies = ["numpy", "torch"]\n'
    own = "".join(
        f'[[package]]\nname = "{name}"\nversion = "{metadata.version(name)}"\n' for name in ("numpy", "torch")
    )
    other = '[[package]]\nname = "torch"\nversion = "1.0"\n'

    def chosen(lock: str) -> object:
        files = {"pyproject.toml": project, "pdm.lock": lock}
        return choose(
            JobSpec.model_validate({"entrypoint": "train.py"}), files.get, {}, lambda _: None
        ).declared

    assert chosen(own) is None
    assert chosen(other) is not None


def test_pipfiles_markers_and_places_are_read_or_refused():
    found = read("Pipfile", Pipfile='[packages]\npywin32 = {version = "*", os_name = "== \'nt\'"}\n')

    assert found.lines == ("pywin32 ; os_name == 'nt'",)
    with pytest.raises(Malformed, match="'d' cannot be read"):
        read("Pipfile", Pipfile='[packages]\nd = {hg = "https://example.org/d"}\n')


@pytest.mark.parametrize(
    "code",
    [
        'R = ["a"]\nR.append("b")\nsetup(install_requires=R)',
        'R = ["a"]\nR += ["b"]\nsetup(install_requires=R)',
        'R = ["a"]\nif True:\n    R = ["b"]\nsetup(install_requires=R)',
        'v0 = [v1, v1]\nv1 = ["a"]\nsetup(install_requires=v0)',
    ],
)
def test_list_that_code_changes_is_not_taken_for_the_whole(code):
    found = read("setup.py", setup__py=code)

    assert found.is_empty
    assert "by code" in found.notes[0]


def test_setup_script_that_is_no_literal_list_costs_no_time():
    names = "".join(f"v{at} = v{at + 1} + v{at + 1}\n" for at in range(200))

    assert read("setup.py", setup__py=f"{names}setup(install_requires=v0)\n").is_empty
    assert read_file("setup.py", {"setup.py": "x = 1\n" * 100_000}.get) is None


@pytest.mark.parametrize("requires", ["<3.10", "3.6+"])
@pytest.mark.parametrize("name", ["setup.py", "setup.cfg"])
def test_project_of_setuptools_for_another_python_refuses_no_job(name, requires):
    text = {
        "setup.py": f"setup(install_requires=['einops'], python_requires='{requires}')",
        "setup.cfg": f"[options]\npython_requires = {requires}\ninstall_requires = einops\n",
    }[name]
    files = {name: text}

    found = choose(JobSpec.model_validate({"entrypoint": "train.py"}), files.get, {}, lambda _: None)

    assert found.declared is None
    assert f"asks for Python {requires}" in found.notes[0]


def test_list_that_was_not_sent_is_named_and_refuses_no_job():
    files = {"setup.cfg": "[options]\ninstall_requires = file: deps.txt\n"}

    found = choose(JobSpec.model_validate({"entrypoint": "train.py"}), files.get, {}, lambda _: None)

    assert found.declared is None
    assert "deps.txt" in found.notes[0]


def test_text_of_several_lines_is_a_list_to_setuptools():
    assert read("setup.py", setup__py='setup(install_requires="einops\\ntqdm")').lines == ("einops", "tqdm")


def test_header_of_a_started_setup_script_counts():
    script = '# /// script\n# dependencies = ["einops"]\n# ///\n'

    assert read("setup.py", setup__py=script).lines == ("einops",)
