"""Commands of federated trainings, whose sites are jobs."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from berth.cli.options import Given, JobCommand, Json, takes_job_options
from berth.cli.printing import safe, say, show_json

if TYPE_CHECKING:
    from berth.client import Federation

commands = typer.Typer()
federated_app = typer.Typer(
    help="Train one model at sites that keep their data.", invoke_without_command=True
)
commands.add_typer(federated_app, name="federated", rich_help_panel="Submit")
PARTS = {
    "waits": "not there yet",
    "takes_part": "takes part",
    "left_out": "left out",
    "took_part": "took part",
    "in_no_round": "in no round",
    "never_joined": "never joined",
}
DAY_S = 24 * 3600
Wanted = Annotated[str, typer.Argument(metavar="ID", help="Id or part of it")]


@federated_app.callback()
def federated(ctx: typer.Context, as_json: Json = False) -> None:
    if ctx.invoked_subcommand is None:
        list_federations(as_json=as_json)


@federated_app.command(cls=JobCommand)
@takes_job_options
def run(
    ctx: typer.Context,
    code: Annotated[str | None, typer.Argument(help="Script, archive or folder")] = None,
    *,
    given: Given,
    model: Annotated[
        str, typer.Option("--model", metavar="FILE:FUNCTION", help="Function that builds the model")
    ],
    sites: Annotated[int | None, typer.Option("--sites", help="Number of sites that are jobs here")] = None,
    remote_sites: Annotated[
        int | None, typer.Option("--remote-sites", help="Number of sites at other Berths, by invitation")
    ] = None,
    site_data: Annotated[
        list[str] | None,
        typer.Option("--site-data", metavar="NAME", help="Dataset of one site; repeat for each"),
    ] = None,
    function: Annotated[
        str | None, typer.Option("--data-from", metavar="FILE:FUNCTION", help="Function with a site's data")
    ] = None,
    evaluate_on: Annotated[
        str | None,
        typer.Option("--evaluate-on", metavar="FILE:FUNCTION", help="Function with the server's data"),
    ] = None,
    begin_with: Annotated[
        str | None, typer.Option("--begin-with", metavar="MODEL", help="Model to begin with")
    ] = None,
    result: Annotated[str | None, typer.Option("--result", help="Name of the model that comes of it")] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", help="Rounds; default: 20")] = None,
    epochs: Annotated[int | None, typer.Option("--epochs", help="Epochs of a site in a round")] = None,
    batch_size: Annotated[int | None, typer.Option("--batch-size", help="Batch of a site")] = None,
    learning_rate: Annotated[float | None, typer.Option("--learning-rate", help="Of the sites")] = None,
    proximal: Annotated[
        float | None, typer.Option("--proximal", help="Weight of FedProx; 0 is FedAvg")
    ] = None,
    clip: Annotated[float | None, typer.Option("--clip", help="Privacy: largest norm of an update")] = None,
    noise: Annotated[float | None, typer.Option("--noise", help="Privacy: noise in units of --clip")] = None,
    delta: Annotated[float | None, typer.Option("--delta", help="Chance that privacy may fail")] = None,
    patience_s: Annotated[
        float | None, typer.Option("--patience-s", help="Longest answer of a site, in seconds")
    ] = None,
    as_json: Json = False,
) -> None:
    """Begin a federated training: a job for each site, and one for their server.

    berth federated run train.py --model train.py:build_model --sites 5 --data digits --evaluate-on train.py:evaluation_data
    """
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    asked: dict[str, Any] = {
        "model": model, "sites": sites, "remote_sites": remote_sites, "site_datasets": site_data or None, "data": function,
        "evaluate_on": evaluate_on, "begin_with": begin_with, "result": result, "rounds": rounds,
        "epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate, "proximal": proximal,
        "clip": clip, "noise": noise, "delta": delta, "patience_s": patience_s,
    }  # fmt: skip
    spec = read_options(berth, given)
    if name := spec.pop("name", None):
        asked["name"] = name
    asked = {key: value for key, value in asked.items() if value is not None}
    begun = berth.federate(code or ".", job=spec, **asked)
    if as_json:
        show_json(begun.json)
        return
    say(f"Began {safe(begun.name)} {begun.short_id}: {len(begun.sites)} sites, {begun.rounds} rounds.")
    if remote_sites:
        say(f"Invite the sites at other Berths with: berth federated invite {begun.short_id} NAME")
    say(f"See its rounds with: berth federated show {begun.short_id}")


@federated_app.command("list")
def list_federations(
    count: Annotated[int, typer.Option("--number", "-n", min=1, help="Most to list")] = 20,
    as_json: Json = False,
) -> None:
    """List the newest federated trainings."""
    from berth.cli.choosing import connect
    from berth.cli.tables import grid, terminal

    found = connect().federations(limit=count)
    if as_json:
        show_json([each.json for each in found])
        return
    if not found:
        say(
            "There are no federated trainings. Begin one with: berth federated run train.py --model ... --sites 5"
        )
        return
    table = grid("id", "name", "state", "rounds", "sites", "newest", "model")
    for each in found:
        done = each.report["rounds"]
        inside = sum(not site["left_out"] for site in each.sites)
        table.add_row(
            each.short_id, safe(each.name), each.state, f"{len(done)} of {each.rounds}",
            f"{inside} of {len(each.sites)}", _values(done[-1]) if done else "", safe(each.result or ""),
        )  # fmt: skip
    terminal().print(table)


@federated_app.command()
def show(wanted: Wanted, as_json: Json = False) -> None:
    """Show the rounds of a federated training, and its sites."""
    from berth.cli.choosing import connect

    found = connect().federation(wanted)
    if as_json:
        show_json(found.json)
    else:
        _show(found)


@federated_app.command()
def invite(
    wanted: Wanted,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the site, as you call it")],
    days: Annotated[
        float | None, typer.Option("--days", min=0, help="How long it may join; default: 7")
    ] = None,
    as_json: Json = False,
) -> None:
    """Invite a site at another Berth, and show its link once."""
    from berth.cli.choosing import connect

    expires_in_s = None if days is None else days * DAY_S
    made = connect().federation(wanted).invite(name, expires_in_s=expires_in_s)
    if as_json:
        show_json(made)
        return
    say(f"Site {safe(made['name'])} may join until {made['expires_at'][:10]}. Its link, shown only now:")
    say(safe(made["link"]))
    say("At the other Berth: berth federated join 'LINK' train.py --model train.py:build_model")


@federated_app.command()
def revoke(
    wanted: Wanted,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Of the site")],
    as_json: Json = False,
) -> None:
    """End the part of a site at another Berth, whether it has joined or not."""
    from berth.cli.choosing import connect

    found = connect().federation(wanted)
    found.revoke(name)
    if as_json:
        show_json(found.refresh().json)
    else:
        say(f"Revoked {safe(name)}; the rounds no longer wait for it.")


@federated_app.command(cls=JobCommand)
@takes_job_options
def join(
    ctx: typer.Context,
    link: Annotated[str, typer.Argument(metavar="LINK", help="Invitation that the owner has sent")],
    code: Annotated[str | None, typer.Argument(help="Script, archive or folder")] = None,
    *,
    given: Given,
    model: Annotated[
        str, typer.Option("--model", metavar="FILE:FUNCTION", help="Function that builds the same model")
    ],
    function: Annotated[
        str | None, typer.Option("--data-from", metavar="FILE:FUNCTION", help="Function with your data")
    ] = None,
    as_json: Json = False,
) -> None:
    """Take part in a federated training at another Berth: a job here, whose data stay here.

    berth federated join 'https://berth.example.org/federated#bsite_...' train.py --model train.py:build_model
    """
    from berth.cli.choosing import connect
    from berth.cli.job_options import read_options

    berth = connect()
    job = berth.join_federation(link, code or ".", model=model, data=function, job=read_options(berth, given))
    if as_json:
        show_json(job.json)
        return
    say(f"Submitted {safe(job.name)} {job.short_id}. It joins once it runs: berth logs -f {job.short_id}")


@federated_app.command()
def stop(wanted: Wanted, as_json: Json = False) -> None:
    """Stop all jobs of a federated training."""
    from berth.cli.choosing import connect

    stopped = connect().federation(wanted).stop()
    if as_json:
        show_json(stopped.json)
    else:
        say(f"Stopped {safe(stopped.name)} {stopped.short_id}.")


def _show(found: "Federation") -> None:
    from berth.cli.tables import grid, terminal

    say(f"{safe(found.name)} {found.short_id}: {found.state}. {safe(found.reason)}".strip())
    if found.result:
        say(f"Its model: {safe(found.result)}")
    sites = grid("site", "job", "state", "part")
    for site in found.sites:
        job = site["job"][-8:] if site["job"] else "elsewhere"
        name = f"{site['number']} {safe(site['name'])}".strip()
        sites.add_row(name, job, site["state"], safe(site["left_out"]) or PARTS[site["part"]])
    terminal().print(sites)
    rounds = grid("round", "sites", "s", "values")
    for each in found.report["rounds"]:
        rounds.add_row(str(each["round"]), str(each["sites"]), f"{each['seconds']:.3g}", _values(each))
    if found.report["rounds"]:
        terminal().print(rounds)


def _values(each: Any) -> str:
    values = [f"{name} {value:.4g}" for name, value in each["metrics"].items()]
    if each["epsilon"] is not None:
        values.append(f"epsilon {each['epsilon']:.3g}")
    return safe(", ".join(values))
