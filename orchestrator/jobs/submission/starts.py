"""Checks that a module or a command can start, as far as the upload and this server tell before the start."""

import difflib
import os
import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path, PurePosixPath

from orchestrator.exceptions import Impossible, Malformed, Sentence
from orchestrator.jobs.launch import isolation, own_programs, start
from orchestrator.jobs.launch.own_programs import text_of
from orchestrator.models import Pool
from orchestrator.spec.job_spec import DEFAULT_SCRIPT, JobSpec
from orchestrator.store.bundles.scripts import SHELL_SUFFIXES

MOST_WORDS_BEFORE_SCRIPT = 3  # "bash -e run.sh"
_IN_BACKGROUND = re.compile(r"^(?![ \t]{0,99}#)[^\n]*[^&|>\s][ \t]{0,9}&[ \t]{0,99}$", re.MULTILINE)
_WAITS = re.compile(r"(?:^|[;&|])[ \t]{0,99}wait\b", re.MULTILINE)
# A line that starts a stage, and does not say what happens if it fails. One that is indented belongs to an if or a loop.
_RUNS_PYTHON = re.compile(
    r"^(?:[A-Z_][A-Z0-9_]{0,99}=\S{0,200} ){0,9}(?:python[\d.]{0,5}|torchrun|accelerate|deepspeed|uv run)[ \t]"
    r"(?![ \t]{0,9}(?:python[\d.]{0,5} )?(?:--version|-VV?)(?:\s|$))(?![^\n]*(?:&&|\|\||&[ \t]{0,99}$))",
    re.MULTILINE,
)
_ENDS_AT_FAILURE = re.compile(
    r"(?<![\w-])set[ \t][^\n;]{0,60}?(?:(?<=[ \t])-[A-Za-z]{0,9}e|errexit)|\A#![^\n]{0,99} -[a-z]{0,9}e|\$\?|\btrap\b"
)
_COMMENT = re.compile(r"^[ \t]{0,99}#(?!!)[^\n]*", re.MULTILINE)
_OPTION_E = re.compile(r"-[a-z]{0,9}e[a-z]{0,9}$")
TEMPORARY = PurePosixPath("/tmp")  # noqa: S108 -- named, not used
_FILE_URL = r"(?:file:(?://(?:localhost)?)?)?"
_IN_OPTION = re.compile(rf"(?:^|[=,\[(\"']){_FILE_URL}({TEMPORARY}(?:/[^,\])\"']*)?)(?=[,\])\"']|$)")
_IN_SHELL_LINE = re.compile(
    rf"(?:^|[\s=<>,(\"']){_FILE_URL}({TEMPORARY}(?:/[^\s,;&|<>)\"'`]*)?)(?=[\s,;&|<>)\"'`]|$)"
)
_SHELL_LINE_NEXT = re.compile(r"-[a-z]{0,9}c")  # bash -c, sh -lc
_SHELL = re.compile(r"(?:ba|z|da|k)?sh")
# Where processes of one job meet, and the programs' own scratch: in the job's /tmp as well as elsewhere.
_HARMLESS = r"-{0,2}(?:init[-_]method|dist[-_]url|rdzv[-_][a-z_]{1,20})"
_HARMLESS_OPTION = re.compile(_HARMLESS)
_HARMLESS_PART = re.compile(rf"(?:\bTMPDIR=|{_HARMLESS}[= ])\S*")
# Python files of projects that no job starts.
_NO_SCRIPTS = frozenset({"setup.py", "conftest.py", "noxfile.py", "__init__.py"})
MOST_CHOICES = 3
_SHELLS = {".py": "python", ".sh": "bash"}


def only_script(paths: Sequence[str]) -> str:
    """The only script at the top level, or train.py if there are several; empty if nothing says which."""
    scripts = _scripts(paths)
    top = [path for path in scripts if "/" not in path] or scripts
    if len(top) == 1:
        return top[0]
    return DEFAULT_SCRIPT if DEFAULT_SCRIPT in top else ""


def _scripts(paths: Collection[str]) -> list[str]:
    """The Python files that may be meant to start."""
    names = ((path, PurePosixPath(path)) for path in sorted(paths))
    return [path for path, name in names if name.suffix == ".py" and name.name not in _NO_SCRIPTS]


