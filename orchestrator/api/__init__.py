"""REST's door."""

from ninja import NinjaAPI

api = NinjaAPI(title="Berth", version="1", urls_namespace="api")
