"""The app that owns the pages."""

from django.apps import AppConfig


class DashboardConfig(AppConfig):
    name = "dashboard"