def no_script(spec: JobSpec, paths: Collection[str], bundle: Path) -> Sentence:
    """The sentence for an upload without the script that the job starts: with what it has instead, if that is clear.

    Args:
        bundle: the folder of the job's code.
    """
    script = spec.entrypoint or DEFAULT_SCRIPT
    programs = own_programs.declared(bundle, spec.folder)
    of_name = [path for path in _scripts(paths) if PurePosixPath(path).name == PurePosixPath(script).name]
    scripts = of_name or [path for path in _scripts(paths) if "/" not in path]
    choices = [f"--command {shlex.quote(program)}" for program in programs[:MOST_CHOICES]]
    choices += [_start_of(path, paths) for path in scripts[:MOST_CHOICES]]
    if not choices:
        return Sentence(
            "The upload has no file {entrypoint!r}; name the script to run as entrypoint.", entrypoint=script
        )
    return Sentence(
        "The upload has no file {entrypoint!r}; name the script to run as entrypoint. It has: {choices}.",
        entrypoint=script,
        choices="; ".join(choices),
    )


def _start_of(path: str, paths: Collection[str]) -> str:
    """How a Python file starts: as a module where it belongs to a package, whose files it may import by a dot."""
    place = PurePosixPath(path)
    if f"{place.parent}/__init__.py" not in paths:
        return f"-e {shlex.quote(path)}"
    package = place.parent
    while f"{package.parent}/__init__.py" in paths:
        package = package.parent
    module = ".".join(place.relative_to(package.parent).with_suffix("").parts)
    root = (
        ""
        if package.parent in (PurePosixPath(), PurePosixPath(start.SRC))
        else f" --workdir {shlex.quote(str(package.parent))}"
    )
    return f"-m {shlex.quote(module)}{root}"


def check_folder(spec: JobSpec, paths: Collection[str]) -> None:
    """Check that the upload has the folder that the job runs in.

    Raises:
        Malformed: no file of the upload is in it.
    """
    if spec.folder != "." and not any(path.startswith(f"{spec.folder}/") for path in paths):
        problem = Sentence("The upload has no folder {folder!r} to run in.", folder=spec.folder)
        raise Malformed(problem, fields={"workdir": [problem]})


def check_module(module: str, paths: Collection[str], folder: str = ".") -> list[str]:
    """Check that the upload can have the module; a package that is installed wins over a folder without __init__.py.

    Args:
        folder: of the upload, in which the job runs.

    Returns: a warning where only an installed package can have it.

    Raises:
        Malformed: the upload has its package, but not the module.
    """
    prefix = "" if folder == "." else f"{folder}/"
    projects = [
        each for each in {prefix, ""} if any(f"{each}{name}" in paths for name in start.PROJECT_FILES)
    ]
    roots = [prefix, *(f"{each}{start.SRC}/" for each in projects)]
    top, place = module.partition(".")[0], module.replace(".", "/")
    has_module = any({f"{root}{place}.py", f"{root}{place}/__main__.py"} & set(paths) for root in roots)
    holder = next(
        (root for root in roots if {f"{root}{top}.py", f"{root}{top}/__init__.py"} & set(paths)), None
    )
    has_package, place = holder is not None, f"{holder or ''}{place}"
    if has_package and not has_module:
        sentence = Sentence(
            "The upload has {top!r}, but neither {place}.py nor {place}/__main__.py; name the module to run as after python -m.",
            top=top,
            place=place,
        )
        raise Malformed(sentence, fields={"module": [sentence]})
    if has_module:
        return []
    return [
        Sentence(
            "Module {module!r} is not in the upload, so it must be installed in the job's Python.",
            module=module,
        )
    ]


def check_command(spec: JobSpec, paths: Collection[str], bundle: Path) -> None:
    """Check that the program of a command is there.

    Args:
        bundle: the folder of the job's code.

    Raises:
        Impossible: neither the upload nor this server has it.
        CannotLaunch: the pool's interpreter is gone.
    """
    program = spec.command[0]
    if "{" in program:  # a placeholder, filled at the launch
        return
    if own_programs.python_command(spec.command, spec.folder, bundle) is not None:
        return
    problem = _why_not_there(program, paths, spec)
    if problem is not None:
        raise Impossible(problem, fields={"command": [problem]})


def background_warning(spec: JobSpec, bundle: Path) -> list[str]:
    """A warning where the shell script of a command leaves a program in the background: the job ends before it."""
    for word in spec.command[:MOST_WORDS_BEFORE_SCRIPT]:
        if PurePosixPath(word).suffix not in SHELL_SUFFIXES or word.startswith("/"):
            continue
        text = text_of(bundle, f"{spec.folder}/{word}")
        if _IN_BACKGROUND.search(text) and not _WAITS.search(text):
            sentence = Sentence(
                "{word} starts a program in the background and does not wait for it: the job ends with the script, and "
                "the program with the job. Leave out the & at the end of its line, or end the script with: wait",
                word=word,
            )
            return [sentence]
    return []


