"""The app that owns the models."""

from django.apps import AppConfig


class OrchestratorConfig(AppConfig):
    name = "orchestrator"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django.utils.translation import gettext, ngettext

        from berth.shared.language import speak_with
        from orchestrator.people import accounts, sessions  # noqa: F401  # registers their receivers; needs the models

        speak_with(gettext, ngettext)
