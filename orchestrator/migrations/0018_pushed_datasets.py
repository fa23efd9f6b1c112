"""Datasets that a person pushed: of no root, and with a name among that person's alone."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0017_fetched_data'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.RemoveConstraint(
            model_name='dataset',
            name='dataset_version_once',
        ),
        migrations.AlterField(
            model_name='dataset',
            name='path',
            field=models.CharField(max_length=1100),
        ),
        migrations.AlterField(
            model_name='dataset',
            name='root',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.PROTECT, related_name='datasets', to='orchestrator.datasetroot'),
        ),
        migrations.AddConstraint(
            model_name='dataset',
            constraint=models.UniqueConstraint(condition=models.Q(('root__isnull', False)), fields=('name', 'version'), name='dataset_version_once'),
        ),
        migrations.AddConstraint(
            model_name='dataset',
            constraint=models.UniqueConstraint(condition=models.Q(('root__isnull', True)), fields=('owner', 'name', 'version'), name='pushed_version_once'),
        ),
    ]