def shell_warnings(spec: JobSpec, bundle: Path) -> list[str]:
    """Warnings about the shell script of a command: line ends of Windows, and failures that it would pass over."""
    words = spec.command[:MOST_WORDS_BEFORE_SCRIPT]
    for word in words:
        if PurePosixPath(word).suffix not in SHELL_SUFFIXES or word.startswith("/"):
            continue
        script = text_of(bundle, f"{spec.folder}/{word}")
        if "\r\n" in script:
            return [
                Sentence(
                    "{script} has Windows line endings, which the shell reads as part of each line; convert it first: sed -i 's/\\r$//' {script}",
                    script=word,
                )
            ]
        script_lines = _COMMENT.sub("", script.replace("\\\n", " "))
        ends_at_failure = _ENDS_AT_FAILURE.search(script_lines) or any(
            _OPTION_E.match(each) for each in words
        )
        if len(_RUNS_PYTHON.findall(script_lines)) > 1 and not ends_at_failure:
            return [
                Sentence(
                    "{script} carries on when a program fails, and the job succeeds if the last one does. To stop at the first failure, add at the top: set -e",
                    script=word,
                )
            ]
    return []


def temporary_warning(spec: JobSpec) -> list[str]:
    """A warning where an option names a place in /tmp, of which a job in a sandbox has one of its own."""
    words = [*spec.command, *spec.args] if spec.command else spec.args
    place = next(_temporary_places(words), None)
    if place is None or not isolation.level():
        return []
    own = place.relative_to(TEMPORARY)
    return [
        Sentence(
            "A job has a {tmp} of its own: it does not see the server's, and what it writes there is gone at its end. "
            "Instead of {place} name a folder of the job ({folder}) to keep results, or a dataset to read.",
            tmp=str(TEMPORARY),
            place=str(place),
            folder="output" if own == PurePosixPath() else str(own),
        )
    ]


def _temporary_places(words: Sequence[str]) -> Iterator[PurePosixPath]:
    """The paths in /tmp that words name: as a whole, behind a =, in a list, or anywhere in a line for a shell."""
    for at, (before, word) in enumerate(zip(["", *words], words, strict=False)):
        if _HARMLESS_OPTION.fullmatch(before):
            continue
        is_line = _SHELL_LINE_NEXT.fullmatch(before) and any(
            _SHELL.fullmatch(PurePosixPath(each).name) for each in words[:at]
        )
        pattern = _IN_SHELL_LINE if is_line else _IN_OPTION
        yield from (PurePosixPath(match[1]) for match in pattern.finditer(_HARMLESS_PART.sub("", word)))


def _why_not_there(program: str, paths: Collection[str], spec: JobSpec) -> Sentence | None:
    if program.startswith("/"):
        there = Path(program).is_file() and os.access(program, os.X_OK)
        if there:
            return None
        return Sentence("This server has no program {program}; check its path.", program=program)
    if "/" in program:
        path = os.path.normpath(f"{spec.folder}/{program}")
        if path in paths:
            return None
        return Sentence(
            "The upload has no file {path!r}, with which the command begins; check its path.", path=path
        )
    folders = start.program_folders(start.python_of(Pool.objects.get(pk=spec.pool), spec))
    if start.find_program(program, folders) is not None:
        return None
    return Sentence(
        "There is no program {program!r}, neither beside the job's Python ({folder}) nor among the system's "
        "programs. {hint}",
        program=program,
        folder=folders[0],
        hint=_hint(program, paths, folders),
    )


def _hint(program: str, paths: Collection[str], folders: Sequence[str]) -> Sentence:
    """What was meant, perhaps: a file of the upload, or a program of a similar name."""
    if program in paths:
        shell = _SHELLS.get(PurePosixPath(program).suffix)
        command = f"{shell} {shlex.quote(program)}" if shell else shlex.quote(f"./{program}")
        return Sentence("The upload has it: write {command}.", command=command)
    names = {entry for folder in folders if Path(folder).is_dir() for entry in os.listdir(folder)}  # noqa: PTH208 -- names alone
    near = difflib.get_close_matches(program, names, n=1, cutoff=0.8)
    if near:
        return Sentence("Was {program!r} meant?", program=near[0])
    return Sentence("If a package provides it, add --with PACKAGE.")
