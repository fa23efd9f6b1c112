from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0008_notices'),
    ]

    operations = [
        migrations.AddField(
            model_name='attempt',
            name='plan',
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name='job',
            name='next_plan',
            field=models.JSONField(default=dict),
        ),
    ]
