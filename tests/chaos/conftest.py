"""The state folder that every campaign of a session begins with."""

from pathlib import Path

import pytest

from tests.system.server import prepare_home


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A state folder as a first start leaves it, to copy, and an admin's token for it."""
    home = tmp_path_factory.mktemp("prepared") / "berth"
    return home, prepare_home(home)
