"""Who is reading."""

from django.contrib.auth.models import User
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest


def signed_in(request: HttpRequest) -> User:
    """The person behind a request; every page asks for one before its view runs."""
    user = request.user
    if not isinstance(user, User):
        raise PermissionDenied
    return user
