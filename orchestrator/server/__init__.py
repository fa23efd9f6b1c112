"""Settings, urls, asgi, celery: the only place that names everything."""
