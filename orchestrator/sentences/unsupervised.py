"""How attempts ended that no supervisor saw to their end."""

from collections.abc import Mapping, Sequence
from typing import Any

from berth.shared import words
from berth.shared.language import text
from orchestrator.facts.endings import Ended
from orchestrator.sentences.endings import ends
from orchestrator.sentences.nouns import joined
from orchestrator.sentences.table import say_json


@ends(Ended.LOST)
def _lost() -> str:
    return text("Its processes ended without a word: the supervisor was killed, or the server went down.")


@ends(Ended.LEASE_RAN_OUT)
def _lease_ran_out(node: str) -> str:
    return text(
        "The server {node} was silent for longer than its lease, after which its jobs stop.", node=node
    )


@ends(Ended.STOPPED_BEFORE_START)
def _stopped_before_start() -> str:
    return text("Stopped before it began.")


@ends(Ended.NOT_STARTED_IN_TIME)
def _not_started_in_time(deadline_s: float) -> str:
    return text("The supervisor did not start within {deadline_s:.0f} s.", deadline_s=deadline_s)


@ends(Ended.LAUNCH_DIED)
def _launch_died() -> str:
    return text("Its launch was cut short before the run began.")


@ends(Ended.LAUNCH_UNANSWERED)
def _launch_unanswered(times: int) -> str:
    return text("Launching failed {times} times without an answer.", times=times)


@ends(Ended.COULD_NOT_START)
def _could_not_start(error: str) -> str:
    return text("Could not start: {error}", error=error)


@ends(Ended.COULD_NOT_PREPARE)
def _could_not_prepare(error: str) -> str:
    return text("Could not prepare the job's folder: {error}.", error=error)


_ENVIRONMENT_FAILED = {
    "conflict": (
        "The packages of {origin} exclude one another.",
        "Loosen one of these versions.",
    ),
    "unknown": (
        "A package of {origin} was not found, or not in that version.",
        "Check its name and its version, and where this server looks for packages.",
    ),
    "python": (
        "A package of {origin} needs another version of Python.",
        "Ask for a version of it that fits.",
    ),
    "compiler": (
        "A package of {origin} has to be compiled, and this server has not what that needs.",
        "Ask for a version with a wheel, or an administrator for an environment that has it.",
    ),
    "build": (
        "A package of {origin} could not be built from source.",
        "Ask for a version with a wheel, or an administrator for an environment that has it.",
    ),
    "network": (
        "The packages of {origin} could not be downloaded.",
        "Run the job again later; an administrator can give the server a folder of wheels (BERTH_WHEELS).",
    ),
    "disk": (
        "The packages of {origin} could not be written.",
        "Ask an administrator to make room.",
    ),
    "interpreter": (
        "The interpreter of {origin} cannot be used.",
        "Ask an administrator to mend it, or name another.",
    ),
    "tool": ("The packages of {origin} cannot be installed.", ""),
}


def _help(advice: str, **values: str) -> str:
    """What to do; empty where nobody knows."""
    return text(advice, **values) if advice else ""


@ends(Ended.ENVIRONMENT_FAILED)
def _environment_failed(cause: str, origin: str, message: str) -> str:
    """What is wrong, the installer's own words, and what to do."""
    what, help_ = _ENVIRONMENT_FAILED.get(cause, ("The packages of {origin} could not be installed.", ""))
    end = "" if message.endswith((".", "!", "?")) else "."
    return f"{text(what, origin=origin)} {message}{end} {_help(help_)}".strip()


_IMAGE_FAILED = {
    "missing": ("There is no image {image}.", "Check its name and its tag."),
    "denied": (
        "The image {image} is not open to this server.",
        "Check its name, or ask an administrator for a login to its registry (BERTH_IMAGE_LOGINS).",
    ),
    "private": (
        "The registry of {image} is in the server's own network.",
        "An administrator can allow its host (BERTH_DATA_ALLOW).",
    ),
    "network": ("The image {image} could not be fetched.", "Run the job again later."),
    "size": (
        "The image {image} is too large for this server.",
        "Use a smaller one, or ask an administrator for more room (BERTH_IMAGE_GIB).",
    ),
    "processor": ("The image {image} does not run on this server.", "Ask for one that was built for it."),
    "changed": ("The image {image} is no longer what the job was submitted with.", "Submit the job again."),
    "disk": ("The image {image} could not be written.", "Ask an administrator to make room."),
    "folder": (
        "The image {image} cannot be used.",
        "An administrator can allow its folder (BERTH_IMAGE_FOLDERS).",
    ),
    "format": ("The image {image} cannot be used.", ""),
    "sandbox": ("The image {image} cannot be used.", ""),
}


@ends(Ended.IMAGE_FAILED)
def _image_failed(cause: str, image: str, message: str) -> str:
    """What is wrong, the words of who said so, and what to do."""
    what, help_ = _IMAGE_FAILED.get(cause, ("The image {image} could not be fetched.", ""))
    end = "" if message.endswith((".", "!", "?")) else "."
    return f"{text(what, image=image)} {message}{end} {_help(help_)}".strip()


