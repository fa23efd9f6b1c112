"""What code declares about its packages, and what a submit makes of it."""

from collections.abc import Mapping
from importlib import metadata

import pytest

from orchestrator.exceptions import Malformed
from orchestrator.jobs.environments.declarations import read_file
from orchestrator.jobs.environments.declared import Declared
from orchestrator.jobs.environments.failures import cause_of
from orchestrator.jobs.environments.lock import read_lock
from orchestrator.jobs.environments.requests import Wanted, choose, reader
from orchestrator.spec.job_spec import JobSpec

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = ["transformers", "datasets<4"]\n# ///\nprint(1)\n'
LOCK = 'version = 1\nrequires-python = ">=3.11"\n'
PROJECT = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["einops"]\n'
PYLOCK = """
lock-version = "1.0"
[[packages]]
name = "tinylib"
version = "1.0"
wheels = [{url = "https://example.org/tinylib-1.0-py3-none-any.whl", hashes = {sha256 = "ab"}}]
[[packages]]
name = "onwindows"
version = "2"
marker = "sys_platform == 'win32'"
[[packages]]
name = "forked"
vcs = {type = "git", url = "https://example.org/forked", commit-id = "abc123"}
[[packages]]
name = "mine"
directory = {path = "."}
"""
CONDA = "name: x\ndependencies:\n  - python=3.11\n  - numpy=2\n  - pip\n  - pip:\n    - einops>=0.8\n"


def read(name: str, **files: str) -> Declared | None:
    texts = {each.replace("__", "."): text for each, text in files.items()}
    return read_file(name, texts.get)


def wanted(files: Mapping[str, str], **spec: object) -> Wanted:
    return choose(
        JobSpec.model_validate(spec), files.get, {"torch-2.8": "/opt/torch-2.8/bin/python"}, lambda _: None
    )


def lines(found: Wanted) -> tuple[str, ...] | None:
    return found.declared.lines if found.declared else None


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_header_of_a_script_names_its_packages(end):
    found = read("train.py", train__py=HEADER.replace("\n", end))

    assert found is not None
    assert found.lines == ("transformers", "datasets<4")
    assert found.requires_python == ">=3.11"


@pytest.mark.parametrize(
    "script",
    ["print(1)\n", "# a comment\n# /// other\n# x = 1\n# ///\n", "#! /usr/bin/python\n'''# script'''\n"],
)
def test_script_without_a_header_declares_nothing(script):
    assert read("train.py", train__py=script) is None


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            "import os\n# /// script\n# dependencies = []\nprint(1)\n",
            "train.py, line 2: the header '# /// script' is not closed",
        ),
        (
            "# /// script\n# dependencies = [transformers]\n# ///\n",
            "train.py cannot be read as TOML: Invalid value (at line 2",
        ),
        ("# /// script\n# dependencies = 'einops'\n# ///\n", "dependencies must be a list of texts"),
        ("# /// script\n# dependencies = ['a b']\n# ///\n", "'a b' is not a requirement"),
        ("# /// script\n# dependencies = []\n# ///\n# /// script\n# ///\n", "has 2 headers"),
        (
            "# /// script\n# requires-python = 'new'\n# dependencies = ['x']\n# ///\n",
            "requires-python is 'new'",
        ),
        (
            "# /// script\n# requires-python = '>=3.99'\n# dependencies = ['x']\n# ///\n",
            "asks for Python >=3.99",
        ),
    ],
)
def test_broken_header_is_refused_with_its_place_and_what_to_do(script, words):
    with pytest.raises(Malformed) as refusal:
        wanted({"train.py": script})

    assert words in str(refusal.value)
    assert list(refusal.value.fields) == ["environment"]


def test_requirements_are_read_as_pip_reads_them():
    found = read(
        "requirements.txt",
        requirements__txt=(
            "# ours\ntorch>=2  # any\n-r more.txt\n-c pins.txt\n--extra-index-url https://example.org/simple\n"
            "-e .\ndatasets \\\n  <4 --hash=sha256:ab\ngit+https://example.org/x.git@main\n--pre\nrich; python_version<'3'\n"
        ),
        more__txt="einops\n",
        pins__txt="numpy<3\n",
    )

    assert found is not None
    assert found.lines == (
        "torch>=2",
        "einops",
        "--extra-index-url https://example.org/simple",
        "datasets    <4 --hash=sha256:ab",
        "git+https://example.org/x.git@main",
        "rich; python_version<'3'",
    )
    assert (found.constraints, found.prereleases) == (("numpy<3",), True)
    assert found.notes == (
        "requirements.txt, line 6: -e . was left out; the code itself lies in the job's working folder.",
    )


