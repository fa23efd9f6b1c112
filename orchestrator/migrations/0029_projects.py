"""Projects with members, who sees a job, and the default of pools."""

from typing import ClassVar

import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies: ClassVar = [
        ('orchestrator', '0028_models_of_checkpoints'),
        migrations.swappable_dependency(settings.AUTH_USER_MODEL),
    ]

    operations: ClassVar = [
        migrations.CreateModel(
            name='Project',
            fields=[
                ('name', models.SlugField(max_length=64, primary_key=True, serialize=False)),
                ('description', models.CharField(blank=True, max_length=200)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='ProjectMember',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('member', "sees the project's jobs"), ('owner', 'also says who is a member')], default='member', max_length=8)),
                ('since', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['project', 'user'],
            },
        ),
        migrations.AddField(
            model_name='job',
            name='visibility',
            field=models.CharField(choices=[('private', 'its owner and operators'), ('project', 'also the members of its project'), ('lab', 'everybody with an account')], default='private', max_length=8),
        ),
        migrations.AddField(
            model_name='pool',
            name='visibility',
            field=models.CharField(blank=True, choices=[('private', 'its owner and operators'), ('project', 'also the members of its project'), ('lab', 'everybody with an account')], help_text="Who sees jobs that do not say it themselves; empty: as the server's setting says", max_length=8),
        ),
        migrations.AddField(
            model_name='job',
            name='project',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.PROTECT, related_name='jobs', to='orchestrator.project'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(fields=['project', 'id'], name='orchestrato_project_id_idx'),
        ),
        migrations.AddIndex(
            model_name='job',
            index=models.Index(condition=models.Q(('visibility', 'lab')), fields=['id'], name='orchestrato_lab_id_idx'),
        ),
        migrations.AddField(
            model_name='projectmember',
            name='project',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='orchestrator.project'),
        ),
        migrations.AddField(
            model_name='projectmember',
            name='user',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to=settings.AUTH_USER_MODEL),
        ),
        migrations.AddConstraint(
            model_name='projectmember',
            constraint=models.UniqueConstraint(fields=('project', 'user'), name='one_membership_a_person_and_project'),
        ),
    ]
