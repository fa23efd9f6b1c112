"""Pools whose jobs keep no cache."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0021_checkouts'),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='pool',
            name='caches',
            field=models.BooleanField(default=True, help_text='Jobs keep what they download and compile for the next job of the same person'),
        ),
    ]
