"""What `berth plan` says of a training."""

from berth.cli.planning import say_training


def test_each_number_of_devices_has_its_line_and_a_failure_its_sentence(capsys):
    say_training({"error": "", "devices": [{"gpus": 1, "why": "SINGLE"}, {"gpus": 2, "why": "DDP\x1b[2J"}]})
    say_training({"error": "train.py has no build_model().", "devices": []})

    assert capsys.readouterr().out.splitlines() == [
        "Trained on 1 device: SINGLE",
        "Trained on 2 devices: DDP",
        "Its training cannot be planned: train.py has no build_model().",
    ]
