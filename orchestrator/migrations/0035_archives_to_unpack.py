from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0034_recipes_of_models'),
    ]

    operations = [
        migrations.AddField(
            model_name='fetch',
            name='unpack',
            field=models.BooleanField(default=False),
        ),
    ]
