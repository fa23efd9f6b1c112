"""Two trainers of other packages, from an installation to their end; ``make trainers`` runs the others."""

import dataclasses

import pytest

from tests.conftest import lacking
from tests.system.server import Server
from tests.trainers import course, page
from tests.trainers.rows import ROWS, Row

pytestmark = [pytest.mark.slow, pytest.mark.timeout(course.INSTALL_S)]

NAMES = ("transformers5", "lightning")


@pytest.fixture(scope="module")
def rows(server: Server) -> dict[str, Row]:
    """Both in one environment, with the versions that the table tells: new releases are for ``make trainers``."""
    tried = {each["trainer"]: each["version"] for each in page.read() if "live" in each}
    chosen = {row.name: row for row in ROWS if row.name in NAMES}
    packages = (
        *(f"{row.package}=={tried[name]}" for name, row in chosen.items()),
        f"accelerate=={tried['accelerate']}",
    )
    _install(server, packages)
    return {name: dataclasses.replace(row, packages=packages) for name, row in chosen.items()}


def _install(server: Server, packages: tuple[str, ...]) -> None:
    job = server.submit("print('there')", with_packages=list(packages))
    ended = server.wait_for_end(job, limit_s=course.INSTALL_S)
    if ended["state"] != "succeeded":
        lacking(f"a package index with {', '.join(packages)}; {ended['reason']}")


@pytest.mark.parametrize("name", NAMES)
def test_released_trainer_is_live_and_resumes_by_itself(
    server: Server, rows: dict[str, Row], name: str
) -> None:
    seen = course.resume(server, rows[name], ranks=1)

    assert [what for what in rows[name].told if not seen["live"][what]] == []
    assert seen["live"]["end"]
