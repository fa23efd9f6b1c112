"""The packages of jobs: what was asked for and what it was resolved to, shared by jobs."""

from typing import ClassVar

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies: ClassVar = [("orchestrator", "0015_facts_of_events_and_endings")]

    operations: ClassVar = [
        migrations.CreateModel(
            name="Environment",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("request_sha256", models.CharField(db_index=True, max_length=64)),
                ("request", models.JSONField()),
                ("origin", models.CharField(max_length=200)),
                (
                    "state",
                    models.CharField(
                        choices=[
                            ("waiting", "Waiting"),
                            ("building", "Building"),
                            ("ready", "Ready"),
                            ("failed", "Failed"),
                        ],
                        default="waiting",
                        max_length=16,
                    ),
                ),
                ("lock", models.TextField(blank=True)),
                ("packages", models.JSONField(default=list)),
                ("own_torch", models.BooleanField(default=False)),
                ("key", models.CharField(blank=True, max_length=64)),
                ("platform", models.CharField(blank=True, max_length=64)),
                ("why", models.JSONField(default=dict)),
                ("tries", models.PositiveIntegerField(default=0)),
                ("next_try_at", models.DateTimeField(null=True)),
                ("created_at", models.DateTimeField()),
                ("started_at", models.DateTimeField(null=True)),
                ("ended_at", models.DateTimeField(null=True)),
            ],
            options={
                "ordering": ["-id"],
            },
        ),
        migrations.AlterField(
            model_name="attempt",
            name="kind",
            field=models.CharField(
                blank=True,
                choices=[
                    ("ok", "Ok"),
                    ("user_error", "User Error"),
                    ("oom_gpu", "Oom Gpu"),
                    ("oom_cpu", "Oom Cpu"),
                    ("signal", "Signal"),
                    ("hang", "Hang"),
                    ("lost", "Lost"),
                    ("gpu_fault", "Gpu Fault"),
                    ("infra", "Infra"),
                    ("cancelled", "Cancelled"),
                    ("timeout", "Timeout"),
                    ("preempted", "Preempted"),
                    ("environment", "Environment"),
                ],
                max_length=16,
            ),
        ),
        migrations.AddField(
            model_name="job",
            name="environment",
            field=models.ForeignKey(
                blank=True,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="jobs",
                to="orchestrator.environment",
            ),
        ),
    ]
