"""Input of ``python -m training``: its options, and the file that defines a model."""

import argparse
import importlib.util
import os
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

from training.config.settings import ConfigError, TrainConfig

DATASET_PREFIX = "BERTH_DATASET_"


def load_model_file(path: Path) -> ModuleType:
    """Import the file, with its folder on the import path.

    Raises:
        ConfigError: the file is missing, or lacks one of the two functions.
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


def parse_options(arguments: Sequence[str] | None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(
        prog="python -m training", description="Train the model that a file defines."
    )
    parser.add_argument("file", help="Python file with build_model() and build_dataset(path)")
    parser.add_argument("--data", help="argument of build_dataset (default: the job's only dataset)")
    for field in fields(TrainConfig):
        name = "--" + field.name.replace("_", "-")
        parser.add_argument(name, type=_parse_value, help=f"default: {field.default}", metavar="VALUE")
    return vars(parser.parse_args(arguments))


def _parse_value(text: str) -> int | float | bool | str:
    """Read a number or boolean; anything else stays text. The config checks the type."""
    if text in ("true", "false"):
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def choose_data(named: str | None) -> str | None:
    """Return the given path, else the job's only dataset, else None."""
    paths = [value for name, value in os.environ.items() if name.startswith(DATASET_PREFIX)]
    return named or (paths[0] if len(paths) == 1 else None)
