"""Whole attempts under a real supervisor."""

from collections.abc import Callable

from tests.supervisor.conftest import Attempt

MakeAttempt = Callable[..., Attempt]


def test_a_script_of_one_rank_runs_and_is_ok(make_attempt: MakeAttempt, level: int) -> None:
    attempt = make_attempt(
        "import os\nprint('hello', os.environ['RANK'], os.environ['WORLD_SIZE'])", level=level
    )

    record = attempt.run()

    assert record["kind"] == "ok", attempt.everything()
    assert attempt.log() == "hello 0 1\n"
    assert record["ranks"] == [{"rank": 0, "code": 0, "signal": None, "finished": True}]
