"""A checkpoint becomes a model, the model int8 by a job of its own, and that is a model again."""

import json

import pytest

from tests.system.server import Server
from tests.system.test_services import ask

pytestmark = pytest.mark.slow

SCRIPT = """
import os
import torch
from torch import nn

def build_model():
    return nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 4))

def evaluation_data():
    rows = torch.randn(40, 64)
    return rows, rows[:, :4].argmax(1)

if __name__ == "__main__":
    torch.save({"model": build_model().state_dict()}, os.environ["BERTH_CHECKPOINT_DIR"] + "/model.pt")
    print("step 1 loss 1", flush=True)
"""


@pytest.mark.timeout(400)
def test_a_recipe_runs_in_the_sandbox_and_its_result_becomes_a_model_that_is_served(short_server):
    server: Server = short_server
    trained = server.submit(SCRIPT, gpus=0, launcher="direct")
    assert server.wait_for_end(trained, limit_s=120)["state"] == "succeeded", server.log(trained)
    server.post("/models", {"name": "small", "job": trained})

    recipe = server.post("/models/small/recipes", {"recipe": "quantize", "max_loss": 0.2})
    ended = server.wait_for_end(recipe["job"], limit_s=180)
    assert ended["state"] == "succeeded", server.log(recipe["job"])
    server.wait_until(lambda: server.get("/models/small/recipes")["results"][0]["outcome"])

    (told,) = server.get("/models/small/recipes")["results"]
    assert (told["outcome"], told["result"]) == ("made", "root/small-int8@1"), told
    assert told["report"]["before"]["size_bytes"] > 1.5 * told["report"]["after"]["size_bytes"]
    assert (
        server.get("/models/small-int8")["values"]["accuracy"]
        == told["report"]["after"]["metrics"][0]["value"]
    )

    server.post("/models/small/service", {})
    key = server.post("/services/small/keys", {"name": "test"})["key"]
    rows = json.dumps([[0.5] * 64] * 3).encode()
    status, answer, _ = ask(server, "small", "/predict", key=key, body=rows)
    assert status == 200, answer
    assert len(answer["outputs"]) == 3
