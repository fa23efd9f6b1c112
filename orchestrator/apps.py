"""The app that owns the models."""

from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from orchestrator.people import sessions, standing  # noqa: F401  # their receivers; they need the models
