"""Why a device is not healthy becomes a fact; a sentence that tells no facts is kept as it was, as the code "told"."""

from django.db import migrations, models

GONE = "It is not there any more."


def to_facts(apps, schema_editor):
    devices = apps.get_model("orchestrator", "Device").objects.using(schema_editor.connection.alias)
    for device in devices.exclude(health_reason=""):
        told = {"code": "told", "facts": {"sentence": device.health_reason}}
        device.health_why = {"code": "device_gone", "facts": {}} if device.health_reason == GONE else told
        device.save(update_fields=["health_why"])


def to_sentences(apps, schema_editor):
    from orchestrator.sentences import say_json

    devices = apps.get_model("orchestrator", "Device").objects.using(schema_editor.connection.alias)
    for device in devices.exclude(health_why={}):
        device.health_reason = say_json(device.health_why)[:300]
        device.save(update_fields=["health_reason"])


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0046_federation_invitations")]

    operations = [
        migrations.AddField("device", "health_why", models.JSONField(default=dict)),
        migrations.RunPython(to_facts, to_sentences, elidable=False),
        migrations.RemoveField("device", "health_reason"),
    ]
