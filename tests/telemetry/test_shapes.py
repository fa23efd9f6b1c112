"""What the shape of a line tells: values and progress, or settings, warnings and loading."""

import pytest

from orchestrator.agent.telemetry.printed_lines import LineParser
from tests.telemetry.lines import last_of, values_of


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("tok/sec: 1,234,567", {"tok/sec": 1234567.0}),
        ("tok/sec: 1_234_567.5", {"tok/sec": 1234567.5}),
        ("tok/sec: 1\u202f234\u202f567", {"tok/sec": 1234567.0}),
        ("tok/sec 1 234 567", {}),  # three columns, or one number: nobody can tell
        ("ppl    76.71", {"ppl": 76.71}),
        ("eta: 1:23:45", {}),
        ("time 1h 23m", {}),
        ("elapsed 00:12", {}),
        ("total time: 0.12m", {}),
        ("12.3k tok/s", {"tokens_per_s": 12300.0}),
        ("speed: 12.3k tok/s", {"speed_per_s": 12300.0}),
        ("seen 1.2M", {"seen": 1.2e6}),
        ("accuracy 45%", {"accuracy_percent": 45.0}),
        ("memory 3.2GB", {"memory_gb": 3.2}),
        ("max_mem: 1234M", {"max_mem_mb": 1234.0}),
        ("time 120ms", {"time_ms": 120.0}),
        ("time (ms): 120", {"time_ms": 120.0}),
        ("commit 3f2a9c1", {}),
        ("accuracy: 9842/10000 (98%)", {"accuracy": 0.9842}),
        ("loss: tensor(0.5234, device='cuda:0', grad_fn=<NllLossBackward0>)", {"loss": 0.5234}),
        ("Average loss: 0.5", {"loss": 0.5}),
        ("ppl 0,52", {}),  # a decimal comma, or a list of two
        ("acc: 0,5234", {}),
        ("shape 3,224,22", {}),
        ("size 3.224,22", {}),  # a point between thousands, and a decimal comma
        ("acc: 0.5,0.6", {"acc": 0.5}),  # a list, as with a space behind its comma
        ("acc: 0.5, 0.6", {"acc": 0.5}),
        ('"acc": [0.5,0.6,0.7]', {"acc": 0.5}),
    ],
)
def test_a_number_is_read_as_it_is_meant_or_not_at_all(line, values):
    found = values_of(LineParser(), f"step 5 | loss_a 0.1 | {line}").values

    assert found == {"loss_a": 0.1, **values}


@pytest.mark.parametrize("line", ["step    5/1000", "iteration        5/    1000", "step 5 of 1000", "step 00005/01000", "Step [5/1000]", "step 5/1,000"])  # fmt: skip
def test_padded_counts_are_progress(line):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps) == (5, 1000)


@pytest.mark.parametrize(
    "line",
    [
        "Namespace(lr=0.0003, steps=20000, batch=32, seed=1, ballast=0, crash=0, hang=0, nan=0, oom=0)",
        "lr=0.0003, steps=20000, batch=32, seed=1",
        "Config(step=5, epoch=3, loss=0.5)",
        "{'lr': 0.001, 'batch_size': 32, 'epochs': 10, 'seed': 1}",
        "{'batch': 32, 'lr': 0.1}",
        "epoch: 100",
        "max_epochs=6",
        "STEP=5",
        "python train.py --epoch 3 --lr 0.1",
        "best epoch: 3, best loss: 0.5",
        "Resuming from checkpoint at epoch 5",
        "Number of parameters: 12.3M",
        "[W1122 09:31:45.123456789 reducer.cpp:1529] Warning: step 5 loss 0.3",
        "eval step 5/100 loss 0.3",
        "100%|#####| 170498071/170498071 [00:01<00:00, 100123123.1B/s]",
    ],
)  # fmt: skip
def test_settings_and_warnings_are_no_metrics(line):
    assert LineParser().feed(line) is None


def test_a_test_is_not_the_training():
    found = last_of(
        "Train Epoch: 1 [5120/60000 (9%)]\tLoss: 0.3\nTest set: Average loss: 0.05, Accuracy: 9842/10000 (98%)"
    )

    assert found.values == {"test_loss": 0.05, "test_Accuracy": 0.9842}


