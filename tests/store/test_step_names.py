"""The step that a checkpoint's name tells."""

import pytest

from orchestrator.store.checkpoints.step_names import series_number, step_in_name


@pytest.mark.parametrize(
    ("name", "reached", "step"),
    [
        ("step_5000.pt", 4976, 5000),
        ("s300.pt", 299, 300),
        ("epoch=3-step=1200.ckpt", None, 1200),
        ("epoch=0-step=100-v1.ckpt", None, 100),
        ("best_step=300_loss=0.12.pt", None, 300),
        ("checkpoint-200", 200, 200),
        ("step_80", None, 80),
        ("global_step100", None, 100),
        ("iter_0000100", None, 100),
        ("0001000", 1000, 1000),
        ("rl_model_480_steps.zip", None, 480),
        ("ckpt_000500.tar.gz", None, 500),
        ("model_step_100_rank_1.pt", None, 100),
        # Without the word "step" what the run reported has to agree.
        ("n-480.json", 478, 480),
        ("model_480.pt", 478, 480),
        ("model_480.pt", None, None),
        ("checkpoint_3_1200.pt", 1190, 1200),
        ("checkpoint_3", 600, None),
        ("model_e3_460.pt", 456, 460),
        ("epoch_3-000460.ckpt", 456, 460),
        ("epoch_3_95.pt", 456, None),
        ("model_e3_460.pt", None, None),
        # Epochs, sizes, dates, versions and numbers of parts.
        ("model_epoch_3.pt", 3, None),
        ("checkpoint-epoch3.pth", 3, None),
        ("e3.pt", 3, None),
        ("resnet50.pth", 50, None),
        ("llama-7b.pt", 7, None),
        ("model_20261122.pt", 20261122, None),
        ("v2.pt", 2, None),
        ("model-1.5.pt", 5, None),
        ("weights.12-0.53.h5", 12, None),
        ("timestep_3.pt", None, None),
        ("pytorch_model-00001-of-00003.bin", 1, None),
        ("last.ckpt", 7, None),
    ],
)
def test_a_step_is_read_from_a_name_only_where_it_is_one(name, reached, step):
    assert step_in_name(name, reached) == step


def test_a_number_between_two_reports_is_a_step_where_reports_were_read_late():
    assert step_in_name("n-210.json", 40) is None
    assert step_in_name("n-210.json", 40, 241) == 210
    assert step_in_name("n-900.json", 40, 241) is None


def test_files_of_one_step_belong_together_and_parts_of_one_file_do_not_part():
    assert series_number("model_step_100.pt") == series_number("optim_step_100.pt") == ("step", 100)
    assert series_number("model_epoch_3.pt") == ("epoch", 3)
    assert series_number("model-00001-of-00003.safetensors") is None
    assert series_number("optim_rank3.pt") is None
    assert series_number("critic2.pt") is None
