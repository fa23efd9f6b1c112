from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("orchestrator", "0043_federations")]

    operations = [
        migrations.AddField(
            "booking",
            "note",
            models.CharField(blank=True, db_default="", default="", max_length=500),
        ),
    ]
