"""``python -m training.plan FILE --devices 1 2 4``: the ways to train a model, as JSON, without training it.

Takes the options of ``python -m training`` too.  For each number of devices the answer has the table of
candidates with memory, step time and why each was not taken, or the sentence why there is none.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

MOST_DEVICES = 4096


def main(arguments: Sequence[str] | None = None) -> int:
    # Started by its path, Python puts this folder first, and here are a types.py and a table.py.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    options, rest = _parse(arguments)
    answer = json.dumps(plan_file(rest, options.devices, options.memory))
    if options.out is None:
        print(answer)  # noqa: T201 -- a command answers where it is asked
    else:
        options.out.write_text(answer)
    return 0


def plan_file(options: Sequence[str], devices: Sequence[int], memory_bytes: int | None) -> dict[str, Any]:
    """``{"tables": {devices: table}}``, or ``{"error": sentence}`` where the file or its settings are wrong."""
    from training.__main__ import choose_data, load_model_file, parse_options
    from training.config import ConfigError, TrainConfig
    from training.state import seed_rng

    given = parse_options(options)
    path, data = Path(given.pop("file")), choose_data(given.pop("data"))
    try:
        config = TrainConfig.from_mapping({name: value for name, value in given.items() if value is not None})
        module = load_model_file(path)
    except ConfigError as error:
        return {"error": str(error)}
    seed_rng(config.seed)
    model, built = module.build_model(), module.build_dataset(data)
    dataset = built[0] if isinstance(built, tuple) else built
    tables = {str(count): _table(module, config, model, dataset, count, memory_bytes) for count in devices}
    return {"tables": tables}


def _table(
    module: Any, config: Any, model: Any, dataset: Any, devices: int, memory_bytes: int | None
) -> dict[str, Any]:
    from training.config import ConfigError
    from training.plan.search import DoesNotFit
    from training.plan.tracing import CannotEstimate
    from training.trainer import Trainer

    try:
        table = Trainer(config).plan(
            model,
            dataset,
            devices=devices,
            memory_bytes=memory_bytes,
            loss_fn=getattr(module, "loss_fn", None),
            optimizer=getattr(module, "configure_optimizer", None),
        )
    except DoesNotFit as error:
        return error.table.to_json()
    except (ConfigError, CannotEstimate) as error:
        return {"devices": devices, "chosen": None, "why": str(error), "candidates": []}
    return table.to_json()


def _parse(arguments: Sequence[str] | None) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(
        prog="python -m training.plan", description="Show how a model would be trained.", allow_abbrev=False
    )
    parser.add_argument(
        "--devices", type=_count, nargs="+", default=[1], help="numbers of devices (default 1)"
    )
    parser.add_argument("--memory", type=_count_bytes, help="bytes of each device (default: what is free)")
    parser.add_argument("--out", type=Path, help="file for the answer (default: standard output)")
    return parser.parse_known_args(arguments)


def _count(text: str) -> int:
    value = int(text)
    if not 1 <= value <= MOST_DEVICES:
        raise argparse.ArgumentTypeError(f"must be from 1 to {MOST_DEVICES}")
    return value


def _count_bytes(text: str) -> int:
    value = int(float(text))
    if value < 1:
        raise argparse.ArgumentTypeError("must be a number of bytes, such as 80e9")
    return value


if __name__ == "__main__":
    sys.exit(main())
