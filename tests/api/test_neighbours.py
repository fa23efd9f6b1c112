"""What REST says of jobs that share a device."""

import pytest


def test_job_answers_with_its_neighbours_and_what_they_cost_it(neighbours, client_of, ada):
    vit, ner = neighbours

    answer = client_of(ada).get(f"/api/v1/jobs/{vit.pk}").json()

    assert answer["beside"] == [
        {
            "device": "simulated GPU 0",
            "jobs": [{"id": str(ner.pk), "name": "ner", "owner": "ada"}],
            "slowdown": pytest.approx(1.18, abs=0.01),
            "measured": True,
            "sentence": "vit-s is 18 % slower beside ner.",
        }
    ]


@pytest.mark.parametrize("limit", [2.0, 1.0])
def test_operator_sets_how_much_neighbours_may_slow_each_other(make_pool, client_of, root, limit):
    make_pool()

    assert client_of(root).get("/api/v1/pools/default").json()["slowdown_limit"] == 1.3
    answer = client_of(root).send("PATCH", "/pools/default", {"slowdown_limit": limit})

    assert answer.json()["slowdown_limit"] == limit


@pytest.mark.parametrize("limit", [0.5, -1, 1000, "much", "NaN"])
def test_limit_that_makes_no_sense_is_refused(make_pool, client_of, root, limit):
    make_pool()

    answer = client_of(root).send("PATCH", "/pools/default", {"slowdown_limit": limit})

    assert answer.status_code == 400
    assert "slowdown_limit" in answer.content.decode()
