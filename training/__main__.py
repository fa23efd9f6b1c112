"""``python -m training FILE``: train the model that a file defines.

The file has ``build_model()`` and ``build_dataset(path)``, which returns one dataset or a pair
(to train on, to validate on); optionally ``loss_fn(outputs, targets)`` and
``configure_optimizer(model)``.
"""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from training.config import ConfigError, TrainConfig
from training.report import default_reporter

DATASET_PREFIX = "BERTH_DATASET_"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    # Started by its path, Python puts this folder first: a model's own config.py must win over ours.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    path = Path(options.pop("file"))
    data = choose_data(options.pop("data"))
    default_reporter().prints = True  # a model file has no loop of its own that could tell how it goes
    try:
        config = TrainConfig.from_mapping(
            {name: value for name, value in options.items() if value is not None}
        )
        module = load_model_file(path)
    except ConfigError as error:
        sys.exit(f"{error}")
    _fit(module, data, config)


def load_model_file(path: Path) -> ModuleType:
    """Run the file as a module, its folder on the import path.

    Raises:
        ConfigError: it is not there, or lacks one of the two functions.
    """
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; name the Python file that has build_model().")
    sys.path.insert(0, str(path.parent.resolve()))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file; its name must end in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # data-loader workers find its classes there
    spec.loader.exec_module(module)
    for name in ("build_model", "build_dataset"):
        if not callable(getattr(module, name, None)):
            raise ConfigError(
                f"{path} has no {name}(); a model file needs build_model() and build_dataset(path)."
            )
    return module


def _fit(module: ModuleType, data: str | None, config: TrainConfig) -> None:
    from training.state import seed_rng
    from training.trainer import Trainer

    seed_rng(config.seed)
    model = module.build_model()
    built: Any = module.build_dataset(data)
    train, val = built if isinstance(built, tuple) else (built, None)
    Trainer(config).fit(
        model,
        train,
        val,
        loss_fn=getattr(module, "loss_fn", None),
        optimizer=getattr(module, "configure_optimizer", None),
    )


def parse_options(arguments: Sequence[str] | None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog="python -m training", description="Train the model that a file defines."
    )
    parser.add_argument("file", help="Python file with build_model() and build_dataset(path)")
    parser.add_argument("--data", help="what build_dataset gets; default: the job's only dataset")
    for field in fields(TrainConfig):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=_parse_value, help=f"default: {field.default}", metavar="VALUE")
    return vars(parser.parse_args(arguments))


def _parse_value(text: str) -> int | float | bool | str:
    """The number or truth that ``text`` spells, else the text; the config checks the type."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def choose_data(named: str | None) -> str | None:
    """The given path, else the job's only dataset, else None."""
    paths = [value for name, value in os.environ.items() if name.startswith(DATASET_PREFIX)]
    return named or (paths[0] if len(paths) == 1 else None)


if __name__ == "__main__":
    main()
