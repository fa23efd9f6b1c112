"""What a script gives to its experiment tracker reaches Berth too, and the tracker is as it was."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training import tracker_stand_ins
from training import entry
from training.tee.calls import CALLS as CALLS_OF_TRACKERS
from training.tee.lengths import LENGTHS

ENTRY = Path(__file__).resolve().parents[2] / "training/entry.py"


class Run:
    """A rank that ran a script through the entry."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.log = (folder / "logs/rank0.log").read_text()
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]

    @property
    def values(self) -> list[tuple[int, dict[str, Any]]]:
        """The values of each line with their step."""
        return [
            (
                line["step"],
                {name: value for name, value in line.items() if name not in {"step", "time", "tracker"}},
            )
            for line in self.lines
            if "step" in line
        ]


@pytest.fixture
def run(tmp_path: Path) -> Callable[..., Run]:
    """Run a script beside the stand-ins."""

    def run(script: str, **environment: str) -> Run:
        for name in ("logs", "errors", "finished", "work"):
            (tmp_path / name).mkdir(exist_ok=True)
        tracker_stand_ins.install(tmp_path / "work")
        (tmp_path / "work/train.py").write_text(script)
        done = subprocess.run(
            [sys.executable, "-u", str(ENTRY), "train.py"],
            cwd=tmp_path / "work",
            env={
                "BERTH_ATTEMPT_FOLDER": str(tmp_path),
                "BERTH_METRICS_FILE": str(tmp_path / "metrics.jsonl"),
                "HOME": str(tmp_path / "work"),
                "RANK": "0",
                "LANG": "C.UTF-8",
                **environment,
            },
            check=False,
            text=True,
        )
        return Run(tmp_path, done)

    return run


CALLS = {
    "wandb": (
        "from wandb.sdk.wandb_run import Run\nr = Run()\n"
        "r.log({'loss': 0.5, 'deep': {'a': 1}, 'name': 'x', 'flag': True})\n"
        "r.log({'a': 1}, commit=False)\nr.log({'b': 2})\nr.log({'late': 3.5}, step=40)\nr.log({'after': 1})\n"
        "r.log({'train/loss': 2, 'train/global_step': 77})\n",
        [
            (0, {"loss": 0.5, "deep.a": 1}),
            (1, {"a": 1}),
            (1, {"b": 2}),
            (40, {"late": 3.5}),
            (41, {"after": 1}),
            (77, {"train/loss": 2}),
        ],
    ),
    "trackio": ("from trackio.run import Run\nRun().log(metrics={'loss': 1}, step=3)\n", [(3, {"loss": 1})]),
    "mlflow": (
        "from mlflow.tracking import fluent\n"
        "fluent.log_metric('loss', 0.5, step=3)\nfluent.log_metric('x', 1)\nfluent.log_metric('x', 2)\n"
        "fluent.log_metrics({'a': 1, 'b': 2}, 9)\n"
        "fluent.MlflowClient().log_batch('run', metrics=[fluent.Metric('c', 1.5, 8), fluent.Metric('d', 2.5, 9)])\n"
        "fluent.MlflowClient().log_metric('run', 'e', 4.5, 0, 10)\n",
        [
            (3, {"loss": 0.5}),
            (0, {"x": 1}),
            (1, {"x": 2}),
            (9, {"a": 1, "b": 2}),
            (8, {"c": 1.5}),
            (9, {"d": 2.5}),
            (10, {"e": 4.5}),
        ],
    ),
    "comet": (
        "from comet_ml.experiment import CometExperiment\ne = CometExperiment()\n"
        "e.log_metric('loss', 0.5, step=2)\ne.log_metrics({'a': 1}, prefix='val', step=3)\n",
        [(2, {"loss": 0.5}), (3, {"val/a": 1})],
    ),
    "aim": (
        "from aim.sdk.run import Run\nr = Run()\n"
        "r.track(0.5, name='loss', step=4, context={'subset': 'val'})\nr.track({'a': 1}, step=5)\n"
        "r.track([object()], name='pictures', step=6)\n",
        [(4, {"val/loss": 0.5}), (5, {"a": 1})],
    ),
    "clearml": (
        "from clearml.logger import Logger\nlog = Logger()\n"
        "log.report_scalar('loss', 'loss', 0.5, 7)\nlog.report_scalar(title='acc', series='val', value=1, iteration=8)\n",
        [(7, {"loss": 0.5}), (8, {"acc/val": 1})],
    ),
    "tensorboard": (
        "from tensorboardX.writer import SummaryWriter\n"
        "a, b = SummaryWriter('runs/a'), SummaryWriter('runs/a/val')\n"
        "a.add_scalar('loss', 0.5, 1)\nb.add_scalar('loss', 0.7, 1)\na.add_scalars('both', {'x': 1}, global_step=2)\n",
        [(1, {"loss": 0.5}), (1, {"val/loss": 0.7}), (2, {"both/x": 1})],
    ),
    "lightning": (
        "from lightning.fabric.loggers.csv_logs import CSVLogger\nCSVLogger().log_metrics({'loss': 0.5}, 3)\n",
        [(3, {"loss": 0.5})],
    ),
}


