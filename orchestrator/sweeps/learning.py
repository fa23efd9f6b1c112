"""Warm starts: the earlier sweeps whose trials the sampler of a new one knows."""

from uuid import UUID

from django.contrib.auth.models import AbstractBaseUser

from orchestrator.exceptions import Malformed, Sentence
from orchestrator.models import Sweep, SweepState
from orchestrator.sweeps.core.space import Space
from orchestrator.sweeps.history_rows import metrics_of

MOST_LEARNED_FROM = 20  # sweeps
SHORTEST_PART = 4  # of an id that names a sweep


def choose_earlier(user: AbstractBaseUser, wanted: str | None, space: Space, sweep: Sweep) -> list[str]:
    """Note the earlier sweeps whose trials the sampler learns from; returns warnings for the person.

    Args:
        wanted: the id of a sweep, or a part of it; "auto" for all of the same code, space and metrics.

    Raises:
        Malformed: there is no such sweep, or it searched for something else.
    """
    if wanted is None:
        return []
    visible = Sweep.objects.visible_to(user).filter(metric=sweep.metric, direction=sweep.direction)
    if wanted == "auto":
        ended = visible.exclude(state__in=(SweepState.RUNNING, SweepState.PAUSED))
        same = ended.filter(bundle=sweep.bundle).order_by("-pk")[:MOST_LEARNED_FROM]
        names = {setting.name for setting in space.settings}
        sweep.learns_from = [
            str(one.pk) for one in same if set(one.space) == names and metrics_of(one) == metrics_of(sweep)
        ]
        if sweep.learns_from:
            return []
        return ["There is no ended sweep of this code, space and metric, so this one begins without any."]
    earlier = _named_sweep(user, wanted)
    _check_comparable(earlier, sweep, space)
    sweep.learns_from = [str(earlier.pk)]
    other_code = earlier.bundle != sweep.bundle
    return [f"{earlier} tried another version of the code; its values may mislead."] if other_code else []


def _named_sweep(user: AbstractBaseUser, text: str) -> Sweep:
    rows = Sweep.objects.visible_to(user)
    try:
        found = list(rows.filter(pk=UUID(text)))
    except ValueError:
        plain = len(text) >= SHORTEST_PART and set(text.lower()) <= set("0123456789abcdef-")
        found = list(rows.filter(id__contains=text.lower())[:2]) if plain else []
    if len(found) == 1:
        return found[0]
    sentence = (
        Sentence("several sweep ids contain {text!r}; give a longer part", text=text[:40])
        if found
        else Sentence("there is no sweep {text!r}; give the id of a sweep, or auto", text=text[:40])
    )
    raise Malformed(Sentence("warm_start: {sentence}.", sentence=sentence), fields={"warm_start": [sentence]})


def _check_comparable(earlier: Sweep, sweep: Sweep, space: Space) -> None:
    names = {setting.name for setting in space.settings}
    sentence = ""
    if not earlier.has_ended:
        sentence = Sentence(
            "{earlier} still runs; stop it, or begin this one when it has ended", earlier=earlier
        )
    elif metrics_of(earlier) != metrics_of(sweep):
        theirs = ", ".join(f"{one.name} ({one.direction})" for one in metrics_of(earlier))
        sentence = Sentence(
            "{earlier} searched for {theirs}, not for the metrics of this sweep",
            earlier=earlier,
            theirs=theirs,
        )
    elif set(earlier.space) != names:
        others = ", ".join(sorted(set(earlier.space) ^ names)[:5])
        sentence = Sentence(
            "{earlier} has other settings; one of the two lacks {others}", earlier=earlier, others=others
        )
    if sentence:
        raise Malformed(
            Sentence("warm_start: {sentence}.", sentence=sentence), fields={"warm_start": [sentence]}
        )