@pytest.mark.parametrize(
    "line",
    [
        "Loaded checkpoint 'a.pth' (epoch 12)",
        "=> loaded checkpoint 'checkpoint.pth.tar' (epoch 90)",
        "2026-01-01 10:00:00,123 INFO Loaded checkpoint a.pth (epoch: 12, loss: 0.3)",
        "Successfully loaded model: epoch 12, val_loss: 0.3",
        "Model loaded from a.pth, epoch=12, accuracy=0.9",
        "Loading pretrained model weights (epoch 12)",
        "Restored optimizer state, step 500/1000",
        "Resuming from epoch 12",
        "Resuming training: epoch 12/50",
        "Epoch 12 loaded from a.pth",
        "Checkpoint geladen (Epoche 12)",
        "Loaded checkpoint with val_loss: 0.3",
    ],
)
def test_a_line_that_tells_of_loading_is_no_progress(line):
    parser, quiet = LineParser(), LineParser()
    for each in (parser, quiet):
        each.feed("Epoch 0: loss 0.9")

    assert LineParser().feed(line) is None
    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("data loading: 0.1 | epoch 3 | loss: 0.5", {"data_loading": 0.1, "loss": 0.5}),
        ("epoch 3 | loading time: 0.1 | loss: 0.5", {"loading_time": 0.1, "loss": 0.5}),
        ("epoch 3 | loss: 0.5 | resumed: 1", {"loss": 0.5, "resumed": 1.0}),
    ],
)
def test_the_time_of_loading_data_is_a_value(line, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.values) == (3, values)


@pytest.mark.parametrize(
    ("line", "step", "total_steps", "values"),
    [
        ("Epoche 3/10, Verlust: 0.42, Genauigkeit: 0.91", 3, 10, {"Verlust": 0.42, "Genauigkeit": 0.91}),
        ("Époque 3/10, perte: 0.42, précision: 0.91", 3, 10, {"perte": 0.42, "précision": 0.91}),
        ("Epoque 3 sur 10 - perte : 0.42 - précision : 0.91", 3, 10, {"perte": 0.42, "précision": 0.91}),
        ("Época 3 de 10, pérdida: 0.42, precisión: 0.91", 3, 10, {"pérdida": 0.42, "precisión": 0.91}),
        ("Epoca 3/10 | perdida 0.42", 3, 10, {"perdida": 0.42}),
        ("Étape 30/100, perte: 0.42", 30, 100, {"perte": 0.42}),
        ("Paso 30/100, pérdida: 0.42", 30, 100, {"pérdida": 0.42}),
        ("轮次 3/10 损失 0.42 准确率 0.9", 3, 10, {"损失": 0.42, "准确率": 0.9}),
        (
            "轮次\uff1a3/10\uff0c损失\uff1a0.42\uff0c准确率\uff1a90\uff05",
            3,
            10,
            {"损失": 0.42, "准确率_percent": 90.0},
        ),
        ("第3/10轮\uff0c训练损失0.42\uff0c验证准确率0.9", 3, 10, {"训练损失": 0.42, "验证准确率": 0.9}),
        ("【第 3 轮】 损失: 0.42、准确率: 0.9", 3, None, {"损失": 0.42, "准确率": 0.9}),
        ("第3个epoch 损失=0.42", 3, None, {"损失": 0.42}),
        ("Epoch 3/10, 损失: 0.42", 3, 10, {"损失": 0.42}),
        ("步数 30/100 损失 0.42 用时 12秒", 30, 100, {"损失": 0.42}),
        ("第 3 輪, 損失: 0.42, 準確率: 0.9", 3, None, {"損失": 0.42, "準確率": 0.9}),
        ("エポック 3/10, 訓練損失: 0.42, 検証精度: 0.9", 3, 10, {"訓練損失": 0.42, "検証精度": 0.9}),
        ("第3エポック 損失0.42", 3, None, {"損失": 0.42}),
        ("ステップ 30/100: 損失 0.42", 30, 100, {"損失": 0.42}),
        ("에포크 1, 배치 10/100, 손실: 0.42", 10, None, {"손실": 0.42}),
        ("에포크 3 완료! 평균 손실: 0.42", 3, None, {"평균_손실": 0.42}),
        ("Эпоха 3 из 10 | потери: 0.42 | точность: 0.9", 3, 10, {"потери": 0.42, "точность": 0.9}),
        ("Шаг 30/100, train MSE = 0.42", 30, 100, {"train_mse": 0.42}),
    ],
)
def test_lines_in_other_languages_give_their_values(line, step, total_steps, values):
    found = values_of(LineParser(), line)

    assert (found.step, found.total_steps, found.values) == (step, total_steps, values)


