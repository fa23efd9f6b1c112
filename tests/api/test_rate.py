"""One person's flood of requests is slowed down, and nobody else's."""

import pytest

from orchestrator.api import rate
from orchestrator.exceptions import TooMany


def test_a_bucket_empties_and_fills_for_each_person_alone():
    now = 100.0
    counted = rate.Rate(clock=lambda: now)
    for _ in range(int(rate.BURST)):
        counted.take(1)
    with pytest.raises(TooMany) as error:
        counted.take(1)
    assert error.value.retry_after_s == 1.0
    counted.take(2)

    now += 0.01

    for _ in range(int(rate.A_SECOND * 0.01)):
        counted.take(1)
    with pytest.raises(TooMany):
        counted.take(1)


def test_t23_a_flood_over_rest_is_429_with_a_time_to_wait(monkeypatch, client_of, ada, bob):
    monkeypatch.setattr(rate, "BURST", 3.0)
    monkeypatch.setattr(rate, "A_SECOND", 0.001)
    monkeypatch.setattr("orchestrator.api.auth.rate.requests", rate.Rate())
    client = client_of(ada)

    answers = [client.send("GET", "/jobs") for _ in range(4)]

    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    assert answers[3]["Retry-After"] == "1"
    assert client_of(bob).send("GET", "/jobs").status_code == 200