def test_packages_that_conda_built_come_from_the_index():
    found = read(
        "requirements.txt",
        requirements__txt=(
            "numpy @ file:///croot/numpy_and_numpy_base_1682520569166/work\n"
            "torch[opt] @ file:///home/conda/feedstock_root/build_artifacts/torch/work/"
            "torch-2.1.0%2Bcu118-cp311-cp311-linux_x86_64.whl#sha256=ab\n"
            "rich@file:///C:/b/abs_1a/croot/rich/work ; python_version<'3' --hash=sha256:ab\neinops==0.8\n"
        ),
    )

    assert found is not None
    assert found.lines == ("numpy", "torch[opt]==2.1.0", "rich ; python_version<'3'", "einops==0.8")
    (note,) = found.notes
    assert note.startswith(
        "requirements.txt names files that conda made on another machine (numpy, torch[opt], rich)"
    )
    assert "pip list --format=freeze" in note


@pytest.mark.parametrize(
    "path", ["/home/ada/mylab-utils", "/home/ada/mylab_utils-1.0-py3-none-any.whl#sha256=ab"]
)
def test_a_package_of_ones_own_is_not_looked_for_in_the_index(path):
    found = read("requirements.txt", requirements__txt=f"mylab-utils @ file://{path}\neinops\n")

    assert found is not None
    assert found.lines == ("einops",)
    (note,) = found.notes
    assert note.startswith("requirements.txt, line 1: mylab-utils @ file:///")
    assert "was left out" in note


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_lists_of_an_upload_are_read_as_windows_writes_them(home, encoding):
    folder = home.bundles / ("ab" * 32)
    folder.mkdir(parents=True)
    (folder / "requirements.txt").write_text("einops\n", encoding=encoding)

    found = read_file("requirements.txt", reader(folder.name))

    assert found is not None
    assert found.lines == ("einops",)


def test_a_project_with_optional_packages_alone_says_that_none_is_installed():
    project = '[project]\nname = "mine"\n[project.optional-dependencies]\ngpu = ["einops"]\ndev = ["ruff"]\n'

    found = wanted({"pyproject.toml": project}, source={"text": "print(1)\n"})

    assert found.declared is None
    assert found.notes == (
        "pyproject.toml has optional packages alone (gpu), and none of them is installed. List what the job needs below "
        "dependencies, or add it with --with PACKAGE.",
    )
    assert read("pyproject.toml", pyproject__toml=project.replace("gpu", "docs")) is None
    elsewhere = project.replace("[project.opt", 'dynamic = ["dependencies"]\n[project.opt')
    assert read("pyproject.toml", pyproject__toml=elsewhere) is None
    added = wanted({"pyproject.toml": project}, source={"text": "print(1)\n"}, with_packages=["einops"])
    assert (lines(added), added.spec.environment, added.notes) == (("einops",), None, found.notes)
    with pytest.raises(Malformed, match="declares no packages"):
        wanted({"pyproject.toml": project}, source={"text": "print(1)\n"}, environment="pyproject.toml")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("einops\ntransformers=>4\n", "requirements.txt, line 2: 'transformers=>4' is not a requirement"),
        ("-r gone.txt\n", "line 1 names 'gone.txt', which was not sent with the code"),
        ("-r requirements.txt\n", "do they form a circle?"),
        ("--index-url file:///etc\n", "is not the address of an index"),
        ("--python-of-mine 3\n", "does not know the option '--python-of-mine'"),
    ],
)
def test_broken_requirements_are_refused_with_their_line(text, words):
    with pytest.raises(Malformed, match=r"requirements\.txt") as refusal:
        read("requirements.txt", requirements__txt=text)

    assert words in str(refusal.value)


def test_lock_of_uv_comes_with_its_project():
    found = read("uv.lock", uv__lock=LOCK, pyproject__toml=PROJECT)

    assert found is not None
    assert found.locked
    assert found.lock == {"uv.lock": LOCK, "pyproject.toml": PROJECT}
    with pytest.raises(Malformed, match=r"needs its pyproject.toml"):
        read("uv.lock", uv__lock=LOCK)


def test_pylock_names_versions_hashes_and_commits():
    found = read("pylock.toml", pylock__toml=PYLOCK)

    assert found is not None
    assert found.locked
    assert [each.line for each in read_lock("\n".join(found.lines))] == [
        "forked @ git+https://example.org/forked@abc123",
        "tinylib==1.0 --hash=sha256:ab",
    ]


