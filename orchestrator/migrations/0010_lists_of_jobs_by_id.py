from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('orchestrator', '0009_training_plans'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations = [
        migrations.RemoveIndex(
            model_name='job',
            name='orchestrato_state_21329b_idx',
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['state', 'id'], name='orchestrato_state_2134cb_idx'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['owner', 'id'], name='orchestrato_owner_i_9ad988_idx'),
        ),
    ]
