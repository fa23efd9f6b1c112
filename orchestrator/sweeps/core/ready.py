"""Ready spaces: searches that many people begin with, by name, in the short form of settings."""

from collections.abc import Mapping
from typing import NamedTuple

from orchestrator.exceptions import Sentence
from orchestrator.sweeps.core.space import WrongSpace


class ReadySpace(NamedTuple):
    """Settings in the short form, with the names that scripts usually have for them."""

    title: str
    help: str
    names: tuple[str, ...]
    flags: tuple[str, ...]  # with the names in braces


READY: Mapping[str, ReadySpace] = {
    "lr-range": ReadySpace(
        "Learning-rate range",
        "13 rates from 1e-6 to 1, a short training each: shows where learning begins and where it breaks",
        ("lr",),
        ("{0}=choice:1e-6,3e-6,1e-5,3e-5,1e-4,3e-4,1e-3,3e-3,0.01,0.03,0.1,0.3,1",),
    ),
    "lr-batch": ReadySpace(
        "Learning rate with the batch",
        "the rate is searched at a batch of 32 and grows with the batch",
        ("lr", "batch-size"),
        ("{1}=choice:16,32,64,128,256", "{0}=log:1e-5..1e-1*{1}/32"),
    ),
}


def flags_of(text: str) -> list[str]:
    """The settings of a ready space such as ``lr-batch``, or with a script's own names ``lr-batch:rate,batch``.

    Raises:
        WrongSpace: there is no such space, or it has another number of names.
    """
    name, colon, given = text.strip().partition(":")
    ready = READY.get(name)
    if ready is None:
        raise WrongSpace(
            "",
            Sentence(
                "there is no ready space {name!r}; there are {ready}", name=name[:40], ready=", ".join(READY)
            ),
        )
    names = [one.strip() for one in given.split(",")] if colon else list(ready.names)
    if len(names) != len(ready.names) or not all(names):
        raise WrongSpace(
            "",
            Sentence(
                "{name} takes the script's names as {name}:{names}", name=name, names=",".join(ready.names)
            ),
        )
    return [flag.format(*names) for flag in ready.flags]
