"""The pause of the collector must end with what it was made for."""

import gc

import pytest

from orchestrator.scheduler.core.speed import without_garbage_collection


def test_the_collector_pauses_and_goes_on_whatever_happens():
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()  # the outer one has not ended
    assert gc.isenabled()

    with pytest.raises(ZeroDivisionError), without_garbage_collection():
        raise ZeroDivisionError
    assert gc.isenabled()
