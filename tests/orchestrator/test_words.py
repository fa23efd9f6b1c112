import pytest

from orchestrator import words


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        (["GPU 3"], "GPU 3"),
        (["GPU 0", "GPU 1", "GPU 3"], "GPU 0, 1, 3"),
        (["simulated GPU 0", "CPU slot 1", "CPU slot 2"], "simulated GPU 0, CPU slot 1, 2"),
        ([], ""),
    ],
)
def test_devices_are_listed_with_their_noun_said_once(labels, said):
    assert words.listed(labels) == said
