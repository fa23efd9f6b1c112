"""Every address of the server."""

from django.contrib import admin
from django.urls import include, path

from orchestrator.api import api

urlpatterns = [
    path("api/v1/", api.urls),
    path("admin/", admin.site.urls),
    path("", include("dashboard.urls")),
]
