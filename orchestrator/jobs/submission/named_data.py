"""The data that a job names, as datasets and in placeholders of its arguments: each becomes one version."""

from collections.abc import Iterable, Sequence

from django.contrib.auth.models import AbstractBaseUser

from orchestrator.exceptions import Impossible, Sentence
from orchestrator.jobs import datasets, fetches
from orchestrator.models import Dataset
from orchestrator.spec.data_names import MODEL_PREFIX, data_in
from orchestrator.spec.job_spec import JobSpec
from orchestrator.spec.remote_data import RemoteData, looks_remote, read_remote


def pin(user: AbstractBaseUser, spec: JobSpec) -> list[str]:
    """Resolve references to versions, each once; each dataset needs an environment variable of its own.

    What an argument names in a placeholder, ``{model:digits@3}``, need not be among the job's datasets.

    Raises:
        Impossible: something is not there, or two would have the same name; the sentence names the versions that are.
    """
    found = {each.reference: each for each in (_data_of(reference, user) for reference in spec.datasets)}
    for field, arguments in (
        ("args", spec.args),
        ("resume_args", spec.resume_args),
        ("command", spec.command),
    ):
        for kind, reference in data_in(arguments):
            if (named := _named_in(field, kind, reference, user, list(found.values()))) is not None:
                found.setdefault(named.reference, named)
    _check_variables(found.values())
    return list(found)


def _data_of(reference: str, user: AbstractBaseUser) -> Dataset | RemoteData:
    if not looks_remote(reference):
        dataset = datasets.resolve(reference, user)
        datasets.check_readable(dataset)
        return dataset
    remote = read_remote(reference)
    fetches.check(remote)
    return remote


def _named_in(
    field: str, kind: str, reference: str, user: AbstractBaseUser, found: Sequence[Dataset | RemoteData]
) -> Dataset | None:
    """The dataset that a placeholder needs besides those that the job has; None if it has it."""
    if any(isinstance(each, RemoteData) and each.name == reference for each in found):
        return None
    whose, name, version = datasets.split_reference(reference)
    having = [
        each.reference
        for each in found
        if isinstance(each, Dataset)
        and each.name == name
        and version in ("", each.version)
        and (not whose or each.reference.startswith(f"{whose}/"))
    ]
    if len(having) > 1:
        sentence = Sentence(
            "{placeholder} may be any of {several}; name the version: {versioned}.",
            placeholder=f"{{{kind}:{reference}}}",
            several=", ".join(having),
            versioned=f"{{{kind}:{name}@VERSION}}",
        )
        raise _impossible(field, sentence)
    prefix = MODEL_PREFIX if kind == "model" else ""
    try:
        # What the job has already is asked for again by its whole name: a dataset may be no model.
        dataset = datasets.resolve(f"{prefix}{having[0] if having else reference}", user)
        datasets.check_readable(dataset)
    except Impossible as error:
        raise _impossible(field, error.args[0]) from error
    return dataset


def _check_variables(chosen: Iterable[Dataset | RemoteData]) -> None:
    chosen = list(chosen)
    here = [each for each in chosen if isinstance(each, Dataset)]
    names = {each.reference: name for each, name in zip(here, datasets.names_in_a_job(here), strict=True)}
    reference_of: dict[str, str] = {}
    for dataset in chosen:
        variable = datasets.variable_of(names.get(dataset.reference, dataset.name))
        if reference_of.setdefault(variable, dataset.reference) != dataset.reference:
            sentence = Sentence(
                "{reference_of} and {reference} would both be {variable}; give one of them{or_another}.",
                reference_of=reference_of[variable],
                reference=dataset.reference,
                variable=variable,
                or_another=Sentence(", or another name: NAME=ADDRESS")
                if isinstance(dataset, RemoteData)
                else "",
            )
            raise _impossible("datasets", sentence)


def _impossible(field: str, sentence: str) -> Impossible:
    return Impossible(sentence, fields={field: [sentence]})
