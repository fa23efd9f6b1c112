"""Reports values of a step to Berth without slowing the step; ``training.events`` defines the lines.

This package is callable: ``training.report(step=10, loss=loss)`` works as well as
``from training.report import report``.
"""

import sys
from types import ModuleType

from training.report.reporter import Reporter, default_reporter, event, heartbeat, report

__all__ = ["Reporter", "default_reporter", "event", "heartbeat", "report"]


class _CallablePackage(ModuleType):
    # The import system binds this package to ``training.report``, replacing any function of that name.
    def __call__(self, step: int | None = None, **values: object) -> None:
        report(step, **values)


sys.modules[__name__].__class__ = _CallablePackage
