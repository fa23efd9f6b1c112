"""What pyproject.toml cannot say: folders of this repository that lie inside a package once they are installed."""

from pathlib import Path

from setuptools import find_packages, setup

PACKAGES = find_packages(include=["berth*", "orchestrator*", "training*", "dashboard*"])
# Where orchestrator/server/settings.py looks for them where there is no clone.
INSIDE = {
    "dashboard.static": "static",
    "dashboard.templates": "templates",
    "orchestrator.examples": "examples",
    "orchestrator.locale": "orchestrator/locale",
    "training.child": "training/child",  # no package: a rank has it on its path, for sitecustomize
}
FOLDERS = {
    ".".join((package, *path.relative_to(root).parts)): str(path)
    for package, root in INSIDE.items()
    for path in (Path(root), *Path(root).rglob("*"))
    if path.is_dir() and path.name != "__pycache__"
}
TYPED = ("berth", "training")  # what other people's programs import

setup(
    packages=[*PACKAGES, *FOLDERS],
    package_dir=FOLDERS,
    package_data={package: ["*"] for package in FOLDERS} | {package: ["py.typed"] for package in TYPED},
    exclude_package_data={"orchestrator.locale.de": ["*.po"]},  # nobody reads them where the server runs
    include_package_data=False,  # only what is named here, whatever a clone holds besides
)
