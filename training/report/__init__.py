"""Report values of a step to Berth without slowing the step; see ``training.events`` for the lines.

``training.report(step=10, loss=loss)`` works beside ``from training.report import report``: this
package can be called.
"""

import sys
from types import ModuleType

from training.report.reporter import Reporter, default_reporter, event, heartbeat, report

__all__ = ["Reporter", "default_reporter", "event", "heartbeat", "report"]


class _CallablePackage(ModuleType):
    # The import system binds this package to ``training.report``, over any function of that name.
    def __call__(self, step: int | None = None, **values: object) -> None:
        report(step, **values)


sys.modules[__name__].__class__ = _CallablePackage