def test_pip_part_of_a_conda_environment_is_taken_and_the_rest_is_named():
    found = read("environment.yml", environment__yml=CONDA)

    assert found is not None
    assert found.lines == ("einops>=0.8",)
    assert found.notes == (
        "environment.yml: Berth installs what stands below pip:, not what conda would (numpy=2). List these below pip: "
        "where they have a wheel; else make the environment with conda or micromamba and have an administrator "
        "register its Python, to which --environment NAME --with PACKAGE adds more.",
    )


@pytest.mark.parametrize("text", ["a: [", "- 1\n", "dependencies: 3\n"])
def test_broken_conda_environment_is_refused(text):
    with pytest.raises(Malformed, match=r"environment\.yml"):
        read("environment.yml", environment__yml=text)


ALL = {
    "train.py": HEADER,
    "uv.lock": LOCK,
    "pylock.toml": PYLOCK,
    "requirements.txt": "from-requirements\n",
    "environment.yml": CONDA,
    "pyproject.toml": PROJECT,
}


def test_pip_part_of_a_conda_environment_may_name_lists_and_early_versions():
    text = "dependencies:\n  - pip:\n    - --pre\n    - -r requirements.txt\n    - -c limits.txt\n"
    files = {"environment.yml": text, "requirements.txt": "einops\n", "limits.txt": "numpy<3\n"}

    found = read_file("environment.yml", files.get)

    assert found is not None
    assert (found.origin, found.lines, found.constraints) == ("environment.yml", ("einops",), ("numpy<3",))
    assert found.prereleases


@pytest.mark.parametrize(
    "pip", ["numpy", "5", "{numpy: 2}", "[numpy: 2]", "[null]", "[2]", "[[numpy]]", "\n    -\n    - einops"]
)
def test_pip_part_that_is_no_list_of_texts_is_refused_and_not_read_by_letters(pip):
    with pytest.raises(Malformed, match="list the packages below pip:, each as a text in a line"):
        read("environment.yml", environment__yml=f"dependencies:\n  - pip: {pip}\n")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: 2024-99-99\n", "environment.yml is not YAML"),
        (f"name: {'9' * 5000}\n", "environment.yml is not YAML"),
        ("[" * 20_000, "environment.yml is not YAML"),
        ("# " + "x" * (256 << 10), "has more than 262,144 characters"),
    ],
    ids=["no date", "a long number", "deep", "large"],
)
def test_conda_environment_that_yaml_stumbles_over_is_refused(text, words):
    with pytest.raises(Malformed, match=words):
        read("environment.yml", environment__yml=text)


def test_lists_that_name_one_another_many_times_are_read_once():
    files = {f"{number}.txt": f"-r {number + 1}.txt\n" * 40 for number in range(9)} | {"9.txt": "einops\n"}

    found = read_file("0.txt", files.get)

    assert found is not None
    assert found.lines == ("einops",)


@pytest.mark.parametrize(
    "files",
    [
        'wheels = "x"',
        "wheels = 3",
        'sdist = "x"',
        'wheels = [{hashes = ["ab"]}]',
        "wheels = [{hashes = {sha256 = 5}}]",
        'wheels = [{hashes = {sha256 = "ab\\n--find-links /srv"}}]',
    ],
)
def test_pylock_whose_hashes_are_none_is_refused(files):
    text = f'[[packages]]\nname = "tinylib"\nversion = "1"\n{files}\n'

    with pytest.raises(Malformed, match=r"pylock\.toml: the hashes of 'tinylib' cannot be read"):
        read("pylock.toml", pylock__toml=text)


def test_toml_that_begins_with_a_mark_of_its_encoding_is_read():
    project = '\ufeff[project]\nname = "x"\ndependencies = ["einops"]\n'

    found = read("pyproject.toml", pyproject__toml=project)
    locked = read("uv.lock", uv__lock="\ufeffversion = 1\n", pyproject__toml=project)

    assert found is not None
    assert found.lines == ("einops",)
    assert locked is not None
    assert locked.lock == {"uv.lock": "version = 1\n", "pyproject.toml": project[1:]}


@pytest.mark.parametrize("first", range(len(ALL)))
def test_first_declaration_in_the_order_counts(first):
    left = {name: text for number, (name, text) in enumerate(ALL.items()) if number >= first}
    if "uv.lock" in left:
        left["pyproject.toml"] = PROJECT

    assert wanted(left).spec.environment == next(iter(left))


def test_job_that_names_nothing_and_declares_nothing_stays_as_it_is():
    spec = JobSpec()

    assert wanted({"train.py": "print(1)\n", "pyproject.toml": "[tool.ruff]\n"}) == Wanted(spec)


