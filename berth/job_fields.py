"""The one table of a job's fields: what each is called, what it means, and where people set it.

The server's ``JobSpec`` has the rules (types, limits, defaults) under the same names. REST's schema, the options of
``berth run``, the submit form, the job page, Compare and the reference are made from this table or tested against it.
It lives in the client's package because the command line may import nothing of the server's.
"""

import shlex
from collections.abc import Mapping, Sequence

from berth.field import JobField, Json, option_words

FIELDS: tuple[JobField, ...] = (
    JobField(
        "name",
        "Name",
        "Name of the job",
        "tiny-gpt",
        empty="the script's name",
        option="--name -n",
        form="main",
        changeable=True,
    ),
    JobField(
        "kind",
        "Kind",
        "Training script, model that Berth trains, or session",
        "script",
        "choice",
        choices=("script", "model", "session"),
        option="--model",
        option_help="File that only defines a model; Berth trains it",
        commands="run plan",
        setting=True,
    ),
    JobField(
        "entrypoint",
        "Script to run",
        "Script inside an archive or folder",
        "fit.py",
        empty="the only script, else train.py",
        option="--entrypoint -e",
        commands="run",
        setting=True,
    ),
    JobField(
        "module",
        "Module to run",
        "Module to run as with python -m",
        "pkg.train",
        empty="a script or a command runs",
        option="--module -m",
        setting=True,
    ),
    JobField(
        "command",
        "Command to run",
        "Program with arguments, run once with all devices",
        ["accelerate", "launch", "train.py"],
        "arguments",
        empty="a script or a module runs",
        option="--command",
        metavar="WORDS",
        setting=True,
    ),
    JobField(
        "program",
        "Program of the session",
        "Program that a session runs instead of a script",
        "jupyter",
        "choice",
        empty="a script, a module or a command runs",
        choices=("jupyter",),
        option="--program",
        metavar="jupyter",
        commands="run plan",
        form="",
        setting=True,
    ),
    JobField(
        "workdir",
        "Working folder",
        "Folder of the upload to run in",
        "src",
        empty="the upload's own folder",
        option="--workdir",
        metavar="FOLDER",
        setting=True,
    ),
    JobField(
        "args",
        "Arguments",
        "Arguments of the script, as on a command line",
        ["--lr", "3e-4"],
        "arguments",
        form="main",
        setting=True,
    ),
    JobField(
        "resume_args",
        "Arguments to resume",
        "Arguments added from the second attempt on",
        ["--resume", "{checkpoint}"],
        "arguments",
        option="--resume-args",
        metavar="WORDS",
    ),
    JobField(
        "datasets",
        "Datasets",
        "Datasets, or addresses to fetch from",
        ["shakespeare@1", "hf://datasets/stanfordnlp/imdb"],
        "names",
        option="--data -d",
        metavar="NAME[@VERSION]|ADDRESS",
        form="own",
        setting=True,
    ),
    JobField(
        "pool",
        "Pool",
        "Pool of devices",
        "a100",
        empty="default",
        option="--pool",
        form="own",
        setting=True,
    ),
    JobField(
        "gpus",
        "Devices",
        "Number of devices, auto, 2..8 or <=4; 0: CPU slot",
        2,
        "devices",
        empty="1",
        option="-g --gpus",
        commands="run plan again resume",
        form="own",
        setting=True,
    ),
    JobField(
        "min_gpus",
        "Fewest devices",
        "Fewest devices to continue with if some fail",
        1,
        "count",
        empty="all of them",
        option="--min-gpus",
        setting=True,
    ),
    JobField(
        "max_gpus",
        "Most devices",
        "Most devices; the scheduler chooses the number",
        8,
        "count",
        empty="the number of devices is fixed",
        option="--max-gpus",
        setting=True,
    ),
    JobField(
        "elastic",
        "Grow and shrink",
        "Change the chosen number of devices while it runs",
        True,
        "switch",
        option="--elastic/--no-elastic",
    ),
    JobField(
        "gpu_memory_gib",
        "Memory on each device",
        "Memory on each device, to share it",
        20,
        "number",
        unit="GiB",
        empty="the whole device",
        option="--memory",
        metavar="GIB",
        setting=True,
    ),
    JobField(
        "gpu_memory_limit_gib",
        "Memory limit",
        "More memory on each device while nobody needs it",
        30,
        "number",
        unit="GiB",
        empty="the memory it claims",
        option="--memory-limit",
        metavar="GIB",
        setting=True,
    ),
    JobField(
        "cpus",
        "CPU cores",
        "Number of CPU cores",
        4,
        "count",
        empty="a fair share",
        option="--cpus",
        setting=True,
    ),
    JobField(
        "memory_gib",
        "RAM",
        "Main memory",
        16,
        "number",
        unit="GiB",
        empty="no limit",
        option="--ram",
        metavar="GIB",
        setting=True,
    ),
    JobField(
        "priority",
        "Priority",
        "Priority from 0 to 100; above 60 for operators",
        50,
        "count",
        empty="50",
        option="--priority -p",
        changeable=True,
    ),
    JobField(
        "time_limit_s",
        "Time limit",
        "Running time over all attempts",
        86_400,
        "duration",
        unit="hours",
        empty="no limit",
        option="--time-limit -t",
        metavar="2h",
        commands="run plan again resume",
        changeable=True,
        setting=True,
    ),
    JobField(
        "max_retries",
        "Retries",
        "Retries after failures that are not the script's",
        3,
        "count",
        empty="3",
        option="--retries",
        setting=True,
    ),
    JobField(
        "env",
        "Environment",
        "Environment variables of the job",
        {"SEED": "1"},
        "assignments",
        option="--env",
        metavar="NAME=VALUE",
        setting=True,
    ),
    JobField(
        "secrets",
        "Secrets",
        "Stored secrets to put into the environment",
        ["WANDB_API_KEY"],
        "names",
        option="--secret",
        metavar="NAME",
        setting=True,
    ),
    JobField(
        "tags", "Tags", "Tags to find the job by", ["paper-x"], "names", option="--tag", changeable=True
    ),
    JobField(
        "project",
        "Project",
        "Project whose members see the job",
        "paper-x",
        empty="none",
        option="--project",
        form="own",
        changeable=True,
    ),
    JobField(
        "visibility",
        "Visible to",
        "Who sees it: private, project or lab",
        "lab",
        "choice",
        choices=("private", "project", "lab"),
        empty="as the pool or the server says",
        option="--visible",
        metavar="private|project|lab",
        changeable=True,
    ),
    JobField(
        "depends_on",
        "Start after",
        "Jobs that must succeed first",
        ["8c2f01d4", {"job": "77b0e3aa", "when": "any"}],
        "jobs",
        option="--after",
        metavar="JOB",
    ),
    JobField(
        "not_before",
        "Start not before",
        "Earliest start",
        "2026-11-22T07:00:00Z",
        "time",
        unit="UTC",
        empty="at once",
        option="--at",
        metavar="TIME",
        option_help="Earliest start: 2h, 22:30 or '2026-11-22 07:00'",
    ),
    JobField(
        "array",
        "Array",
        "Indices of many jobs; %2 runs two at once",
        "0-9%2",
        "array",
        empty="one job",
        option="--array",
        metavar="0-9%2",
        commands="run plan",
    ),
    JobField(
        "total_steps",
        "Steps in all",
        "Total steps, for the progress bar",
        100_000,
        "count",
        empty="what the script reports",
        option="--steps",
        setting=True,
    ),
    JobField(
        "grace_period_s",
        "Time to save",
        "Time to save between SIGTERM and SIGKILL",
        30,
        "duration",
        unit="seconds",
        empty="30",
        option="--grace-period",
        metavar="30s",
    ),
    JobField(
        "preemptible",
        "May be paused",
        "Pause for a more urgent job, with a checkpoint",
        True,
        "switch",
        option="--preemptible",
    ),
    JobField(
        "checkpoint_glob",
        "Checkpoint files",
        "Checkpoints that the script writes elsewhere",
        "out/*.pt",
        empty="the checkpoint folder",
        option="--checkpoint-glob",
        metavar="'out/*.pt'",
        changeable=True,
    ),
    JobField(
        "begin_anew",
        "Restart from step 0",
        "Restart from step 0 if all checkpoints are damaged",
        True,
        "switch",
        option="--restart/--no-restart",
    ),
    JobField(
        "python",
        "Interpreter",
        "Interpreter registered with the pool",
        "torch-2.8",
        empty="Berth's own",
        option="--python",
        metavar="NAME",
        setting=True,
    ),
    JobField(
        "environment",
        "Packages from",
        "File or environment with the packages; berth: Berth's own",
        "requirements.txt",
        empty="what the code declares",
        option="--environment",
        metavar="FILE|NAME",
        setting=True,
    ),
    JobField(
        "with_packages",
        "Packages",
        "Python packages that the job needs",
        ["transformers", "datasets<4"],
        "lines",
        option="--with",
        metavar="PACKAGE",
        setting=True,
    ),
    JobField(
        "image",
        "Container image",
        "Container image to run in, with its own Python",
        "pytorch/pytorch:2.9.0-cuda12.8-cudnn9-runtime",
        empty="the server's own files",
        option="--image",
        metavar="NAME",
        setting=True,
    ),
    JobField(
        "hang_timeout_s",
        "Longest silence",
        "Restart after this long without output",
        1800,
        "duration",
        unit="minutes",
        empty="a warning only",
        option="--hang-timeout",
        metavar="30m",
    ),
    JobField(
        "launcher",
        "Launcher",
        "Program that starts the ranks",
        "torchrun",
        "choice",
        choices=("torchrun", "direct"),
        option="--launcher",
        metavar="torchrun|direct",
        setting=True,
    ),
    JobField(
        "git",
        "Commit",
        "Commit and branch of the code, and whether it differs",
        {"commit": "9fceb02d0ae598e95dc970b74767f19372d61af8", "branch": "main", "dirty": True},
        "commit",
        form="",
        setting=True,
    ),
    JobField(
        "source",
        "Code",
        "Script's text, hash of an earlier upload, or git repository",
        {"git": "https://github.com/lab/code.git", "ref": "main"},
        "code",
        form="",
    ),
)
BY_NAME: Mapping[str, JobField] = {field.name: field for field in FIELDS}
CHANGEABLE = frozenset(field.name for field in FIELDS if field.changeable)
SETTINGS: tuple[JobField, ...] = tuple(field for field in FIELDS if field.setting)
# The files that list packages, in the order in which they are looked for: the more exact, the earlier.
PACKAGE_FILES = (
    "uv.lock",
    "pylock.toml",
    "requirements.txt",
    "environment.yml",
    "environment.yaml",
    "pyproject.toml",
)
DIFF_FILE = "berth-changes.diff"  # in the upload of a folder: what it differs in from its commit
STARTS = ("entrypoint", "module", "command", "program")  # a job has one of them


