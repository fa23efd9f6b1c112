"""Functions of experiment trackers that take values, and how to read their arguments.  Data only."""

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


class Showing(NamedTuple):
    """A function of a tracker that takes one image, histogram, table or text, and what its arguments are."""

    tracker: str
    module: str
    function: str
    arguments: str  # by position, without self
    kind: str
    value: str  # the first of these that is given
    name: str = ""  # parts of the value's name; without any, the kind
    step: str = "step"
    folder: str = ""  # as in ``Call``
    layout: str = ""  # of an image's axes, or the argument that names them
    is_unit: bool = False  # whether floats of an image go from 0 to 1, and what is beyond is cut


_TITLED = "title series"
_WRITERS = ((_TORCH, "log_dir"), ("tensorboardX.writer", "logdir"))
_OF_WRITERS = (  # function, arguments, kind, value
    ("add_image", "tag img_tensor global_step walltime dataformats", "image", "img_tensor"),
    ("add_images", "tag img_tensor global_step walltime dataformats", "image", "img_tensor"),
    ("add_figure", "tag figure global_step", "image", "figure"),
    ("add_histogram", "tag values global_step", "histogram", "values"),
    ("add_text", "tag text_string global_step", "text", "text_string"),
)
_OF_MLFLOW = (
    ("log_image", "image artifact_file key step", "image", "image", "key artifact_file"),
    ("log_figure", "figure artifact_file", "image", "figure", "artifact_file"),
    ("log_table", "data artifact_file", "table", "data", "artifact_file"),
    ("log_text", "text artifact_file", "text", "text", "artifact_file"),
)
_OF_COMET = (
    (
        "log_image",
        "image_data name overwrite image_format image_scale image_shape image_colormap image_minmax image_channels "
        "copy_to_tmp step",
        "image",
        "image_data",
        "name",
        "image_channels",
    ),
    ("log_figure", "figure_name figure overwrite step", "image", "figure", "figure_name", ""),
    ("log_histogram_3d", "values name step", "histogram", "values", "name", ""),
    ("log_table", "filename tabular_data headers", "table", "tabular_data", "filename", ""),
    ("log_text", "text step", "text", "text", "", ""),
)
_OF_CLEARML = (
    (
        "report_image",
        "title series iteration local_path image matrix",
        "image",
        "image matrix local_path",
    ),
    ("report_table", "title series iteration table_plot csv", "table", "table_plot"),
    ("report_matplotlib_figure", "title series figure iteration", "image", "figure"),
)
SHOWINGS: Final = (
    *(
        Showing(
            "tensorboard",
            module,
            f"SummaryWriter.{function}",
            arguments,
            kind,
            value,
            "tag",
            "global_step",
            folder,
            "dataformats" if "dataformats" in arguments else "",
            is_unit=True,
        )
        for module, folder in _WRITERS
        for function, arguments, kind, value in _OF_WRITERS
    ),
    *(
        Showing("mlflow", module, f"{owner}{function}", f"{run}{arguments}", kind, value, name)
        for module, owner, run in (
            ("mlflow.tracking.fluent", "", ""),
            ("mlflow.tracking.client", "MlflowClient.", "run_id "),
        )
        for function, arguments, kind, value, name in _OF_MLFLOW
    ),
    *(
        Showing(
            "comet_ml",
            "comet_ml.experiment",
            f"{owner}.{function}",
            arguments,
            kind,
            value,
            name,
            layout=layout,
        )
        for owner in ("CometExperiment", "BaseExperiment")
        for function, arguments, kind, value, name, layout in _OF_COMET
    ),
    *(
        Showing(
            "clearml", "clearml.logger", f"Logger.{function}", arguments, kind, value, _TITLED, "iteration"
        )
        for function, arguments, kind, value in _OF_CLEARML
    ),
)
WRAPPED: Final[tuple[Call | Showing, ...]] = (*CALLS, *SHOWINGS)
# Values that are the step of their call, if it has no other.
STEP_NAMES: Final = ("step", "global_step", "train/global_step", "trainer/global_step")
# What trackers measure by themselves, with steps of its own.
SYSTEM_PREFIX: Final = "system/"
