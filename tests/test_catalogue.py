import pytest

from tests.catalogue import NUMBERS, THREATS, WITHOUT_TEST, codes_in, named_tests

# What must hold since the first version; each has a test that names its code.
PROMISED = (
    [f"B{n:02d}" for n in (*range(1, 9), *range(17, 21), *range(28, 38), 40, 41, 45, 47, *range(52, 57))]
    + [f"B{n:02d}" for n in range(61, 66)]
    + [f"F{n:02d}" for n in (*range(1, 14), 16, 17, 19, 25, 33, 38, 54, 65, 79, 83, 87, 88)]
)


@pytest.mark.parametrize("number", PROMISED)
def test_every_promised_fault_and_bad_input_has_a_test_that_names_it(number):
    assert named_tests().get(number)


def test_every_number_has_a_test_or_a_reason_and_not_both():
    named = named_tests().keys() - set(THREATS)  # a code that does not exist is in neither list
    assert sorted({*named, *WITHOUT_TEST}) == NUMBERS
    assert not named & WITHOUT_TEST.keys()


@pytest.mark.parametrize(
    ("source", "codes"),
    [
        (
            "@pytest.mark.code('F14', 'B03')\ndef test_one(): ...",
            [("F14", "x::test_one"), ("B03", "x::test_one")],
        ),
        ("@pytest.mark.code('F14')\n@pytest.mark.slow\nasync def test_one(): ...", [("F14", "x::test_one")]),
        (
            "@pytest.mark.code('F14')\nclass TestA:\n  def test_one(self): ...",
            [("F14", "x::TestA::test_one")],
        ),
        ("pytestmark = [pytest.mark.code('F14')]\ndef test_one(): ...", [("F14", "x::test_one")]),
        ("def test_f14_b03_one(): ...", [("F14", "x::test_f14_b03_one"), ("B03", "x::test_f14_b03_one")]),
        ("CASES = [('f17: killed', 1)]", [("F17", "x (f17: killed)")]),
        (
            "@pytest.mark.parametrize('a', [pytest.param(1, marks=pytest.mark.code('F14'))])\ndef test_one(a): ...",
            [("F14", "x::test_one")],
        ),
        ("@pytest.mark.code('F14')\ndef helper(): ...\ndef test_one(): ...", []),
    ],
    ids=["several", "beside others", "class", "file", "name", "case", "parameter", "no test"],
)
def test_codes_are_read_from_marks_names_and_cases(source, codes):
    assert list(codes_in(source, "x")) == codes