def started_words(spec: Mapping[str, Json]) -> list[str]:
    """What a job runs, as on a command line: its script, module, command or program; then its arguments."""
    command, module, args = spec.get("command"), spec.get("module"), spec.get("args")
    if isinstance(command, Sequence) and command:
        words = [str(word) for word in command]
    elif module:
        words = ["-m", str(module)]
    else:
        words = [str(spec.get("program") or spec.get("entrypoint") or "")]
    return [*words, *map(str, args if isinstance(args, Sequence) else [])]


def command_line(spec: Mapping[str, Json], defaults: Mapping[str, Json], code: str) -> str:
    """``berth run`` for a job, or ``berth session start``; fields that have their default are left out.

    Args:
        code: the script, archive or folder.
    """
    is_session = spec.get("kind") == "session"
    start = ["berth", "session", "start"] if is_session else ["berth", "run"]
    options = [
        word
        for field in FIELDS
        if field.option
        and not (is_session and field.name == "kind")
        and spec.get(field.name) not in (None, [], {}, defaults.get(field.name))
        and (field.name, spec[field.name]) != ("entrypoint", code)
        for word in option_words(field, spec[field.name])
    ]
    source = spec.get("source")
    if isinstance(source, Mapping) and source.get("git"):
        named = {"--git": source["git"], "--ref": source.get("ref"), "--git-key": source.get("key")}
        words = [word for name, value in named.items() if value for word in (name, str(value))]
        return shlex.join(["berth", "run", *words, *options, *_behind(spec)])
    return shlex.join([*start, *options, code, *_behind(spec)])


def _behind(spec: Mapping[str, Json]) -> list[str]:
    """The arguments of the script, behind dashes."""
    args = spec.get("args")
    return ["--", *map(str, args)] if args and isinstance(args, Sequence) else []