@pytest.mark.parametrize(
    "line",
    ["最佳 轮次: 3, 损失: 0.4", "加载模型\uff08轮次 12\uff09", "Modèle chargé (époque 12)", "Mejor época: 3", "第3章", "温度25度\uff0c速度30", "paso a paso 5 guías", "验证: 45%|####      | 45/100 [00:10<00:12,  4.43it/s]",
        "加载检查点: a.pth (轮次 12, 损失: 0.3)", "Загружен чекпоинт: a.pth (Эпоха 12, Loss: 0.3)", "최고 정확도: 0.9", "에포크: 30", "学習率: 0.01",
        "Эпоха 3/10 [Валидация]: 45%|####      | 45/100 [00:10<00:12,  4.43it/s]"],
)  # fmt: skip
def test_lines_in_other_languages_without_a_metric_give_nothing(line):
    parser, quiet = LineParser(), LineParser()

    assert parser.feed(line) is None
    assert parser.progress == quiet.progress


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("[resumed] Epoch 3/10 loss 0.5", 3),
        ("run=resume-2 epoch=3 loss=0.5", 3),
        ("data loaded in 0.3s, step 5: loss 0.5", 5),
        ("batch loaded 0.3 s | step 5 | loss 0.5", 5),
        ("Restored best weights; Epoch 8/10 val_loss 0.3", 8),
    ],
)
def test_a_word_of_loading_beside_measured_values_hides_no_progress(line, step):
    found = last_of(f"Starting.\n{line}")

    assert found.step == step


@pytest.mark.parametrize(
    "words", ["Loading weights", "INFO Loading weights", "Copying", "Loading weights: rank 0"]
)
def test_a_drawn_bar_of_something_else_is_no_progress(words):
    assert LineParser().feed(f"{words} |##########          | (12/391) loss 0.5") is None


@pytest.mark.parametrize(
    "words", ["", "Training", "Epoch 1", "Processing", "INFO Train", "2026-01-05 10:00:01 INFO Step"]
)
def test_a_drawn_bar_of_a_training_is_its_progress(words):
    assert values_of(LineParser(), f"{words} |##########          | (12/391) loss 0.5").step == 12


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("Total loss 345.9", {"total_loss": 345.9}),
        ("dice_loss - 0.51, iou_score - 0.42", {"dice_loss": 0.51, "iou_score": 0.42}),
        ("avg. loss [951-1000]: 12.3", {"loss": 12.3}),
        ("total_loss_step=12.5", {"total_loss_step": 12.5}),
        ("Eval num_timesteps=100, episode_reward=12.5 +/- 1.2", {"eval_episode_reward": 12.5}),
        ("valid (NDCG@10: 0.5, HR@10: 0.7), test (NDCG@10: 0.4)", {"valid_NDCG@10": 0.5, "valid_HR@10": 0.7, "test_NDCG@10": 0.4}),
        ("Valid Summary | Epoch 5 | ce=5.2 | ppl=9.9", {"valid_ce": 5.2, "valid_ppl": 9.9}),
    ],
)  # fmt: skip
def test_measures_of_other_forms_are_read(line, values):
    found = last_of(f"step 5 loss 0.5\n{line}")

    assert (found.step, found.values) == (5, values)


def test_values_below_the_headline_of_their_epoch_may_begin_with_any_name():
    line = "Norm: 12.3, Bias: 0.1, Avg. loss: 0.5"

    assert last_of(f"-- Epoch 1\n{line}").values == {"Norm": 12.3, "Bias": 0.1, "loss": 0.5}
    parser = LineParser()
    parser.feed("Epoch 1 loss 0.6")
    assert parser.feed(line) is None


def test_the_values_below_a_branch_of_a_tree_are_those_of_the_evaluation():
    lines = ["Epoch 1 loss 0.5", "└── Validation", "    ├── loss = 0.4", "    │   ├── Epoch N-1 = 0.6", "    └── acc = 0.9"]  # fmt: skip

    assert last_of("\n".join(lines)).values == {"validation_acc": 0.9}


def test_a_dict_of_losses_over_several_lines_is_read():
    lines = ["Step 100 per-step time 0.345s", "{'Loss/box_loss': 0.5,", " 'Loss/total_loss': 0.9,", " 'learning_rate': 0.04}"]  # fmt: skip
    parser = LineParser()

    found = [each.values for line in lines if (each := parser.feed(line)) is not None]

    assert found[1:] == [{"Loss/box_loss": 0.5}, {"Loss/total_loss": 0.9}]


@pytest.mark.parametrize("key", ["_type", "mode", "split", "phase"])
def test_a_record_that_names_an_evaluation_is_one(key):
    record = f'{{"{key}": "val", "epoch": 9, "loss": 0.4}}'
    found = last_of(f"epoch 3 step 5 loss 0.5\n{record}")

    assert (found.step, found.epoch, found.values) == (5, 3.0, {"val_loss": 0.4})
