"""Builds the small plotly.js that the pages load from the full one in the Python package ``plotly``.

The whole bundle is 4.8 MB, three quarters of which draw maps, 3D and what we never use.  It is a list of
modules, ``var NAME=wrapper((exports,module)=>{...});``, each run at its first call, and a last one that registers
the kinds of traces.  We keep the kinds in ``KINDS`` and what they reach.
"""

import logging
import re
from functools import cache
from pathlib import Path

import plotly

logger = logging.getLogger(__name__)

WHOLE = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
KINDS = ("bar",)  # scatter is part of the core

_NAME = r"[\w$]+"
_WRAPPER = re.compile(rf"({_NAME})=\(e,t(?:,r)?\)=>\(\)=>")  # for CommonJS, and for ECMAScript modules
_REGISTER = re.compile(rf"var {_NAME}=({_NAME})\(\);{_NAME}\.register\(\[((?:{_NAME}\(\),?)+)\]\)")
_CALL = re.compile(rf"(?<![\w$.])({_NAME})\(\)")
_INNER = re.compile(rf"[,;\s]({_NAME})={_NAME}\(\(\)=>{{")
_KIND = re.compile(r'moduleType:"trace",name:"(\w+)"')
_MAP_STYLE = re.compile(
    rf"(var {_NAME}={_NAME}\()\(\)=>{{\(function\(\){{if\(!document\.getElementById[^`]*`\.maplibregl"
)


class UnknownShape(Exception):
    """The bundle does not have the structure that this module knows."""


def sources() -> str:
    """A stamp that changes with the package's file and with this module, whichever is installed or replaced."""
    states = [(path, path.stat()) for path in (WHOLE, Path(__file__))]
    # An installer may set any time of writing, but not the time of the last change.
    return " ".join(
        f"{path} {state.st_size} {state.st_mtime_ns} {state.st_ctime_ns}" for path, state in states
    )


@cache
def read_bundle() -> bytes:
    """The reduced bundle, or the full one if it cannot be reduced: pages work with either.

    Reduced, ``Plotly`` is ``{parts, start}``: functions to be called in order, a few at a time so that
    the page stays responsive, then ``start()`` returns the library.
    """
    text = WHOLE.read_text()
    try:
        return reduce(text).encode()
    except UnknownShape as error:
        logger.warning("plotly.js is served whole (%s); pages with charts load 0.8 MB more.", error)
        return text.encode()


def reduce(text: str) -> str:
    """The bundle with only the core and ``KINDS``.

    Raises:
        UnknownShape: it is not a list of modules with a registration at its end.
    """
    modules, head, tail = _split(text)
    entry = next(reversed(modules))
    register = _REGISTER.search(modules[entry])
    if register is None:
        raise UnknownShape("its last module registers nothing")
    refers = _references(modules)
    chosen = [name for name in _CALL.findall(register[2]) if _kind_of(name, modules, refers) in KINDS]
    if len(chosen) != len(KINDS):
        raise UnknownShape(f"it registers {len(chosen)} of the {len(KINDS)} kinds of traces")
    modules[entry] = modules[entry].replace(register[2], ",".join(f"{name}()" for name in chosen))
    refers[entry] = {register[1], *chosen}
    kept = _reached(entry, refers)
    parts = [name for name in modules if name in kept]
    if not tail.startswith(f"return {entry}();"):
        raise UnknownShape("it does not end with its last module")
    # esbuild writes each module after those it needs, so this order satisfies every dependency.
    start = f"return {{parts:[{','.join(parts[:-1])}],start:{entry}}};"
    return head + "".join(modules[name] for name in parts) + start + tail.removeprefix(f"return {entry}();")


def _split(text: str) -> tuple[dict[str, str], str, str]:
    """The modules by name in order, and the text before and after them."""
    wrappers = "|".join(re.escape(name) for name in _WRAPPER.findall(text[:20_000]))
    starts = list(re.finditer(rf"(?<=;)var ({_NAME})=(?:{wrappers})\(", text)) if wrappers else []
    if len(starts) < 2:
        raise UnknownShape("it has no modules")
    end = text.find("});return ", starts[-1].start()) + len("});")
    if end < starts[-1].start():
        raise UnknownShape("its last module does not end")
    bounds = [hit.start() for hit in starts] + [end]
    modules = {hit[1]: text[hit.start() : bounds[at + 1]] for at, hit in enumerate(starts)}
    if len(modules) != len(starts) or not all(body.endswith("});") for body in modules.values()):
        raise UnknownShape("its modules have no clear ends")
    for name, body in modules.items():
        if style := _MAP_STYLE.match(body):
            modules[name] = f"{style[1]}()=>{{}});"
    return modules, text[: bounds[0]], text[end:]


def _references(modules: dict[str, str]) -> dict[str, set[str]]:
    """The modules that each one may call; a module nested in another counts as the outer one."""
    home = {name: name for name in modules}
    for name, body in modules.items():
        for inner in _INNER.findall(body):
            home.setdefault(inner, name)
    return {
        name: {home[called] for called in _CALL.findall(body) if called in home} - {name}
        for name, body in modules.items()
    }


def _kind_of(name: str, modules: dict[str, str], refers: dict[str, set[str]]) -> str:
    for each in (name, *refers[name]):
        if hit := _KIND.search(modules[each]):
            return hit[1]
    return ""


def _reached(entry: str, refers: dict[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    ahead = [entry]
    while ahead:
        name = ahead.pop()
        if name not in reached:
            reached.add(name)
            ahead += refers[name]
    return reached
