"""People who must choose a password at their next sign-in, and accounts of programs."""

from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0026_sweeps_pause_and_tell'),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='person',
            name='must_change',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='person',
            name='service',
            field=models.BooleanField(default=False),
        ),
    ]
