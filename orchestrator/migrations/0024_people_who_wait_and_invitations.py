"""Newcomers who wait for an approval, when people were last seen, and invitations."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0023_a_table_to_work_in'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='person',
            name='by_group',
            field=models.BooleanField(default=False),
        ),
        migrations.AddField(
            model_name='person',
            name='waits',
            field=models.BooleanField(default=False),
        ),
        migrations.CreateModel(
            name='LastSeen',
            fields=[
                ('user', models.OneToOneField(on_delete=django.db.models.deletion.CASCADE, primary_key=True, related_name='last_seen', serialize=False, to=settings.AUTH_USER_MODEL)),
                ('at', models.DateTimeField()),
            ],
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64, unique=True)),
                ('note', models.CharField(blank=True, max_length=80)),
                ('role', models.CharField(choices=[('viewer', 'looks only'), ('submitter', 'submits jobs'), ('operator', 'operates every pool'), ('admin', 'may do everything')], max_length=12)),
                ('pools', models.JSONField(default=dict)),
                ('limits', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
                ('revoked_at', models.DateTimeField(null=True)),
                ('used_at', models.DateTimeField(null=True)),
                ('invited_by', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invitations', to=settings.AUTH_USER_MODEL)),
                ('used_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='invited_with', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
    ]
