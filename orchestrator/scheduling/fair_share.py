"""What owners used lately: old use counts less."""

HALF_LIFE_S = 7 * 86400.0


def decayed(gpu_s: float, elapsed_s: float, half_life_s: float = HALF_LIFE_S) -> float:
    """What is left of a use after ``elapsed_s``; a clock that went back adds nothing."""
    return gpu_s * float(0.5 ** (max(0.0, elapsed_s) / half_life_s))
