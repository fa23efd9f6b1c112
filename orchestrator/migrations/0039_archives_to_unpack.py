from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0033_passes_of_sessions'),
    ]

    operations = [
        migrations.AddField(
            model_name='fetch',
            name='unpack',
            field=models.BooleanField(default=False),
        ),
    ]
