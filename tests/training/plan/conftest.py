from collections.abc import Iterator

import pytest

from training.plan.rates import CACHE_VARIABLE


@pytest.fixture(autouse=True, scope="session")
def _rates_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Rates measured beside other tests must not be what trainings of this user count on."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("rates") / "rates.json"))
        yield
