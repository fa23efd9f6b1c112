"""The Celery application. It carries wake-ups only: a lost message delays a job, it never loses one."""

import os

from celery import Celery

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "orchestrator.server.settings")
# `up` and `prepare` run Django's checks. A worker would load every page and route for them: 0.7 s and 28 MiB.
os.environ.setdefault("CELERY_SKIP_CHECKS", "true")

from django.conf import settings  # after DJANGO_SETTINGS_MODULE is set

environment = settings.ENVIRONMENT
# Celery uses another scheme for unix sockets.
broker_url = environment.redis_url.replace("unix://", "redis+socket://", 1)

app = Celery("berth")
app.conf.update(
    broker_url=broker_url,
    broker_connection_retry_on_startup=True,
    broker_connection_timeout=1,
    broker_transport_options={
        "socket_timeout": 1,  # a hanging Redis must not block a request
        "socket_connect_timeout": 1,
        "socket_keepalive": True,
        "max_retries": 0,
        "visibility_timeout": 120,
    },
    task_publish_retry=False,  # the agent sweeps the outbox; a request never waits for the broker
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=1,
    worker_concurrency=2,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=False,
    task_acks_late=False,
    task_time_limit=3600,  # a launch may first verify a checkpoint of hundreds of gigabytes
    task_default_queue="berth",
    timezone="UTC",
)
# Celery would close the database's connection before and after every task; ``agent.tasks`` closes what is old or broken.
app.conf["CELERY_DB_REUSE_MAX"] = 10_000  # tasks
app.autodiscover_tasks(["orchestrator.agent"])
