"""Checks uploaded scripts: refuses what is not text, and warns about what cannot run."""

import io
import re
import shlex
import subprocess
import sys
import threading
import tokenize
import warnings
from pathlib import PurePosixPath

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.store.bundles.names import printable, shadowing_warnings

PLAIN_BYTES = 64 << 10
PLAIN_NESTING = 40
LONG_CHAIN = re.compile(rb"[-+~\s]{400}|(?:\bnot\s+){100}|(?:\blambda\b[^\n]{0,20}){40}")
PARSE_S = 5.0
SHELL_SUFFIXES = (".sh", ".bash", ".zsh", ".sbatch", ".slurm")
OTHER_LANGUAGES = {
    ".pl": "perl", ".jl": "julia", ".r": "Rscript", ".js": "node", ".lua": "lua", ".rb": "ruby", ".go": "go run",
}  # fmt: skip
COMPILED_LANGUAGES = (".c", ".cc", ".cpp", ".cxx", ".cu", ".rs", ".java", ".f90")
NO_SCRIPTS = (".json", ".yaml", ".yml", ".toml", ".md", ".csv", ".ini", ".cfg")
MAKEFILES = ("Makefile", "makefile", "GNUmakefile")
# Programs that certainly read no Python, with their versions: "lua5.4".
OTHER_INTERPRETERS = re.compile(
    r"(?:perl|julia|Rscript|node|nodejs|deno|bun|lua|luajit|ruby|php|make|gmake|awk|gawk|tclsh|groovy|octave"
    r"|ba?sh|zsh|dash|ksh|mksh|fish|csh|tcsh|pwsh|sbatch)[\d.]{0,9}"
)
FIRST_LINE_BYTES = 200
# As nbconvert writes what stood behind "!" and "%" in a notebook.
OF_NOTEBOOK = re.compile(rb"(?m)^get_ipython\(\)\.\w")
SHELL_LINE = re.compile(rb"#!\s?\S{0,80}[/ ](?:ba|z|da)?sh\b")
# Other binary files are recognised by their NUL bytes or their encoding.
BINARY_HEADS = {
    b"\x7fELF": "a program",
    b"%PDF": "a PDF",
    b"PK\x03\x04": "a zip archive",
    b"\x1f\x8b": "a gzip file",
}
PARSER = """
import resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (3, 3))
resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
import warnings
warnings.simplefilter("ignore")
try:
    compile(sys.stdin.buffer.read(), "script", "exec", dont_inherit=True)
except SyntaxError as error:
    print(f"line {error.lineno}: {error.msg}"[:300].encode("ascii", "replace").decode())
except (RecursionError, MemoryError, ValueError, OverflowError) as error:
    print("it is nested too deeply to be checked")
"""

_filters = threading.Lock()  # catch_warnings replaces a list of the whole process


def check_script(name: str, data: bytes, *, in_archive: bool = False) -> list[str]:
    """Warnings about what will probably go wrong with a script; empty where nothing will.

    Raises:
        Malformed: empty, binary, not UTF-8, a notebook or a shell script; the sentence has the offset, or what to do.
    """
    refuse_unreadable(name, data, in_archive=in_archive)
    if PurePosixPath(name).suffix == ".ipynb":
        raise Malformed(
            Sentence(
                "'{printable}' is a notebook, which is opened in a session; to run it as a job: jupyter nbconvert --to script '{printable}'",
                printable=printable(name),
            )
        )
    if PurePosixPath(name).suffix.lower() in NO_SCRIPTS:
        raise Malformed(
            Sentence(
                "'{name}' is not a script; name the one that starts: berth run train.py", name=printable(name)
            )
        )
    problems = shadowing_warnings([PurePosixPath(name).name])
    if OF_NOTEBOOK.search(data):
        problems.append(
            Sentence(
                "'{name}' was made from a notebook and calls get_ipython(), which does not exist in a job: remove the lines that began with ! or %, or run it with IPython: berth run --with ipython -- ipython {quoted}",
                name=printable(name),
                quoted=shlex.quote(printable(name)),
            )
        )
    if problem := _syntax_problem(data):
        _refuse_shell_script(name, data)
        _refuse_other_language(name, data)
        said = Sentence(
            "'{name}' does not look like Python that runs: {problem}.",
            name=printable(name),
            problem=problem.removesuffix("?").rstrip("."),
        )
        problems.insert(0, said)
    return problems