def test_declaration_that_berths_own_packages_meet_changes_nothing():
    files = {"train.py": "print(1)\n", "requirements.txt": f"torch\nnumpy=={metadata.version('numpy')}\n"}

    assert wanted(files) == Wanted(JobSpec())
    assert lines(wanted(files, environment="requirements.txt")) is not None


@pytest.mark.parametrize(
    "starts",
    [
        {"command": ["accelerate", "launch", "train.py"], "workdir": "src"},
        {"module": "pkg.train"},
        {"entrypoint": "src/train.py"},
    ],
)
def test_header_counts_however_its_script_is_started(starts):
    files = {"src/train.py": HEADER, "pkg/train.py": HEADER}

    assert lines(wanted(files, **starts)) == ("transformers", "datasets<4")


def test_found_list_is_told_with_the_way_out():
    found = wanted({"train.py": "print(1)\n", "requirements.txt": "einops\n"})

    assert found.notes == (
        "The packages come from requirements.txt; --environment berth runs the job with Berth's own.",
    )
    assert wanted({"requirements.txt": "einops\n"}, environment="berth").declared is None


def test_packages_of_options_join_those_that_the_code_declares():
    assert lines(wanted({}, with_packages=["einops"])) == ("einops",)
    assert lines(wanted({"train.py": HEADER}, with_packages=["einops"])) == (
        "transformers",
        "datasets<4",
        "einops",
    )
    assert lines(wanted({"train.py": HEADER}, with_packages=["einops"], environment="berth")) == ("einops",)


def test_files_that_are_sent_beside_the_code_count_like_files_in_it():
    sent = {"files": {"requirements.txt": "-r base.txt\n", "base.txt": "einops\n"}}

    named = wanted({}, environment=sent)
    found = wanted({}, environment={**sent, "found": True})
    unneeded = wanted({}, environment={"files": {"requirements.txt": "torch\n"}, "found": True})

    assert lines(named) == lines(found) == ("einops",)
    assert named.spec.environment == found.spec.environment == "requirements.txt"
    assert unneeded == Wanted(JobSpec())


def test_lists_that_are_sent_from_folders_refer_to_each_other_from_where_they_lie():
    files = {
        "requirements.txt": "-r requirements/gpu.txt\n",
        "requirements/gpu.txt": "-r base.txt\n-r ../more.txt\n",
        "requirements/base.txt": "einops\n",
        "more.txt": "rich\n",
    }

    assert lines(wanted({}, environment={"files": files, "found": True})) == ("einops", "rich")
    assert lines(wanted(files)) == ("einops", "rich")


def test_registered_interpreter_is_an_environment_by_its_name():
    assert wanted({}, environment="torch-2.8").spec.python == "torch-2.8"
    assert wanted({"requirements.txt": "einops\n"}, python="torch-2.8").declared is None
    on_top = wanted({}, environment="torch-2.8", with_packages=["einops"])
    assert (on_top.spec.python, on_top.spec.environment) == (None, "torch-2.8")
    assert on_top.declared == Declared(
        "torch-2.8 and --with", lines=("einops",), interpreter="/opt/torch-2.8/bin/python"
    )


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        (
            {"environment": "gone.txt"},
            "There is no file 'gone.txt' in the code, and no environment of that name",
        ),
        ({"environment": "train.py"}, "train.py declares no packages"),
        ({"environment": "notes.md"}, "'notes.md' is no list of packages"),
        (
            {"python": "torch-2.8", "with_packages": ["einops"]},
            "to add packages to it, name it as the environment",
        ),
    ],
)
def test_environment_that_cannot_be_is_refused(spec, words):
    with pytest.raises(Malformed) as refusal:
        wanted({"train.py": "print(1)\n", "notes.md": "# Notes\n"}, **spec)

    assert words in str(refusal.value)


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "error: Request failed after 3 retries in 8.0s\n  cause: tcp connect error\n  cause: Connection refused",
            "network",
        ),
        ("error: Failed to fetch\n  cause: client error (Connect)\n  cause: dns error", "network"),
        ("error: No solution found when resolving dependencies\n  cause: Because a depends on b", "conflict"),
        ("error: Because nosuch was not found in the package registry", "unknown"),
        (
            "error: Failed to build `flash-attn==2`\n  cause: Call to `setuptools.build_meta` failed\n  CUDA_HOME",
            "compiler",
        ),
        ("error: Failed to build `x==1`\n  cause: The build backend returned an error", "build"),
        ("error: failed to write\n  cause: No space left on device (os error 28)", "disk"),
        ("something else", "other"),
    ],
)
def test_cause_is_read_from_the_words_of_uv(output, cause):
    assert cause_of(output).cause == cause
