from typing import ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("orchestrator", "0036_services")]

    operations: ClassVar = [
        migrations.AddIndex(
            model_name="jobevent",
            index=models.Index(fields=["at"], name="event_by_time"),
        ),
    ]
