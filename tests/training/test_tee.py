"""What a script gives to its experiment tracker reaches Berth too, and the tracker is as it was."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.training import tracker_stand_ins
from tests.training.test_media import pixels_of
from training.rank import imports
from training.tee.calls import WRAPPED
from training.tee.gallery import FIRST_CALLS, Gallery
from training.tee.lengths import LENGTHS
from training.tee.objects import Value

ENTRY = Path(__file__).resolve().parents[2] / "training/entry.py"


class Run:
    """A rank that ran a script through the entry."""

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.code = done.returncode
        self.log = (folder / "logs/rank0.log").read_text()
        metrics = folder / "metrics.jsonl"
        lines = metrics.read_text().splitlines() if metrics.exists() else []
        self.lines: list[dict[str, Any]] = [json.loads(line) for line in lines]
        self.folder = folder / "media"
        index = self.folder / "index.jsonl"
        media = index.read_text().splitlines() if index.exists() else []
        self.media: list[dict[str, Any]] = [json.loads(line) for line in media]

    @property
    def shown(self) -> list[tuple[int, str, str]]:
        """The step, kind and name of each image, histogram, table and text."""
        return [(each["step"], each["kind"], each["name"]) for each in self.media]

    def content(self, number: int) -> Any:
        """What the file of a value that is no image holds."""
        return json.loads((self.folder / self.media[number]["file"]).read_text())

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
                "BERTH_MEDIA_DIR": str(tmp_path / "media"),
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
    modules = {call.module for call in WRAPPED} | {length.module for length in LENGTHS}
    packages = {module.partition(".")[0] for module in modules} - {"torch"}

    assert packages == imports.TRACKERS
    assert all(
        call.module.startswith(imports.TORCH_TRACKER) for call in WRAPPED if call.module.startswith("torch.")
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


SHOWN = {
    "wandb": (
        "import numpy\nfrom wandb.sdk.wandb_run import Run\nfrom wandb.sdk.data_types import Histogram, Image, Table\n"
        "image = Image(numpy.zeros((4, 5, 3), numpy.uint8))\n"
        "Run().log({'loss': 1, 'samples': [image, image], 'deep': {'weights': Histogram([1, 2], [0, 1, 2])},\n"
        "           'words': Table(['a', 'b'], [[1, image]]), 'many': numpy.zeros(100), 'few': [1, 2]}, step=5)\n",
        [
            (5, "image", "samples/0"),
            (5, "image", "samples/1"),
            (5, "histogram", "deep/weights"),
            (5, "table", "words"),
            (5, "histogram", "many"),
        ],
    ),
    "tensorboard": (
        "import numpy\nfrom tensorboardX.writer import SummaryWriter\n"
        "a, b = SummaryWriter('runs'), SummaryWriter('runs/val')\n"
        "a.add_image('one', numpy.zeros((3, 4, 5)), 2)\na.add_images('batch', numpy.zeros((2, 1, 4, 5)), global_step=2)\n"
        "b.add_histogram('weights', numpy.arange(9.0), 3)\nb.add_text('words', 'hello', 3)\n",
        [
            (2, "image", "one"),
            (2, "image", "batch/0"),
            (2, "image", "batch/1"),
            (3, "histogram", "val/weights"),
            (3, "text", "val/words"),
        ],
    ),
    "mlflow": (
        "from mlflow.tracking import fluent\nfluent.log_metric('loss', 0.5, step=7)\nfluent.log_text('hello', 'notes.txt')\n",
        [(7, "text", "notes.txt")],  # MLflow's texts have no step: the newest number's
    ),
    "comet": (
        "import numpy\nfrom comet_ml.experiment import CometExperiment\ne = CometExperiment()\n"
        "e.log_image(numpy.zeros((3, 4, 5)), 'pic', image_channels='first', step=1)\n"
        "e.log_table('t.csv', tabular_data=[[1, 2]], headers=['a', 'b'])\ne.log_table('only-a-file.csv')\n",
        [(1, "image", "pic"), (0, "table", "t.csv")],
    ),
    "clearml": (
        "import numpy\nfrom clearml.logger import Logger\nlog = Logger()\n"
        "log.report_image('pics', 'val', 4, image=numpy.zeros((4, 5)))\n"
        "log.report_table('words', 'val', iteration=4, table_plot=[['a', 'b'], [1, 2]])\n",
        [(4, "image", "pics/val"), (4, "table", "words/val")],
    ),
}


@pytest.mark.parametrize("tracker", SHOWN)
def test_pictures_histograms_tables_and_texts_of_a_tracker_arrive_as_well(run, tracker):
    script, expected = SHOWN[tracker]

    done = run(script)

    assert (done.code, done.log) == (0, "")
    assert done.shown == expected


def test_values_beside_a_trackers_objects_arrive_and_tables_keep_their_cells(run):
    done = run(SHOWN["wandb"][0])

    assert done.values == [(5, {"loss": 1})]
    assert done.content(3) == {"columns": ["a", "b"], "rows": [[1, "(Image)"]], "rows_total": 1}
    assert done.content(2) == {"counts": [1, 2], "edges": [0, 1, 2], "not_finite": 0}


@pytest.mark.parametrize(
    ("image", "corner"),
    [
        ("numpy.full((3, 4, 5), 2.6)", [255, 255, 255]),
        ("numpy.full((3, 4, 5), -1.0)", [0, 0, 0]),
        ("numpy.full((4, 5, 3), 0.4), dataformats='HWC'", [102, 102, 102]),
        ("numpy.full((4, 5), 7, numpy.uint8), dataformats='HW'", [7]),
        ("numpy.full((3, 5000, 4), 9, numpy.uint8)", [9, 9, 9]),
    ],
)
def test_an_image_looks_as_it_does_in_the_tracker(run, image, corner):
    writer = "import numpy\nfrom tensorboardX.writer import SummaryWriter\nSummaryWriter('runs')"
    done = run(f"{writer}.add_image('pic', global_step=1, img_tensor={image})\n")

    assert done.log == ""
    assert pixels_of(done.folder / done.media[0]["file"])[0, 0].tolist() == corner


def test_a_value_that_cannot_be_read_is_told_once_and_the_tracker_still_gets_it(run):
    done = run(
        "from wandb.sdk import wandb_run\nfrom wandb.sdk.data_types import Broken\nr = wandb_run.Run()\n"
        "for _ in range(3):\n    r.log({'loss': 1, 'pic': Broken(0)})\nprint(len(wandb_run.noted))\n"
    )

    assert sorted(done.log.splitlines()) == [
        "3",
        "Berth does not show 'pic': ZeroDivisionError: division by zero.",
    ]
    assert [values for _, values in done.values] == [{"loss": 1}] * 3


def test_files_of_a_tracker_and_of_the_script_itself_do_not_collide(run):
    done = run(
        "import numpy, training\nfrom tensorboardX.writer import SummaryWriter\n"
        "from training.report import default_reporter\nwriter = SummaryWriter('runs')\n"
        "for step in range(3):\n"
        "    writer.add_text('a', str(step), step)\n"
        "    training.report(step, image=numpy.zeros((2, 2)))\n    default_reporter().flush()\n"
    )

    assert sorted(done.shown) == sorted(
        (step, *what) for step in range(3) for what in (("image", "image"), ("text", "a"))
    )
    assert len({each["file"].partition(".")[0] for each in done.media}) == 6


@pytest.fixture
def gallery(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gallery:
    monkeypatch.setenv("BERTH_MEDIA_DIR", str(tmp_path))
    return Gallery()


def steps_of(folder: Path) -> list[int]:
    return [json.loads(line)["step"] for line in (folder / "index.jsonl").read_text().splitlines()]


def test_a_name_with_many_calls_is_kept_ever_more_rarely_to_its_end(gallery, tmp_path):
    for step in range(5_000):
        gallery.take("wandb", step, [Value("text", "a", lambda: "x")])
    gallery.write()

    steps = steps_of(tmp_path)
    assert steps[:FIRST_CALLS] == list(range(FIRST_CALLS))
    assert len(steps) < 10 * FIRST_CALLS
    assert steps[-1] > 4_500


def test_many_names_share_what_an_attempt_keeps(gallery, tmp_path):
    for step in range(200):
        gallery.take("wandb", step, [Value("text", str(name), lambda: "x") for name in range(100)])
        gallery.write()

    steps = steps_of(tmp_path)
    assert len(steps) < 2_000
    assert steps[-1] >= 128


def test_what_two_trackers_get_is_kept_once(gallery, tmp_path):
    for step in range(3):
        for tracker in ("tensorboard", "wandb"):
            gallery.take(tracker, step, [Value("text", "a", lambda: "x")])
    gallery.write()

    assert steps_of(tmp_path) == [0, 1, 2]


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
