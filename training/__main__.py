"""``python -m training FILE``: train the model defined in a file.

The file has ``build_model()`` and ``build_dataset(path)``, which returns one dataset or a pair
(training, validation); optionally ``loss_fn(outputs, targets)`` and
``configure_optimizer(model)``.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from training.config import ConfigError, TrainConfig
from training.config.model_file import choose_data, load_model_file, parse_options
from training.report import default_reporter

DATASET_PREFIX = "BERTH_DATASET_"


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_options(arguments)
    # Started by path, Python puts this folder first on sys.path; a model's own config.py must win over ours.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    path = Path(options.pop("file"))
    data = choose_data(options.pop("data"))
    default_reporter().prints = True  # a model file has no loop of its own that could print progress
    try:
        config = TrainConfig.from_mapping(
            {name: value for name, value in options.items() if value is not None}
        )
        module = load_model_file(path)
    except ConfigError as error:
        sys.exit(f"{error}")
    _fit(module, data, config)


def _fit(module: ModuleType, data: str | None, config: TrainConfig) -> None:
    from training.rng import seed_rng
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


if __name__ == "__main__":
    main()
