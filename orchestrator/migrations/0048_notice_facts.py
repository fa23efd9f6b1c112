"""Why a notification did not arrive becomes a fact; a sentence that cannot be read is kept as it was, as the code "told"."""

import re

from django.db import migrations, models

# The sentences of the version before, and the facts in them.
READABLE = {
    "notice_key_lost": r"This address can no longer be decrypted, because its key was lost\. Add it again\.",
    "notice_no_address": r"This is not an address for notifications\. See the list of services in the docs\.",
    "notice_inside_network": r"(?P<host>\S+) is inside this network\. Ask the server's operator to allow it\.",
    "notice_not_encrypted": r"(?P<scheme>\w+):// is not encrypted\. Use (?P=scheme)s://\.",
    "notice_host_unknown": r"The host (?P<host>\S+) cannot be found\.",
    "notice_no_answer": r"No answer within (?P<within_s>\d{1,6}) s\.",
    "notice_refused": r"The service answered: (?P<reason>.+)",
    "notice_no_reason": r"The service gave no reason\.",
}


def fact_in(sentence):
    for code, words in READABLE.items():
        if found := re.fullmatch(words, sentence, re.DOTALL):
            facts = {name: float(value) if name == "within_s" else value for name, value in found.groupdict().items()}
            return {"code": code, "facts": facts}
    return {"code": "told", "facts": {"sentence": sentence}}


def to_facts(apps, schema_editor):
    targets = apps.get_model("orchestrator", "NoticeTarget").objects.using(schema_editor.connection.alias)
    for target in targets.exclude(last_error=""):
        target.last_why = fact_in(target.last_error)
        target.save(update_fields=["last_why"])


def to_sentences(apps, schema_editor):
    from orchestrator.sentences import say_json

    targets = apps.get_model("orchestrator", "NoticeTarget").objects.using(schema_editor.connection.alias)
    for target in targets.exclude(last_why={}):
        target.last_error = say_json(target.last_why)[:300]
        target.save(update_fields=["last_error"])


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0047_health_facts")]

    operations = [
        migrations.AddField("noticetarget", "last_why", models.JSONField(default=dict)),
        migrations.RunPython(to_facts, to_sentences, elidable=False),
        migrations.RemoveField("noticetarget", "last_error"),
    ]