def _refuse_shell_script(name: str, data: bytes) -> None:
    """Refuse what is not Python and says so by its name or its first line."""
    if PurePosixPath(name).suffix in SHELL_SUFFIXES or SHELL_LINE.match(data):
        raise Malformed(
            Sentence(
                "'{printable}' is a shell script; start it as a command: berth run -- bash '{printable}'",
                printable=printable(name),
            )
        )


def _refuse_other_language(name: str, data: bytes) -> None:
    """Refuse a program in another language, by its name or its first line."""
    path = PurePosixPath(name)
    if path.suffix.lower() in COMPILED_LANGUAGES:
        raise Malformed(
            Sentence(
                "'{name}' has to be compiled; upload its folder with a script that does it, and start that: berth run -- bash build.sh",
                name=printable(name),
            )
        )
    command = "make" if path.name in MAKEFILES else None
    if interpreter := OTHER_LANGUAGES.get(path.suffix.lower()) or _interpreter(data):
        command = f"{interpreter} '{printable(name)}'"
    if command is not None:
        raise Malformed(
            Sentence(
                "'{name}' is not Python; start it as a command: berth run -- {command}",
                name=printable(name),
                command=command,
            )
        )


def _interpreter(data: bytes) -> str | None:
    """The program that the first line names, if it is of another language."""
    if not data.startswith(b"#!"):
        return None
    words = data[2:FIRST_LINE_BYTES].partition(b"\n")[0].decode(errors="replace").split()
    if words and PurePosixPath(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    program = PurePosixPath(words[0]).name if words else ""
    return program if OTHER_INTERPRETERS.fullmatch(program) else None


def refuse_unreadable(name: str, data: bytes, *, in_archive: bool = False) -> None:
    """Refuse a script that is not UTF-8 text.

    Args:
        in_archive: a packed script may declare another encoding in a comment (PEP 263).

    Raises:
        Malformed: with the byte offset at which reading failed.
    """
    if not data:
        raise Malformed(
            Sentence("'{printable}' is empty; choose the script again.", printable=printable(name))
        )
    for head, kind in BINARY_HEADS.items():
        if data.startswith(head):
            raise Malformed(
                Sentence(
                    "'{printable}' is {kind}, not a script; upload a Python file.",
                    printable=printable(name),
                    kind=kind,
                )
            )
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise Malformed(
            Sentence(
                "'{printable}' is UTF-16 (seen at byte 0); save it as UTF-8 and try again.",
                printable=printable(name),
            )
        )
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        if in_archive and _is_in_declared_encoding(data):
            return
        raise Malformed(
            Sentence(
                "'{printable}' is not UTF-8: byte 0x{data:02x} at offset {start}; save it as UTF-8 and try again.",
                printable=printable(name),
                data=data[error.start],
                start=error.start,
            )
        ) from error
    if (at := data.find(b"\0")) >= 0:
        raise Malformed(
            Sentence(
                "'{printable}' has a NUL byte at offset {at}; it is not a text file, or is UTF-16.",
                printable=printable(name),
                at=at,
            )
        )


def _is_in_declared_encoding(data: bytes) -> bool:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode(encoding)
    except (SyntaxError, LookupError, ValueError):
        return False
    return b"\0" not in data


def _syntax_problem(data: bytes) -> str | None:
    text = data.removeprefix(b"\xef\xbb\xbf")
    if len(text) > PLAIN_BYTES or _nesting(text) > PLAIN_NESTING or LONG_CHAIN.search(text):
        return _parse_apart(text)
    try:
        with _filters, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(text, "script", "exec", dont_inherit=True)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (RecursionError, MemoryError, ValueError, OverflowError):
        return "it is nested too deeply to be checked"
    return None


def _nesting(text: bytes) -> int:
    """An upper bound of how deep brackets are nested; those in strings count too."""
    depth = deepest = 0
    for bracket in re.findall(rb"[(\[{]|[)\]}]", text):
        depth += 1 if bracket in b"([{" else -1
        deepest = max(deepest, depth)
    return deepest


def _parse_apart(text: bytes) -> str | None:
    """Parse in a short-lived process: deep nesting can exhaust the parser's stack and crash its process."""
    try:
        parser = subprocess.run(  # noqa: S603 - our own program; the script is its input
            [sys.executable, "-I", "-S", "-c", PARSER],
            input=text,
            capture_output=True,
            timeout=PARSE_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "it takes too long to be checked"
    if parser.returncode != 0:
        return "it is nested too deeply to be checked"
    return parser.stdout.decode("ascii", "replace").strip() or None
