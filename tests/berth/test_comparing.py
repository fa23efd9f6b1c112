"""What `berth compare` takes for a difference."""

import pytest

from berth.cli.comparing import _numbers

GIB = 2**30


@pytest.mark.parametrize(
    ("values", "unit", "texts", "differs"),
    [
        ([0.2 * GIB, 0.2 * GIB - 4096], "size", ["0.2 GiB", "0.2 GiB"], False),
        ([0.2 * GIB, 0.22 * GIB], "size", ["0.2 GiB", "0.2 GiB (+10%)"], True),
        ([100.0, 25.0], "value", ["100", "25 (-75%)"], True),
        ([None, 2.0], "value", ["", "2"], True),
        ([0.0, 2.0], "value", ["0", "2"], True),
    ],
)
def test_a_change_that_rounds_to_nothing_is_no_difference(values, unit, texts, differs):
    row = _numbers("peak", values, unit)

    assert (row.texts, row.differs) == (texts, differs)
