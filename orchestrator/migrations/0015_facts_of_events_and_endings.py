"""Histories, reasons, endings and waits become facts: a code with named values, of which sentences are made when read.

A row whose sentence tells its facts is turned into them, above all where something is decided by it later: fallbacks,
losses that are no number, silence, checkpoints outside their folder.  Other rows keep the sentence itself, as the code
"told": the facts that it was once made of cannot be had any more.
"""

import re

from django.db import migrations, models

ROWS_A_STATEMENT = 500


def _number(text):
    return int(text.replace(",", ""))


def _fell_back(found):
    """Of a name alone: a step is called "step 5", a generation without one by its own name."""
    names = {}
    for prefix, text in (("", found["name"]), ("to_", found["to"])):
        step = re.fullmatch(r"step (\d+)", text)
        if prefix == "to_" and text == "the beginning":
            names |= {"to_checkpoint": None, "to_step": None}
        else:
            names |= {f"{prefix}checkpoint": text, f"{prefix}step": int(step[1]) if step else None}
    return names | {"why": found["why"]}


def _runs(found):
    step = re.fullmatch(r"step ([\d,]+)", found["where"])
    return {
        "attempt": int(found["attempt"]),
        "checkpoint": found["where"],
        "step": _number(step[1]) if step else None,
    }


def _run_fell_back(found):
    to = re.fullmatch(r"step (.*)", found["to"])
    return {"from_step": found["step"], "to_step": to[1] if to else None, "why": found["why"]}


# Sentences as they stood until now, with how their facts are read out of them.
SENTENCES = [
    (r"Submitted\.", "submitted", lambda found: {}),
    (r"Finished\.", "finished", lambda found: {}),
    (r"Cancelled by (?P<by>.+)\.", "cancelled_by", re.Match.groupdict),
    (r"Held by (?P<by>.+)\.", "held_by", re.Match.groupdict),
    (r"Released by (?P<by>.+)\.", "released_by", re.Match.groupdict),
    (r"Preempted by (?P<by>.+)\.", "preempted_by", re.Match.groupdict),
    (r"Starts on (?P<devices>.+)\.", "starts", lambda found: {"devices": found["devices"].split(", ")}),
    (r"Attempt (?P<attempt>\d+) runs\.", "runs", lambda found: {"attempt": int(found["attempt"])}),
    (r"Attempt (?P<attempt>\d+) runs, resumed from (?P<where>.+)\.", "runs", _runs),
    (
        r"Fell back from checkpoint step (?P<step>.+?) to (?P<to>the beginning|step .+?): (?P<why>.*)",
        "run_fell_back",
        _run_fell_back,
    ),
    (r"Fell back from (?P<name>.+?) to (?P<to>.+?): (?P<why>.*)\.", "fell_back", _fell_back),
    (
        r"(?P<name>.+) became NaN or infinite at step (?P<step>[\d,]+): the training diverged\.",
        "diverged",
        lambda found: {"name": found["name"], "step": _number(found["step"])},
    ),
    (
        r"It has reported nothing for 10 min or longer \(the last step was (?P<step>[\d,]+)\)\. .*",
        "silent",
        lambda found: {"step": _number(found["step"])},
    ),
    (
        r"(?P<path>.+) looks like a checkpoint and is kept, though it lies outside the checkpoint folder\.",
        "outside_kept",
        re.Match.groupdict,
    ),
    (
        r"(?P<path>.+) was written (?P<times>\d+) times outside the checkpoint folder and is not kept; .*"
        r"--checkpoint-glob '(?P<glob>.+)', or .*",
        "outside_not_kept",
        lambda found: found.groupdict() | {"times": int(found["times"])},
    ),
]


def read_sentence(sentence):
    """The code and the facts of a sentence; the sentence itself where they cannot be had."""
    if not sentence:
        return "", {}
    for pattern, code, read in SENTENCES:
        found = re.fullmatch(pattern, sentence, re.DOTALL)
        if found:
            return code, dict(read(found))
    return "told", {"sentence": sentence}


def as_fact(sentence):
    code, facts = read_sentence(sentence)
    return {"code": code, "facts": facts} if code else {}


def _in_portions(model, columns, fill, only):
    portion = []
    for row in model.objects.only("pk", *only).iterator(ROWS_A_STATEMENT):
        fill(row)
        portion.append(row)
        if len(portion) == ROWS_A_STATEMENT:
            model.objects.bulk_update(portion, columns)
            portion = []
    if portion:
        model.objects.bulk_update(portion, columns)


def to_facts(apps, schema_editor):
    def event(row):
        row.kind, row.data = read_sentence(row.reason)

    def attempt(row):
        row.ending = as_fact(row.exit_detail)

    def job(row):
        row.why, row.ending = as_fact(row.reason), as_fact(row.exit_detail)
        if row.wait_sentence == "Waits for the scheduler.":
            row.wait_code = "scheduler"
        elif row.wait_sentence:  # until the next pass, some seconds
            row.wait_facts = {"sentence": row.wait_sentence}
        # A reason began with the ending that brought it about; pages tell that once.
        if row.ending and row.why.get("code") == "told" and row.reason.startswith(row.exit_detail):
            row.why["facts"]["ending"] = row.ending

    _in_portions(apps.get_model("orchestrator", "JobEvent"), ["kind", "data"], event, ["reason"])
    _in_portions(apps.get_model("orchestrator", "Attempt"), ["ending"], attempt, ["exit_detail"])
    _in_portions(
        apps.get_model("orchestrator", "Job"),
        ["why", "ending", "wait_code", "wait_facts"],
        job,
        ["reason", "exit_detail", "wait_code", "wait_sentence"],
    )


def to_sentences(apps, schema_editor):
    from orchestrator.facts.record import Fact
    from orchestrator.sentences import say, say_json

    def event(row):
        row.reason = say(Fact(row.kind, row.data))[:1000]

    def attempt(row):
        row.exit_detail = say_json(row.ending)[:1000]

    def job(row):
        row.reason, row.exit_detail = say_json(row.why)[:500], say_json(row.ending)[:1000]

    _in_portions(apps.get_model("orchestrator", "JobEvent"), ["reason"], event, ["kind", "data"])
    _in_portions(apps.get_model("orchestrator", "Attempt"), ["exit_detail"], attempt, ["ending"])
    _in_portions(
        apps.get_model("orchestrator", "Job"), ["reason", "exit_detail"], job, ["why", "ending"]
    )


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0014_devices_kept_for_retries")]

    operations = [
        migrations.AddField("jobevent", "kind", models.CharField(blank=True, default="", max_length=48), False),
        migrations.AddField("jobevent", "data", models.JSONField(default=dict)),
        migrations.AddField("attempt", "ending", models.JSONField(default=dict)),
        migrations.AddField("job", "why", models.JSONField(default=dict)),
        migrations.AddField("job", "ending", models.JSONField(default=dict)),
        migrations.AddField("job", "wait_facts", models.JSONField(default=dict)),
        migrations.RunPython(to_facts, to_sentences),
        migrations.RemoveField("jobevent", "reason"),
        migrations.RemoveField("attempt", "exit_detail"),
        migrations.RemoveField("job", "reason"),
        migrations.RemoveField("job", "exit_detail"),
        migrations.RemoveField("job", "wait_sentence"),
    ]
