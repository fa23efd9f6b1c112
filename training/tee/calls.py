"""Functions of experiment trackers that take scalars, and how to read their arguments.  Data only."""

from typing import Final, NamedTuple


class Call(NamedTuple):
    """A method of a tracker that takes scalars, and what its arguments are; names are separated by spaces."""

    tracker: str
    module: str
    function: str
    arguments: str  # by position, without self
    value: str  # a number, numbers by name, or objects with a key, a value and a step
    name: str = ""  # parts of the value's name, or of the prefix for several names
    step: str = "step"
    first_step: str = ""  # attribute of the object: the step of its first call without a step
    folder: str = ""  # attribute of the object: where its file is


_METRIC, _METRICS = "name value step", "dic prefix step"
_SCALAR, _SCALARS = "tag scalar_value global_step", "main_tag tag_scalar_dict global_step"
_TORCH = "torch.utils.tensorboard.writer"
CALLS: Final = (
    Call("wandb", "wandb.sdk.wandb_run", "Run.log", "data step commit", "data", first_step="_starting_step"),
    Call("trackio", "trackio.run", "Run.log", "metrics step", "metrics", first_step="_next_step"),
    Call("mlflow", "mlflow.tracking.fluent", "log_metric", "key value step", "value", "key"),
    Call("mlflow", "mlflow.tracking.fluent", "log_metrics", "metrics step", "metrics"),
    Call(
        "mlflow",
        "mlflow.tracking.client",
        "MlflowClient.log_metric",
        "run_id key value timestamp step",
        "value",
        "key",
    ),
    Call("mlflow", "mlflow.tracking.client", "MlflowClient.log_batch", "run_id metrics", "metrics"),
    Call("comet_ml", "comet_ml.experiment", "CometExperiment.log_metric", _METRIC, "value", "name"),
    Call("comet_ml", "comet_ml.experiment", "CometExperiment.log_metrics", _METRICS, "dic", "prefix"),
    Call("comet_ml", "comet_ml.experiment", "BaseExperiment.log_metric", _METRIC, "value", "name"),
    Call("comet_ml", "comet_ml.experiment", "BaseExperiment.log_metrics", _METRICS, "dic", "prefix"),
    Call("aim", "aim.sdk.run", "Run.track", "value name step", "value", "context name"),
    Call(
        "clearml",
        "clearml.logger",
        "Logger.report_scalar",
        "title series value iteration",
        "value",
        "title series",
        "iteration",
    ),
    Call(
        "tensorboard",
        _TORCH,
        "SummaryWriter.add_scalar",
        _SCALAR,
        "scalar_value",
        "tag",
        "global_step",
        "",
        "log_dir",
    ),
    Call(
        "tensorboard",
        _TORCH,
        "SummaryWriter.add_scalars",
        _SCALARS,
        "tag_scalar_dict",
        "main_tag",
        "global_step",
        "",
        "log_dir",
    ),
    Call(
        "tensorboard",
        "tensorboardX.writer",
        "SummaryWriter.add_scalar",
        _SCALAR,
        "scalar_value",
        "tag",
        "global_step",
        "",
        "logdir",
    ),
    Call(
        "tensorboard",
        "tensorboardX.writer",
        "SummaryWriter.add_scalars",
        _SCALARS,
        "tag_scalar_dict",
        "main_tag",
        "global_step",
        "",
        "logdir",
    ),
    Call(
        "lightning", "lightning.fabric.loggers.csv_logs", "CSVLogger.log_metrics", "metrics step", "metrics"
    ),
    Call(
        "lightning", "lightning_fabric.loggers.csv_logs", "CSVLogger.log_metrics", "metrics step", "metrics"
    ),
)
# Values that are the step of their call, if it has no other.
STEP_NAMES: Final = ("step", "global_step", "train/global_step", "trainer/global_step")
# What trackers measure by themselves, with steps of its own.
SYSTEM_PREFIX: Final = "system/"
