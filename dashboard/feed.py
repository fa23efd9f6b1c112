"""Nothing is watched yet."""


def redis_down_since() -> float | None:
    """Since when Redis has not answered; None while it does."""
    return None
