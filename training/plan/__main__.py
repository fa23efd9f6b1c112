"""``python -m training.plan FILE --devices 1 2 4``: list the ways to train a model as JSON, without training it.

Also takes the options of ``python -m training``.  For each number of devices, the answer contains the table of
candidates with memory, step time and the reason against each, or the reason why there is no plan.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Never, TypedDict

if TYPE_CHECKING:
    from training.plan.table import TableJson
    from training.plan.training import Training

MOST_DEVICES = 4096


class NoTableJson(TypedDict):
    """The answer for a number of devices without a plan."""

    devices: int
    chosen: None
    why: str
    candidates: list[Never]


class TablesJson(TypedDict):
    """The tables, by number of devices."""

    tables: "dict[str, TableJson | NoTableJson]"


class ErrorJson(TypedDict):
    """The reason why the file or its settings cannot be used."""

    error: str


def main(arguments: Sequence[str] | None = None) -> int:
    # Started by path, Python puts this folder first on sys.path; its modules must not hide others.
    sys.path[:] = [entry for entry in sys.path if entry != str(Path(__file__).parent)]
    options, rest = _parse(arguments)
    answer = json.dumps(plan_file(rest, options.devices, options.memory))
    if options.out is None:
        print(answer)  # noqa: T201 -- the answer of the command
    else:
        options.out.write_text(answer)
    return 0


def plan_file(
    options: Sequence[str], devices: Sequence[int], memory_bytes: int | None
) -> "TablesJson | ErrorJson":
    """Plan the file's model: ``{"tables": {devices: table}}``, or ``{"error": ...}`` if file or settings are wrong."""
    from training.config import ConfigError, TrainConfig
    from training.config.model_file import choose_data, load_model_file, parse_options
    from training.plan.training import Training
    from training.rng import seed_rng
    from training.strategies.choose import choose_device

    values = parse_options(options)
    path, data = Path(values.pop("file")), choose_data(values.pop("data"))
    try:
        config = TrainConfig.from_mapping(
            {name: value for name, value in values.items() if value is not None}
        )
        module = load_model_file(path)
    except ConfigError as error:
        return {"error": str(error)}
    seed_rng(config.seed)
    model, built = module.build_model(), module.build_dataset(data)
    dataset = built[0] if isinstance(built, tuple) else built
    training = Training.of(
        config,
        model,
        dataset,
        choose_device(),
        getattr(module, "loss_fn", None),
        getattr(module, "configure_optimizer", None),
    )
    return {"tables": {str(count): _table(training, count, memory_bytes) for count in devices}}


def _table(training: "Training", devices: int, memory_bytes: int | None) -> "TableJson | NoTableJson":
    from training.config import ConfigError
    from training.plan.choose import make_table
    from training.plan.search import DoesNotFit
    from training.plan.tracing import CannotEstimate

    try:
        table = make_table(training, devices, memory_bytes=memory_bytes)
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
    parser.add_argument("--memory", type=_count_bytes, help="bytes of each device (default: the free memory)")
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
