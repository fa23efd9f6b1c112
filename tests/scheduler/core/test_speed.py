"""The garbage collector is paused for a pass, and only for it."""

import gc

import pytest

from orchestrator.scheduler.core.speed import without_garbage_collection


def test_collector_pauses_inside_and_resumes_after_nested_blocks_and_errors():
    with without_garbage_collection():
        assert not gc.isenabled()
        with without_garbage_collection():
            pass
        assert not gc.isenabled()  # the outer one has not ended
    assert gc.isenabled()

    with pytest.raises(ZeroDivisionError), without_garbage_collection():
        raise ZeroDivisionError
    assert gc.isenabled()
