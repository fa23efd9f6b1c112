"""Code that jobs name by a git repository, fetched while they wait."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0020_sweeps'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.AlterField(
            model_name='attempt',
            name='kind',
            field=models.CharField(blank=True, choices=[('ok', 'Ok'), ('user_error', 'User Error'), ('oom_gpu', 'Oom Gpu'), ('oom_cpu', 'Oom Cpu'), ('signal', 'Signal'), ('hang', 'Hang'), ('lost', 'Lost'), ('gpu_fault', 'Gpu Fault'), ('infra', 'Infra'), ('cancelled', 'Cancelled'), ('timeout', 'Timeout'), ('preempted', 'Preempted'), ('code', 'Code'), ('environment', 'Environment'), ('data', 'Data')], max_length=16),
        ),
        migrations.CreateModel(
            name='Checkout',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(max_length=1000)),
                ('ref', models.CharField(blank=True, max_length=200)),
                ('key', models.CharField(blank=True, max_length=128)),
                ('given', models.JSONField(default=list)),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('fetching', 'Fetching'), ('ready', 'Ready'), ('failed', 'Failed')], default='waiting', max_length=16)),
                ('commit', models.CharField(blank=True, max_length=64)),
                ('branch', models.CharField(blank=True, max_length=200)),
                ('bundle', models.CharField(blank=True, max_length=64)),
                ('notes', models.JSONField(default=list)),
                ('why', models.JSONField(default=dict)),
                ('tries', models.PositiveIntegerField(default=0)),
                ('next_try_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField()),
                ('started_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='checkouts', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='job',
            name='checkout',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='orchestrator.checkout'),
        ),
    ]
