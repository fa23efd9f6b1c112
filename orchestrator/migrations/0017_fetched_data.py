"""Data that jobs name by its address: what was fetched, shared by jobs."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0016_environments'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.AlterField(
            model_name='attempt',
            name='kind',
            field=models.CharField(blank=True, choices=[('ok', 'Ok'), ('user_error', 'User Error'), ('oom_gpu', 'Oom Gpu'), ('oom_cpu', 'Oom Cpu'), ('signal', 'Signal'), ('hang', 'Hang'), ('lost', 'Lost'), ('gpu_fault', 'Gpu Fault'), ('infra', 'Infra'), ('cancelled', 'Cancelled'), ('timeout', 'Timeout'), ('preempted', 'Preempted'), ('environment', 'Environment'), ('data', 'Data')], max_length=16),
        ),
        migrations.CreateModel(
            name='Fetch',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('address_sha256', models.CharField(db_index=True, max_length=64)),
                ('address', models.CharField(max_length=2048)),
                ('sha256', models.CharField(blank=True, max_length=64)),
                ('is_private', models.BooleanField(null=True)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('fetching', 'Fetching'), ('ready', 'Ready'), ('failed', 'Failed')], default='waiting', max_length=16)),
                ('key', models.CharField(blank=True, max_length=64)),
                ('path', models.CharField(blank=True, max_length=1100)),
                ('files', models.PositiveIntegerField(null=True)),
                ('total_bytes', models.PositiveBigIntegerField(null=True)),
                ('done_bytes', models.PositiveBigIntegerField(default=0)),
                ('why', models.JSONField(default=dict)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('next_try_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='job',
            name='fetches',
            field=models.ManyToManyField(blank=True, related_name='jobs', to='orchestrator.fetch'),
        ),
    ]
