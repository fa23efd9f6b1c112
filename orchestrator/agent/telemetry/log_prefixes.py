"""What logging puts before a message: a time, a level, the name of a logger."""

import re

from orchestrator.agent.telemetry.vocabulary import EVALUATION, PARTS, TRAINING

PARTS_OF_A_RUN = "|".join(sorted(EVALUATION | TRAINING))
LOG_PREFIX = re.compile(
    r"(?:[IWEF]\d{4} [^\]]{0,160}\])?"  # "I0101 10:00:00.123456  1234 solver.cpp:414]" of glog
    r"[\s\x01:,./|+-]{0,60}(?:\[[^\]]{0,80}\]\s{0,2})?"
    # "[__main__][INFO]" of Hydra
    rf"(?:\[(?!(?i:{PARTS_OF_A_RUN})\])[A-Za-z_][\w.]{{0,79}}\]\s{{0,2}}){{0,2}}"
    r"[\s:|-]{0,4}(?:(?:INFO|DEBUG|WARNING|root|logger)\b[\s:|\]-]{0,4}){0,2}"
)
# The name of a logger: "INFO:eval:" of logging, "eval - INFO - ", "[eval][INFO] - "
_LEVEL = "(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)"
_LOGGER = re.compile(
    rf"(?:^{_LEVEL}:(?P<basic>[\w.]{{1,60}}):|(?:^|\s)(?P<dashed>[\w.]{{1,60}})\s-\s{_LEVEL}\s-\s|\[(?P<hydra>[\w.]{{1,60}})\]\[{_LEVEL}\](?:\s-\s)?)"
)
MOST_LOGGED = 10  # numbers before the name of a logger: a time


def without_logger(texts: tuple[str, ...]) -> tuple[tuple[str, ...], str]:
    """The texts without the name of their logger, and this name, if it is that of a part of a run."""
    for at, text in enumerate(texts[:MOST_LOGGED]):
        if (hit := _LOGGER.search(text[:160])) is None:
            continue
        name = (hit["basic"] or hit["dashed"] or hit["hydra"]).rpartition(".")[2].lower()
        if name not in PARTS:
            return texts, ""
        rest = f"{text[: hit.start()]} {text[hit.end() :]}".lstrip()
        return (*texts[:at], rest, *texts[at + 1 :]), name if name in EVALUATION else ""
    return texts, ""
