"""Where packages come from: the operator's settings for uv, else for pip, else the usual index."""

import configparser
import functools
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from django.conf import settings

from orchestrator.devices import torch_builds

# What uv calls pip's settings.  pip takes the best version of all indexes, so uv is asked to do the same.
_FROM_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_NO_INDEX",
    "cert": "SSL_CERT_FILE",
}
_LISTS = frozenset({"extra-index-url", "find-links"})
_OF_UV = (
    "UV_DEFAULT_INDEX",
    "UV_INDEX_URL",
    "UV_INDEX",
    "UV_EXTRA_INDEX_URL",
    "UV_FIND_LINKS",
    "UV_NO_INDEX",
)
_PASSED_ON = ("SSL_CERT_FILE", "SSL_CERT_DIR", "NO_PROXY", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


def variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for uv; with ``BERTH_WHEELS`` nothing but that folder is asked."""
    passed = passed_on(environment)
    wheels = settings.ENVIRONMENT.wheels
    if wheels is not None:
        return {**passed, "UV_NO_INDEX": "1", "UV_FIND_LINKS": str(wheels)}
    of_uv = {name: value for name, value in environment.items() if name.startswith("UV_")}
    best = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    if any(name in of_uv for name in _OF_UV):
        return {**best, **passed, **of_uv}
    return {**best, **passed, **_of_pip(environment), **of_uv}


def torch_key(environment: Mapping[str, str] = os.environ) -> str:
    """What decides which build of torch is installed."""
    return f"{environment.get('UV_TORCH_BACKEND', '')} {settings.ENVIRONMENT.torch_index}".strip()


def for_torch(locked: str | None = None, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables for a torch other than the server's: the build that fits the driver, or the operator's choice.

    Args:
        locked: the version in a lock, such as 2.13.0+cu126; None while it is resolved.
    """
    known = variables(environment)
    if "UV_TORCH_BACKEND" in known or settings.ENVIRONMENT.wheels is not None:
        return {}
    index = settings.ENVIRONMENT.torch_index
    if "/" in index:
        return {"UV_INDEX": f"{index} {known.get('UV_INDEX', '')}".strip()}
    mirrored = any(name in known for name in _OF_UV)  # a mirror has the builds that it has
    build = index or ("default" if mirrored else _build_for_driver())
    if locked is not None and build != "default":
        build = locked.partition("+")[2]
    return {"UV_TORCH_BACKEND": build} if re.fullmatch(r"cpu|cu\d{3}", build) else {}


@functools.cache
def _build_for_driver() -> str:
    return torch_builds.choose(torch_builds.read_host()).name


def passed_on(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Of the server's environment, what a download needs: certificates and proxies."""
    names = [each for name in _PASSED_ON for each in (name, name.lower())]
    return {name: environment[name] for name in names if name in environment}


def readable() -> list[Path]:
    """Folders of this machine that packages come from; a sandbox has to show them."""
    named = variables()
    words = [
        word for name in (*_OF_UV, "SSL_CERT_FILE", "SSL_CERT_DIR") for word in _words(named.get(name, ""))
    ]
    paths = [Path(word.removeprefix("file://")) for word in words]
    return [path for path in paths if path.is_absolute() and path.exists()]


def _words(text: str) -> list[str]:
    return text.replace(",", " ").split()


def _of_pip(environment: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in _pip_files(environment):
        parser = configparser.RawConfigParser()
        try:
            parser.read(path, encoding="utf-8")
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip itself would say so
        for section in ("global", "install"):
            if parser.has_section(section):
                found |= {name: value for name, value in parser.items(section) if name in _FROM_PIP}
    for name in _FROM_PIP:
        if value := environment.get(f"PIP_{name.replace('-', '_').upper()}"):
            found[name] = value
    return {
        _FROM_PIP[name]: _value(name, value)
        for name, value in found.items()
        if _value(name, value) not in ("", "0")
    }


def _value(name: str, value: str) -> str:
    if name == "no-index":
        return "1" if value.strip().lower() in {"1", "true", "yes", "on"} else "0"
    separator = "," if name == "find-links" else " "  # as uv reads lists
    return separator.join(_words(value)) if name in _LISTS else value.strip()


def _pip_files(environment: Mapping[str, str]) -> list[Path]:
    """pip's configuration files, the later ones win."""
    named = environment.get("PIP_CONFIG_FILE", "")
    if named == os.devnull:
        return []
    home = Path(environment.get("HOME") or "/")
    own = Path(environment.get("XDG_CONFIG_HOME") or home / ".config")
    shared = [Path(each) for each in environment.get("XDG_CONFIG_DIRS", "/etc/xdg").split(":") if each]
    files = [*(folder / "pip/pip.conf" for folder in shared), Path("/etc/pip.conf")]
    files += [home / ".pip/pip.conf", own / "pip/pip.conf", Path(sys.prefix) / "pip.conf"]
    return [*files, *([Path(named)] if named else [])]
