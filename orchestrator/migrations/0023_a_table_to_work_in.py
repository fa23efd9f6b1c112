"""Arguments as values that lists sort by, views of the jobs' table, and an index for sorting it by name."""

from typing import Any, ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

from berth.shared.arguments import values_by_name

CHUNK = 500


def fill_arguments(apps: Any, _editor: Any) -> None:
    """Give the jobs of earlier versions what a submit writes now."""
    job = apps.get_model('orchestrator', 'Job')
    chunk = []
    for row in job.objects.only('id', 'spec_fields').iterator(chunk_size=CHUNK):
        row.arguments = values_by_name(row.spec_fields.get('args') or [])
        if row.arguments:
            chunk.append(row)
        if len(chunk) == CHUNK:
            job.objects.bulk_update(chunk, ['arguments'])
            chunk = []
    job.objects.bulk_update(chunk, ['arguments'])


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
        ('orchestrator', '0022_caches_of_pools'),
    ]

    operations: ClassVar = [
        migrations.AddField(
            model_name='job',
            name='arguments',
            field=models.JSONField(default=dict),
        ),
        migrations.RunPython(fill_arguments, migrations.RunPython.noop),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['name', 'id'], name='orchestrato_name_id_idx'),
        ),
        migrations.CreateModel(
            name='JobView',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=60, unique=True)),
                ('query', models.CharField(max_length=2000)),
                ('created_at', models.DateTimeField()),
                ('owner', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='job_views', to=settings.AUTH_USER_MODEL)),
            ],
            options={'ordering': ['name']},
        ),
    ]
