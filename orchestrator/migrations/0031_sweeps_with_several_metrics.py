from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0030_notes_and_links'),
    ]

    operations = [
        migrations.AddField(
            model_name='rungreport',
            name='further',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='sweep',
            name='further',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='sweep',
            name='gain_device_s',
            field=models.FloatField(null=True),
        ),
        migrations.AddField(
            model_name='sweep',
            name='learns_from',
            field=models.JSONField(default=list),
        ),
        migrations.AddField(
            model_name='sweep',
            name='least_gain',
            field=models.FloatField(null=True),
        ),
    ]