_DATA_FAILED = {
    "missing": (
        "There is nothing at {address}",
        "Check the address; what is not public needs {needs}.",
    ),
    "denied": (
        "{address} is not open to you",
        "Ask for access, or check {needs}.",
    ),
    "unencrypted": (
        "{address} leads to an address without encryption, so anybody on the way could change the data",
        "Add its checksum, #sha256=..., or name an address that stays with https.",
    ),
    "archive": (
        "{address} is no archive that can be unpacked",
        "Mend the archive, or leave out #unpack to get the file as it is.",
    ),
    "checksum": (
        "{address} is not what the job asked for",
        "Check the checksum, or ask who offers the data whether it changed.",
    ),
    "quota": (
        "{address} is too large for this server",
        "Name a part of it, or ask an administrator for more room (BERTH_DATA_CACHE_GIB).",
    ),
    "private": (
        "{address} leads into the server's own network",
        "An administrator can allow its host (BERTH_DATA_ALLOW).",
    ),
    "network": (
        "{address} could not be reached",
        "Run the job again later; what has come already is kept.",
    ),
    "disk": ("{address} could not be written", "Ask an administrator to make room on the disk."),
    "tool": (
        "What reads {address} could not be installed",
        "Ask an administrator whether this server reaches its package index.",
    ),
}
_NEEDED_SECRETS = {
    "hf": "your secret HF_TOKEN (berth secret set HF_TOKEN)",
    "s3": "your secrets AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (berth secret set NAME)",
    "gs": "your secret GOOGLE_CREDENTIALS, the JSON of a service account (berth secret set NAME)",
}


@ends(Ended.DATA_FAILED)
def _data_failed(cause: str, address: str, message: str) -> str:
    """What is wrong, the source's own words, and what to do."""
    what, help_ = _DATA_FAILED.get(cause, ("{address} could not be fetched", ""))
    needs = _NEEDED_SECRETS.get(address.partition("://")[0], "an address that is signed")
    end = "" if message.endswith((".", "!", "?")) else "."
    return f"{text(what, address=address)}: {message}{end} {_help(help_, needs=text(needs))}".strip()


_NOT_FETCHED = {
    "ref": (
        "{url} has no branch, tag or commit {ref}.",
        "Check its name; it may have been renamed or deleted. "
        "A commit is named by its hash or the first 7 digits or more of it.",
    ),
    "commit": (
        "{url} does not have or does not give out the commit {ref}.",
        "Check the hash, or name a branch or tag that contains it.",
    ),
    "empty": (
        "{url} has no default branch: it is empty, or is no git repository.",
        "Push a commit first, or name a branch with --ref.",
    ),
    "key_needed": (
        "{url} asks for a key: it is private, or does not exist.",
        "Check the address; for a private one store a deploy key (ssh) or an access token (https) with "
        "berth secret set NAME, and name it: --git-key NAME.",
    ),
    "key_refused": (
        "{url} refused the secret {key}.",
        "Check that it is valid, belongs to this repository and may read it; "
        "store it again with: berth secret set {key}.",
    ),
    "key_unreadable": (
        "The secret {key} is not a key that ssh can read.",
        "Store a private key without passphrase, with all of its lines: berth secret set {key} < key-file.",
    ),
    "key_locked": (
        "The secret {key} is a key with a passphrase, for which nobody can be asked.",
        "Remove it from a copy with ssh-keygen -p -f key-file, and store that: berth secret set {key} < key-file.",
    ),
    "redirected": (
        "{url} leads to another host, which asks for a key; a secret is only sent to the host of the address.",
        "Give the address that the repository has now.",
    ),
    "repository": (
        "There is no repository {url}, or it is private.",
        "Check the address; for a private one name a secret with its key: --git-key NAME.",
    ),
    "host_key": (
        "The host of {url} showed another host key than before.",
        "Somebody may be between this server and it; if the host has changed its key, ask an administrator.",
    ),
    "certificate": (
        "The host of {url} showed a certificate that this server does not trust.",
        "An administrator can name the certificates that it trusts with SSL_CERT_FILE.",
    ),
    "network": (
        "The host of {url} could not be reached.",
        "Check the address, or run the job again later.",
    ),
    "folder": (
        "This server fetches no code from {url}.",
        "An administrator can allow the folder with BERTH_GIT_ROOTS.",
    ),
    "files": ("The files of {url} cannot be stored as code.", ""),
    "size": ("The code of {url} is too large.", "Keep data out of the repository and name it as a dataset."),
    "secret": ("The code of {url} could not be fetched.", ""),
    "disk": ("The code of {url} could not be written.", "Ask an administrator to make room."),
    "tool": ("The code of {url} cannot be fetched.", ""),
}


@ends(Ended.CODE_NOT_FETCHED)
def _code_not_fetched(cause: str, url: str, ref: str, key: str, message: str) -> str:
    """What is wrong, what to do, and git's own words."""
    what, help_ = _NOT_FETCHED.get(cause, ("The code of {url} could not be fetched.", ""))
    facts = {"url": url, "ref": ref or "HEAD", "key": key}
    told = f"{text(what, **facts)} {_help(help_, **facts)}".strip()
    return (
        f"{told} {message}".strip()
        if cause in {"secret", "size", "files", "tool", "key_locked"}
        else text("{told} Git said: {message}", told=told, message=message)
    )


@ends(Ended.CODE_REFUSED)
def _code_refused(url: str, commit: str, message: str) -> str:
    return text(
        "The code of {url} at {commit} cannot be run. {message}", url=url, commit=commit[:12], message=message
    )


@ends(Ended.CROWDED_OUT)
def _crowded_out(ending: Mapping[str, Any], device: str, foreign_bytes: int, by: Sequence[str]) -> str:
    said = text(
        "{device} also held {foreign_bytes} of {by}, not of Berth's jobs; "
        "without that the job would have had what it claimed.",
        device=words.labelled(device),
        foreign_bytes=words.size(foreign_bytes),
        by=joined(by),
    )
    return f"{say_json(ending)} {said}".strip()


@ends(Ended.NOT_IN_BACKUP)
def _not_in_backup() -> str:
    return text("It ran after the backup that the database was restored from.")


@ends(Ended.CLOSED_BY_DOCTOR)
def _closed_by_doctor() -> str:
    return text("Closed by doctor: nothing of it runs.")
