"""Five sites and their server train as jobs; one site vanishes, and the others' model is as good as ever."""

import pytest

from tests.system.server import Server

pytestmark = pytest.mark.slow

SCRIPT = """
import time

import torch
from torch import nn
from torch.utils.data import TensorDataset

def build_model():
    torch.manual_seed(1)
    return nn.Linear(4, 3)

def rows(seed):
    rows = torch.randn(120, 4, generator=torch.Generator().manual_seed(seed))
    return rows, rows[:, :3].argmax(1)

class Slow:
    def __init__(self, number):
        self.batches = [pair for pair in zip(*(each.split(20) for each in rows(number)))]

    def __iter__(self):
        time.sleep(0.2)
        return iter(self.batches)

def site_data(number, sites):
    return Slow(number)

def evaluation_data():
    return TensorDataset(*rows(99))
"""
ASKED = {
    "name": "clinics",
    "model": "train.py:build_model",
    "evaluate_on": "train.py:evaluation_data",
    "sites": 5,
    "rounds": 12,
    "learning_rate": 0.2,
    "clip": 100.0,
    "noise": 0.001,
    "result": "clinics",
    "job": {"source": {"text": SCRIPT}},
}


@pytest.mark.timeout(600)
def test_sites_that_are_jobs_train_a_model_and_one_that_is_cancelled_is_left_out(make_server):
    server: Server = make_server("cpu:6").start()
    began = server.post("/federated", ASKED)
    path = f"/federated/{began['id']}"

    server.wait_until(lambda: len(server.get(path)["report"]["rounds"]) >= 2)
    server.post(f"/jobs/{began['sites'][3]['job']}/cancel", {})
    server.wait_until(lambda: server.get(path)["state"] != "running")

    told = server.get(path)
    assert (told["state"], told["result"]) == ("ended", "root/clinics@1"), server.log(began["server"])
    rounds = told["report"]["rounds"]
    assert [each["round"] for each in rounds] == list(range(1, 13))
    assert (rounds[0]["sites"], rounds[-1]["sites"]) == (5, 4)
    assert rounds[-1]["metrics"]["accuracy"] > 0.85
    spent = [each["epsilon"] for each in rounds]
    assert spent == sorted(spent)
    assert told["sites"][3]["left_out"].endswith("its job has been cancelled")
    server.wait_until(
        lambda: {each["state"] for each in server.get(path)["sites"]} == {"succeeded", "cancelled"}
    )
    server.wait_until(lambda: not list((server.home / "federations").glob("*")))
    assert server.get("/models/clinics")["step"] == 12
