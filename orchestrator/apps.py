"""The app that owns the models."""

from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from orchestrator.access import sessions  # noqa: F401  # its receivers; needs the models
