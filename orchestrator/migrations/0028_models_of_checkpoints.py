"""Checkpoints that became models."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0027_passwords_and_service_accounts'),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='ModelVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('attempt_number', models.PositiveIntegerField()),
                ('checkpoint', models.CharField(max_length=200)),
                ('step', models.BigIntegerField(null=True)),
                ('values', models.JSONField(default=dict)),
                ('dataset', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, related_name='model', to='orchestrator.dataset')),
                ('job', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='models', to='orchestrator.job')),
            ],
            options={
                'ordering': ['-pk'],
            },
        ),
    ]
