"""Why a device is drained, and until when."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0024_people_who_wait_and_invitations'),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='device',
            name='drain_reason',
            field=models.CharField(blank=True, max_length=200),
        ),
        migrations.AddField(
            model_name='device',
            name='drain_until',
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
