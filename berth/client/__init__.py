"""Berth from Python: submit jobs, watch them, fetch what they wrote.

    from berth.client import Berth

    berth = Berth()  # where `berth login` went, or BERTH_URL and BERTH_TOKEN
    job = berth.run("train.py", gpus=2, args=["--lr", "3e-4"])
    for part in job.follow():
        sys.stdout.write(part.text)
    job.wait()
    assert job.state == "succeeded", job.exit_detail

It needs httpx, and pathspec where files are ignored. The fields of a job: docs/reference/job-fields.md.
Every failure is a ``BerthError`` whose text is a sentence for people.
"""

from berth.client.code import ARCHIVES, pack_folder
from berth.client.connection import Connection
from berth.client.errors import (
    BerthError,
    Conflict,
    Forbidden,
    NotFound,
    NotSignedIn,
    Refused,
    Unreachable,
    raise_for_status,
)
from berth.client.job_answers import (
    ArrayPlace,
    Attempt,
    Beside,
    Calibration,
    Change,
    Checkpoint,
    CheckpointFile,
    DeviceShare,
    Environment,
    Event,
    Explanation,
    Failure,
    FileList,
    Limit,
    Medium,
    MemoryClaim,
    Neighbour,
    Note,
    Outcome,
    OutputFile,
    Plan,
    Progress,
    RankEnd,
    Series,
    UnkeptFiles,
)
from berth.client.jobs import FINAL_STATES, LOG_BYTES, WAITING_STATES, Job, LogPart
from berth.client.login import DEFAULT_URL, login_path, read_login, save_login, tidy_url
from berth.client.programs import Activity, Replica, Service, Session
from berth.client.record import Record
from berth.client.server import Berth
from berth.client.server_answers import (
    Availability,
    Booking,
    Dataset,
    Device,
    Federation,
    Holder,
    KeptCache,
    KeptEnvironment,
    KeptFiles,
    Link,
    Model,
    ModelFile,
    Person,
    Pool,
    Process,
    Project,
    Reading,
    Recipe,
    Usage,
    UsageRow,
)
from berth.client.spec import Spec
from berth.client.sweeps import Sweep, Trial

__all__ = [
    "ARCHIVES",
    "DEFAULT_URL",
    "FINAL_STATES",
    "LOG_BYTES",
    "WAITING_STATES",
    "Activity",
    "ArrayPlace",
    "Attempt",
    "Availability",
    "Berth",
    "BerthError",
    "Beside",
    "Booking",
    "Calibration",
    "Change",
    "Checkpoint",
    "CheckpointFile",
    "Conflict",
    "Connection",
    "Dataset",
    "Device",
    "DeviceShare",
    "Environment",
    "Event",
    "Explanation",
    "Failure",
    "Federation",
    "FileList",
    "Forbidden",
    "Holder",
    "Job",
    "KeptCache",
    "KeptEnvironment",
    "KeptFiles",
    "Limit",
    "Link",
    "LogPart",
    "Medium",
    "MemoryClaim",
    "Model",
    "ModelFile",
    "Neighbour",
    "NotFound",
    "NotSignedIn",
    "Note",
    "Outcome",
    "OutputFile",
    "Person",
    "Plan",
    "Pool",
    "Process",
    "Progress",
    "Project",
    "RankEnd",
    "Reading",
    "Recipe",
    "Record",
    "Refused",
    "Replica",
    "Series",
    "Service",
    "Session",
    "Spec",
    "Sweep",
    "Trial",
    "UnkeptFiles",
    "Unreachable",
    "Usage",
    "UsageRow",
    "login_path",
    "pack_folder",
    "raise_for_status",
    "read_login",
    "save_login",
    "tidy_url",
]
