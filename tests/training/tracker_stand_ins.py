"""Stand-ins for experiment trackers: packages laid out as the real ones are, which note what their functions get.

The real ones need accounts, servers or hundreds of packages.  What was tried with them by hand stands in
docs/how-to/use-trackers.md.
"""

from pathlib import Path

METHOD = """
    def {name}(self, *args, **kwargs):
        "the tracker's own words"
        if kwargs.pop("refuse", False):
            raise ValueError("the tracker refuses")
        noted.append((args, kwargs))
        return "the tracker's answer"
"""
WANDB = """
import os
from wandb.sdk.wandb_run import Run

def login(key=None):
    return bool(key)

def init(project=None, mode=None, settings=None):
    print("mode", mode or os.environ.get("WANDB_MODE"))
    return Run()
"""
FLUENT = """
from mlflow.tracking.client import MlflowClient

def log_metric(key, value, step=None):
    return MlflowClient().log_metric("run", key, value, 0, step or 0)

def log_metrics(metrics, step=None):
    return MlflowClient().log_batch("run", [Metric(key, value, step or 0) for key, value in metrics.items()])

def log_text(text, artifact_file):
    return MlflowClient().log_text("run", text, artifact_file)

class Metric:
    def __init__(self, key, value, step):
        self.key, self.value, self.step = key, value, step
"""
FIT_LOOP = """
from types import SimpleNamespace

class _FitLoop:
    def __init__(self, **about):
        self.trainer = SimpleNamespace(**about)

    def on_advance_start(self):
        "the loop's own words"
        return "the loop's own answer"
"""
BASE_CLASS = """
class BaseAlgorithm:
    def _setup_learn(self, total_timesteps, callback=None):
        self._total_timesteps = total_timesteps
        return total_timesteps, callback
"""
OBJECTS = """
class Image:
    def __init__(self, image):
        self.image = image

class Histogram:
    def __init__(self, histogram, bins):
        self.histogram, self.bins = histogram, bins

class Table:
    def __init__(self, columns, data):
        self.columns, self.data = columns, data

class Broken(Image):
    pass

Broken.__name__ = "Image"
Broken.image = property(lambda self: 1 / 0, lambda self, image: None)
"""
# By module: its classes with their methods.
CLASSES = {
    "wandb.sdk.wandb_run": {"Run": ["log"]},
    "trackio.run": {"Run": ["log"]},
    "mlflow.tracking.client": {"MlflowClient": ["log_metric", "log_batch", "log_text"]},
    "comet_ml.experiment": {"CometExperiment": ["log_metric", "log_metrics", "log_image", "log_table"]},
    "aim.sdk.run": {"Run": ["track"]},
    "clearml.logger": {"Logger": ["report_scalar", "report_image", "report_table"]},
    "tensorboardX.writer": {
        "SummaryWriter": ["add_scalar", "add_scalars", "add_image", "add_images", "add_histogram", "add_text"]
    },
    "lightning.fabric.loggers.csv_logs": {"CSVLogger": ["log_metrics"]},
}
SOURCES = {
    "wandb": WANDB,
    "wandb.sdk.data_types": OBJECTS,
    "mlflow.tracking.fluent": FLUENT,
    "lightning.pytorch.loops.fit_loop": FIT_LOOP,
    "pytorch_lightning.loops.fit_loop": FIT_LOOP,
    "stable_baselines3.common.base_class": BASE_CLASS,
}


def install(folder: Path) -> None:
    """Write the packages into a folder, from which scripts beside them import."""
    for module, classes in CLASSES.items():
        text = "noted = []\n"
        for owner, methods in classes.items():
            text += f"class {owner}:\n    def __init__(self, logdir=''):\n        self.logdir = logdir\n"
            text += "".join(METHOD.format(name=name) for name in methods)
        _write(folder, module, text)
    for module, text in SOURCES.items():
        _write(folder, module, text)


def _write(folder: Path, module: str, text: str) -> None:
    path = folder.joinpath(*module.split("."))
    for parent in path.relative_to(folder).parents:
        (folder / parent).mkdir(parents=True, exist_ok=True)
        if parent.name:
            (folder / parent / "__init__.py").touch()
    package = path / "__init__.py"
    (package if package.exists() else path.with_suffix(".py")).write_text(text)
