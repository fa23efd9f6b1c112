"""Nothing of ours asks for more than Python 3.11.0, whose patch releases brought new names, too."""

import ast
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# What 3.11.1 and later added ("Changed in version 3.11.x" in the library reference). Lint and types know only 3.11.
LATER_NAMES = {
    "data_filter": "3.11.4",
    "tar_filter": "3.11.4",
    "fully_trusted_filter": "3.11.4",
    "extraction_filter": "3.11.4",
    "FilterError": "3.11.4",
    "SetReparseDeferralEnabled": "3.11.9",
    "GetReparseDeferralEnabled": "3.11.9",
    "verify_generated_headers": "3.11.10",
    "ALLOW_MISSING": "3.11.13",
    "LinkFallbackError": "3.11.13",
}
LATER_ARGUMENTS = {
    ("extractall", "filter"): "3.11.4",
    ("extract", "filter"): "3.11.4",
    ("unpack_archive", "filter"): "3.11.4",
    ("getaddresses", "strict"): "3.11.10",
    ("parseaddr", "strict"): "3.11.10",
}


# What a script in an image runs behind, on Python 3.8 or newer; sitecustomize has no future import.
IN_IMAGES = ("entry.py", "rank/*.py")
IMAGES_HAVE = (3, 8)
AFTER_3_8 = {"removeprefix", "removesuffix", "waitstatus_to_exitcode", "pairwise", "orig_argv", "pidfd_open"}


def later_uses(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute | ast.Name):
            name = node.attr if isinstance(node, ast.Attribute) else node.id
            if name in LATER_NAMES:
                yield f"line {node.lineno}: {name} came with {LATER_NAMES[name]}"
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            for argument in node.keywords:
                if release := LATER_ARGUMENTS.get((called, argument.arg or "")):
                    yield f"line {node.lineno}: {called}({argument.arg}=) came with {release}"


def test_no_file_uses_what_a_later_patch_release_brought():
    listed = subprocess.run(
        ["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split()
    files = [ROOT / name for name in listed] or sorted(
        path
        for folder in ("berth", "orchestrator", "dashboard", "training")
        for path in (ROOT / folder).rglob("*.py")
    )

    assert not [f"{path}: {use}" for path in files for use in later_uses(path.read_text())]


@pytest.mark.parametrize(
    "source",
    [
        "archive.extractall(folder, filter='data')",
        "import tarfile\ntarfile.data_filter",
        "shutil.unpack_archive(a, b, filter='data')",
    ],
)
def test_a_later_api_is_seen(source):
    assert list(later_uses(source))


def test_a_rank_starts_on_the_oldest_python_of_an_image():
    files = [path for pattern in IN_IMAGES for path in sorted((ROOT / "training").glob(pattern))]
    assert len(files) > len(IN_IMAGES)

    for path in files:
        tree = ast.parse(path.read_text(), path.name, feature_version=IMAGES_HAVE)
        used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        arguments = {
            word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords
        }
        assert not used & AFTER_3_8, path
        assert "strict" not in arguments, path  # of zip
        assert "from __future__ import annotations" in path.read_text(), path
