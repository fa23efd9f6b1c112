"""The pause of the collector must end with what it was made for."""

import gc

import pytest

from orchestrator.scheduler.core.garbage import uncollected


def test_the_collector_pauses_and_goes_on_whatever_happens():
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            pass
        assert not gc.isenabled()  # the outer one has not ended
    assert gc.isenabled()

    with pytest.raises(ZeroDivisionError), uncollected():
        raise ZeroDivisionError
    assert gc.isenabled()
