"""How a job names data: references in its ``datasets``, and placeholders in its arguments such as ``{dataset:digits}``."""

import re
from collections.abc import Iterable

from orchestrator.exceptions import Sentence
from orchestrator.spec.remote_data import EXAMPLES, looks_remote, read_remote

# Before a slash the name of the person who pushed it, as accounts may be called.
DATASET_REFERENCE = re.compile(
    r"(?:(?!\.{1,2}/)[\w.@+-]{1,150}/)?[A-Za-z0-9][A-Za-z0-9._-]{0,63}(@[A-Za-z0-9][A-Za-z0-9._-]{0,31})?"
)
MODEL_PREFIX = "model:"  # of a reference to a model's data
PLACEHOLDER = re.compile(
    rf"\{{(?:checkpoint_dir|checkpoint_folder|checkpoint|output_dir|array_index"
    rf"|(?P<kind>dataset|model):(?P<data>{DATASET_REFERENCE.pattern}))\}}"
)


def check_reference(reference: str) -> None:
    """Check an entry of a job's ``datasets``: data of this server by its name, or an address.

    Raises:
        ValueError: it is neither.
    """
    if looks_remote(reference):
        try:
            read_remote(reference)
        except ValueError as error:
            raise ValueError(Sentence("datasets: {error}", error=error)) from None
    elif not DATASET_REFERENCE.fullmatch(reference.removeprefix(MODEL_PREFIX)):
        raise ValueError(
            Sentence(
                "datasets: {reference!r} is not a dataset; give name or name@version of one on this server, or an address such as {examples}",
                reference=reference[:80],
                examples=EXAMPLES,
            )
        )


def data_in(arguments: Iterable[str]) -> list[tuple[str, str]]:
    """The data that placeholders name, each once: ``("model", "digits@3")`` of ``{model:digits@3}``."""
    hits = (hit for argument in arguments for hit in PLACEHOLDER.finditer(argument) if hit["kind"])
    return list(dict.fromkeys((hit["kind"], hit["data"]) for hit in hits))


def fill_placeholders(arguments: list[str], values: dict[str, str]) -> list[str]:
    """Replace the placeholders of api.md by paths; leave other braces as they are.

    Args:
        values: by the text between the braces, such as ``checkpoint`` or ``dataset:digits``.
    """
    return [PLACEHOLDER.sub(lambda hit: values.get(hit[0][1:-1], hit[0]), argument) for argument in arguments]
