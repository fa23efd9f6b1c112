"""What is checked before a release, on a small tree; the tools themselves need the network."""

from pathlib import Path

import pytest

from berth import __version__
from deploy import release

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "ci.yml").write_text('python: ["3.11", "3.12"]\n')
    (tmp_path / "CHANGELOG.md").write_text(f"# Changes\n\n## Unreleased\n\n## {__version__} (2026-11-23)\n")
    write_project(tmp_path, __version__, "3.11", "3.12")
    return tmp_path


def write_project(tree: Path, version: str, *pythons: str) -> None:
    named = ", ".join(f'"Programming Language :: Python :: {each}"' for each in pythons)
    (tree / "pyproject.toml").write_text(f'[project]\nversion = "{version}"\nclassifiers = [{named}]\n')


def test_a_tree_that_agrees_with_itself_has_no_problems(tree):
    assert list(release.problems(tree)) == []


def test_a_version_in_one_place_only_is_told(tree):
    write_project(tree, "9.9.9", "3.11")

    assert list(release.problems(tree)) == [
        f"pyproject.toml says version 9.9.9, berth/__init__.py {__version__}."
    ]


def test_changes_without_a_section_for_the_version_are_told(tree):
    (tree / "CHANGELOG.md").write_text("# Changes\n\n## Unreleased\n")

    assert "rename Unreleased" in next(release.problems(tree))


def test_a_python_that_is_promised_and_not_tried_is_told(tree):
    write_project(tree, __version__, "3.11", "3.12", "3.13")

    assert next(release.problems(tree)).startswith("The metadata promise Python 3.13, which")


def test_an_end_of_the_range_of_torch_that_is_not_tried_is_told(tree):
    project, workflow = tree / "pyproject.toml", tree / ".github" / "workflows" / "ci.yml"
    project.write_text(
        project.read_text() + '[project.optional-dependencies]\ntraining = ["torch>=2.10,<2.14"]\n'
    )
    workflow.write_text(workflow.read_text() + 'torch: ["2.10"]\n')

    assert list(release.problems(tree)) == [
        "The extra training allows torch 2.13, which .github/workflows/ci.yml does not try."
    ]


def test_this_tree_promises_the_pythons_that_the_workflow_tries_and_one_version():
    told = [problem for problem in release.problems(ROOT) if "CHANGELOG" not in problem]

    assert told == []


def test_bill_and_audit_read_the_locked_packages():
    assert "requirements/base.txt" in release.sbom_command(Path("bill.json"))
    assert all((ROOT / "requirements" / f"{lock}.txt").is_file() for lock in release.LOCKS)
    assert "--strict" in release.audit_command("base")  # what cannot be looked up is no pass