@pytest.mark.parametrize("tracker", CALLS)
def test_scalars_of_a_tracker_arrive_once_with_their_step(run, tracker):
    script, expected = CALLS[tracker]

    done = run(script)

    assert (done.code, done.log) == (0, "")
    assert done.values == expected


@pytest.mark.parametrize(
    ("epochs", "steps", "batches", "accumulated", "told"),
    [
        (3, -1, "10", 1, [30]),
        (3, 12, "10", 1, [12]),
        (3, 12, "10", 2, [24]),
        (-1, 12, "float('inf')", 1, [12]),
        (3, -1, "float('inf')", 1, []),
        (-1, -1, "10", 1, []),
        (None, 8, "10", 1, [8]),
        (3, -1, "None", 1, []),  # another version may tell it differently
    ],
)
@pytest.mark.parametrize("package", ["lightning.pytorch", "pytorch_lightning"])
def test_lightning_tells_how_long_its_training_is(run, package, epochs, steps, batches, accumulated, told):
    done = run(
        f"from {package}.loops.fit_loop import _FitLoop\n"
        f"loop = _FitLoop(max_epochs={epochs}, max_steps={steps}, num_training_batches={batches}, "
        f"accumulate_grad_batches={accumulated})\n"
        "loop.on_advance_start()\nprint(loop.on_advance_start(), _FitLoop.on_advance_start.__doc__)\n"
    )

    assert done.log == "the loop's own answer the loop's own words\n"
    assert done.lines == [{"tracker": "lightning", "total_steps": total} for total in told]


def test_stable_baselines_tells_its_timesteps(run):
    done = run(
        "from stable_baselines3.common.base_class import BaseAlgorithm\n"
        "print(BaseAlgorithm()._setup_learn(768, callback='mine'))\n"
    )

    assert done.log == "(768, 'mine')\n"
    assert done.lines == [{"tracker": "stable_baselines3", "total_steps": 768}]


def test_the_entry_watches_each_tracker_of_the_table():
    modules = {call.module for call in CALLS_OF_TRACKERS} | {length.module for length in LENGTHS}
    packages = {module.partition(".")[0] for module in modules} - {"torch"}

    assert packages == entry._TRACKERS
    assert all(
        call.module.startswith(entry._TORCH_TRACKER)
        for call in CALLS_OF_TRACKERS
        if call.module.startswith("torch.")
    )


def test_a_trackers_answers_errors_and_names_are_its_own(run):
    done = run(
        "import inspect\nfrom wandb.sdk import wandb_run\nr = wandb_run.Run()\n"
        "print(r.log({'a': 1}, step=2), wandb_run.noted)\n"
        "print(wandb_run.Run.log.__name__, wandb_run.Run.log.__doc__)\n"
        "try:\n    r.log({'a': 2}, refuse=True)\nexcept ValueError as error:\n    print(error)\n"
    )

    assert done.log.splitlines() == [
        "the tracker's answer [(({'a': 1},), {'step': 2})]",
        "log the tracker's own words",
        "the tracker refuses",
    ]


