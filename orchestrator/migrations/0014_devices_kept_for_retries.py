from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("orchestrator", "0013_unit_of_progress")]

    operations: ClassVar = [
        migrations.AddField(
            model_name="job",
            name="devices_kept_until",
            field=models.DateTimeField(null=True),
        ),
    ]
