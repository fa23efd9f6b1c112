"""``python -m training.federated --sites 5 --model train.py:build_model --data train.py:site_data``."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import nn

from training.federated import places, remote
from training.federated.privacy import Privacy
from training.federated.report import Kept, RoundReport
from training.federated.rounds import Server
from training.federated.site import Local
from training.recipes import named, weights
from training.recipes.measure import metrics_of, score
from training.recipes.named import RecipeError, Samples
from training.report import default_reporter

MESSAGE_BYTES = 1 << 20  # of a message beside a masked update
EXCHANGE = "FEDERATION_EXCHANGE"  # the folder between the jobs of a federation; Berth sets it


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m training.federated", description="Run federated rounds.")
    parser.add_argument("--sites", type=int, help="how many sites there are, three or more")
    parser.add_argument("--model", required=True, help="function that builds it, as train.py:build_model")
    parser.add_argument("--data", required=True, help="function of (site, sites) that returns its data")
    parser.add_argument("--evaluate-on", help="function that returns the server's evaluation data")
    parser.add_argument("--data-path", help="of this job's data (default: the job's only dataset)")
    parser.add_argument("--weights", type=Path, help="file or folder of the model to begin with")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--epochs", type=int, default=1, help="of a site in a round")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--proximal", type=float, default=0.0, help="weight of FedProx; 0 is FedAvg")
    parser.add_argument("--clip", type=float, help="largest norm of a site's update, for privacy")
    parser.add_argument("--noise", type=float, help="noise on the sum, in units of --clip")
    parser.add_argument("--delta", type=float, default=1e-5, help="chance with which privacy may fail")
    parser.add_argument("--patience-s", type=float, default=600.0, help="longest step of a site, in seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--part", choices=("all", "server", "site"), default="all", help="of this job")
    parser.add_argument("--site", type=int, default=0, help="number of the site that this job is")
    parser.add_argument("--join", metavar="VARIABLE", help="holds the invitation to a federation elsewhere")
    options = parser.parse_args(arguments)
    if options.sites is None and options.join is None:
        parser.error("the following arguments are required: --sites")
    return options


def run(arguments: Sequence[str] | None = None) -> nn.Module | None:
    """Run all rounds, report them, and keep the model as a checkpoint; or take part as one site.

    Raises:
        RecipeError: the settings cannot work, or too many sites were lost.
    """
    options = parse(arguments)
    named.give_arguments(options.model, [])
    if options.join is not None:
        data_path = options.data_path or named.path_of_data()
        remote.join(remote.invitation(options.join), options.model, options.data, data_path)
        return None
    local = _local(options)
    if options.part == "site":
        places.join(local, options.site, _exchange())
        return None
    torch.manual_seed(options.seed)
    model = named.build_model(options.model)
    sites = _sites(options, model)
    if options.weights is not None:
        weights.load_into(model, weights.read(options.weights))
    held = options.evaluate_on and named.read_samples(options.evaluate_on, 256, data_path=local.data_path)
    _run_rounds(options, Server(local, model, sites, options.patience_s), held or None)
    return model


def _sites(options: argparse.Namespace, model: nn.Module) -> places.Sites:
    if options.part != "server":
        return places.Processes()
    masked_bytes = 8 * (1 + sum(each.numel() for each in model.parameters()))
    return places.Jobs(_exchange(), masked_bytes + MESSAGE_BYTES)


def _run_rounds(options: argparse.Namespace, server: Server, held: Samples | None) -> None:
    kept = Kept.resumed(server.model)
    server.spent.noises += kept.noises
    with server:
        for number in range(kept.rounds + 1, options.rounds + 1):
            began_s, told = time.monotonic(), len(server.lost)
            server.round(number)
            if number in server.unusable:
                sys.stdout.write(
                    f"Round {number} changed nothing: the sum of the sites' samples is not above zero.\n"
                )
            for lost in server.lost[told if number > kept.rounds + 1 else 0 :]:
                sys.stdout.write(f"{lost}\n")
            report = RoundReport(
                round=number,
                sites=server.summed,
                seconds=round(time.monotonic() - began_s, 3),
                metrics=_measure(server.model, held),
                epsilon=server.spent.epsilon if server.local.privacy else None,
            )
            default_reporter().report(number, **report.values())
            kept.add(report, server)


def _exchange() -> Path:
    try:
        return Path(os.environ[EXCHANGE])
    except KeyError:
        raise RecipeError(
            "The parts of a federation are jobs that Berth begins: berth federated run."
        ) from None


def _local(options: argparse.Namespace) -> Local:
    if (options.clip is None) != (options.noise is None):
        raise RecipeError("Privacy needs both --clip and --noise.")
    if options.clip is not None and not (options.clip > 0 and options.noise > 0 and 0 < options.delta < 1):
        raise RecipeError("--clip and --noise are above 0, and --delta is between 0 and 1.")
    return Local(
        model=options.model,
        data=options.data,
        data_path=options.data_path or named.path_of_data(*([options.weights] if options.weights else [])),
        sites=options.sites,
        epochs=options.epochs,
        batch_size=options.batch_size,
        learning_rate=options.learning_rate,
        proximal=options.proximal,
        privacy=None if options.clip is None else Privacy(options.clip, options.noise, options.delta),
        seed=options.seed,
    )


def _measure(model: nn.Module, held: Samples | None) -> dict[str, float]:
    if held is None:
        return {}
    model.eval()
    return {each["name"]: each["value"] for each in metrics_of(score(model, held))}


def main(arguments: Sequence[str] | None = None) -> None:
    default_reporter().prints = True
    try:
        run(arguments)
    except RecipeError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
