import pytest

from tests.catalogue import NUMBERS, WITHOUT_TEST, named_tests

# What must hold since the first version; each has a test that carries its number.
PROMISED = (
    [f"B{n:02d}" for n in (*range(1, 9), *range(17, 21), *range(28, 38), 40, 41, 45, 47, *range(52, 57))]
    + [f"B{n:02d}" for n in range(61, 66)]
    + [f"F{n:02d}" for n in (*range(1, 14), 16, 17, 19, 25, 33, 38, 54, 65, 79, 83, 87, 88)]
)


@pytest.mark.parametrize("number", PROMISED)
def test_every_promised_fault_and_bad_input_has_a_test_that_names_it(number):
    assert named_tests().get(number)


def test_every_number_has_a_test_or_a_reason_and_not_both():
    assert sorted({*named_tests(), *WITHOUT_TEST}) == NUMBERS
    assert not named_tests().keys() & WITHOUT_TEST