def test_an_error_of_the_tee_is_told_once_and_never_reaches_the_script(run):
    done = run(
        "from wandb.sdk import wandb_run\nr = wandb_run.Run()\n"
        "class Odd:\n    def __float__(self):\n        raise RuntimeError('no number')\n"
        "r.log({'a': Odd()})\nr.log({'a': Odd()})\nr.log({'b': 1}, step='first')\nr.log({'c': 1}, step=3)\n"
        "print(len(wandb_run.noted))\n"
    )

    assert done.code == 0
    assert done.log.splitlines() == [
        "Berth could not read a call of wandb (RuntimeError: no number).",
        "4",
    ]
    assert done.values == [(3, {"c": 1})]


def test_a_script_with_a_module_named_training_is_teed_as_well(run, tmp_path):
    (tmp_path / "work").mkdir()
    (tmp_path / "work/training.py").write_text("print('my own')\n")

    done = run("import training\n" + CALLS["lightning"][0])

    assert done.log == "my own\n"
    assert done.values == [(3, {"loss": 0.5})]


def test_only_rank_0_and_only_the_rank_itself_report(run):
    forked = (
        "import os\nfrom trackio.run import Run\nRun().log({'loss': 1}, 1)\n"
        "if os.fork() == 0:\n    Run().log({'loss': 2}, 2)\nelse:\n    os.wait()\n"
    )

    assert run(forked).values == [(1, {"loss": 1})]


@pytest.mark.parametrize("environment", [{"RANK": "1"}, {"TRACKER_TEE": "off"}])
def test_other_ranks_and_jobs_that_switch_it_off_write_nothing(run, environment, tmp_path):
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/rank0.log").touch()

    assert run(CALLS["trackio"][0], **environment).lines == []


def test_a_tracker_announces_itself_before_it_writes_files(run):
    done = run("from tensorboardX.writer import SummaryWriter\nSummaryWriter('runs').add_scalar('a', 1, 1)\n")

    assert done.lines[0] == {"tracker": "tensorboard"}


INIT = "import wandb\nwandb.init(project='x')\n"


@pytest.mark.parametrize(
    ("script", "environment", "mode"),
    [
        (INIT, {}, "offline"),
        ("import wandb\nwandb.login()\nwandb.init()\n", {}, "offline"),
        (INIT, {"RANK": "0", "WANDB_API_KEY": "k"}, "None"),
        (INIT, {"WANDB_MODE": "disabled"}, "disabled"),
        ("import wandb\nwandb.init(mode='online')\n", {}, "online"),
        ("import wandb\nwandb.login(key='k')\nwandb.init()\n", {}, "None"),
        ("import wandb\nwandb.login()\nwandb.login('k')\nwandb.init()\n", {}, "None"),
        ("open('.netrc', 'w').write('machine api.wandb.ai login user password k')\n" + INIT, {}, "None"),
    ],
)
def test_wandb_is_offline_exactly_where_nobody_gave_a_key_or_a_mode(run, script, environment, mode):
    assert run(script, **environment).log == f"mode {mode}\n"


@pytest.mark.slow
def test_torchs_own_writer_is_teed_and_its_file_is_complete(run, tmp_path):
    done = run(
        "import torch\nfrom torch.utils.tensorboard import SummaryWriter\n"
        "writer = SummaryWriter('runs')\n"
        "for step in range(3):\n    writer.add_scalar('loss', torch.tensor(1.0 / (step + 1)), step)\n"
        "writer.add_scalar('several', torch.ones(1), 3)\nwriter.close()\n"
    )

    assert (done.code, done.log) == (0, "")
    assert done.values == [
        (0, {"loss": 1.0}),
        (1, {"loss": 0.5}),
        (2, {"loss": pytest.approx(1 / 3)}),
        (3, {"several": 1.0}),
    ]
    assert any(b"several" in file.read_bytes() for file in (tmp_path / "work/runs").iterdir())
