"""A sink that writes TensorBoard event files."""

from collections.abc import Mapping
from pathlib import Path


class TensorBoardSink:
    """Writes every reported number to an event file in ``folder``: ``reporter.add_sink(TensorBoardSink("runs"))``.

    Raises:
        ImportError: the ``tensorboard`` package is missing; the message says how to install it.
    """

    def __init__(self, folder: Path | str) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ImportError(
                "TensorBoard files need the tensorboard package: python -m pip install tensorboard"
            ) from error
        self._writer = SummaryWriter(str(folder), flush_secs=2)

    def show(self, step: int, values: Mapping[str, int | float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()
