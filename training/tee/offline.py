"""W&B without a key."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

# With one of these the person chose how W&B runs.
WANDB_CHOICES: Final = (
    "WANDB_API_KEY",
    "WANDB_IDENTITY_TOKEN_FILE",
    "WANDB_MODE",
    "WANDB_DISABLED",
    "WANDB_ANONYMOUS",
)


class OfflineRuns:
    """Makes W&B keep its runs on disk while nobody gave it a key: it would ask for one, and nobody could answer."""

    def __init__(self, wandb: ModuleType) -> None:
        self._login, self._init = wandb.login, wandb.init
        self._has_key = False
        self._set_mode = False
        for name, ours in (("login", self._wrapped_login), ("init", self._wrapped_init)):
            setattr(wandb, name, _like(getattr(wandb, name), ours))

    def _wrapped_login(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("key") or any(isinstance(each, str) for each in args):
            self._has_key = True
            if self._set_mode:
                os.environ.pop("WANDB_MODE", None)
        elif self._is_without_key():
            os.environ["WANDB_MODE"] = "offline"
            self._set_mode = True
        return self._login(*args, **kwargs)

    def _wrapped_init(self, *args: Any, **kwargs: Any) -> Any:
        settings = kwargs.get("settings")
        theirs = settings if isinstance(settings, dict) else getattr(settings, "__dict__", {})
        is_anonymous = kwargs.get("anonymous") in {"allow", "must"}
        is_free = not (kwargs.get("mode") or is_anonymous or theirs.get("api_key"))
        if is_free and theirs.get("mode") in {None, "online"} and self._is_without_key():
            kwargs["mode"] = "offline"
        return self._init(*args, **kwargs)

    def _is_without_key(self) -> bool:
        return not (
            self._has_key or any(name in os.environ for name in WANDB_CHOICES) or _is_known_to_wandb()
        )


def _like(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """A function that has the name and the signature of the original."""

    @functools.wraps(original)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    return wrapped


def _is_known_to_wandb() -> bool:
    """Whether a file holds a key for W&B's server, or a mode."""
    server = os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai").partition("://")[2].partition("/")[0]
    home = os.path.expanduser("~")  # noqa: PTH111 -- Path.home() raises without a home
    netrcs = [os.environ.get("NETRC", ""), f"{home}/.netrc", f"{home}/_netrc"]
    return any(server in _text(path) for path in netrcs) or any(
        "mode" in _text(path) for path in (f"{home}/.config/wandb/settings", "wandb/settings")
    )


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
