from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("orchestrator", "0035_archives_to_unpack")]

    operations: ClassVar = [
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(fields=["at"], name="event_by_time"),
        ),
    ]
