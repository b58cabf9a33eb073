"""What can be typed after `motor-flow`?

One function per verb, each one call into a view. stdout carries the result, stderr progress and logs. Imports are
inside the verbs: `--help` answers at once.

Exit status: 0 done; 1 failed; 2 usage; 3 a check found problems; 69 a needed service is unreachable; 78 bad
configuration; 130/143 signals.

Source: contract section 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from motor_flow.sim.faults import Plan

app = typer.Typer(
    name="motor-flow",
    help="A Coordinator for LLM serving: Render, Generate, Derender.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")
sim_app = typer.Typer(help="Run one simulator as its own process.", no_args_is_help=True)
app.add_typer(sim_app, name="sim")


def _show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"motor-flow {version('motor-flow')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Name the version and leave.")
    ] = False,
) -> None:
    """A Coordinator for LLM serving: Render, Generate, Derender."""


SimPort = Annotated[int, typer.Option(help="0: a free one, named on the ready line.")]
SimHost = Annotated[str, typer.Option(help="Address to listen on.")]
SimLength = Annotated[int, typer.Option(min=1, help="Context length in tokens.")]
# A test holds this list to motor_flow.sim.faults.KINDS, which is not imported for the sake of a quick --help.
FAULT_HELP = (
    "What is to go wrong with a call, and when; repeat for more. Kinds: reset, status, late, cut, bytes, eof, done, "
    "lost, stall, error, garbage, oversized, abort, recomputed, slow, die. Keys: after (events), seconds, status, "
    'times, skip (calls), on (generate, native, render, derender, any). Example: "cut after=5 times=2".'
)
FaultLines = Annotated[list[str] | None, typer.Option("--fault", metavar="KIND [KEY=VALUE ...]", help=FAULT_HELP)]
ConfigFile = Annotated[Path | None, typer.Option("--config", help="JSON file; without it, the embedded cluster.")]


@app.command()
def serve(
    config: ConfigFile = None,
    port: Annotated[
        int | None,
        typer.Option(help="Inference here, management on the next port, observability after it; 0: free ports."),
    ] = None,
) -> None:
    """Run the Coordinator until SIGTERM or SIGINT."""
    from motor_flow.views.launch import launch

    raise typer.Exit(launch(config, port))


@app.command()
def demo(
    *,
    pace: Annotated[float, typer.Option(min=0, max=1, help="Seconds between two tokens.")] = 0.03,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    log: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the logs there; else they are dropped.")
    ] = None,
) -> None:
    """Watch a streamed answer survive the death of its engine; exit 1 if the client could tell."""
    from motor_flow.views.demo import run_demo

    raise typer.Exit(run_demo(pace, as_json=as_json, log=log))


@app.command()
def diagram(
    machine: Annotated[str | None, typer.Argument(help="request or stream; without it, all.")] = None,
    form: Annotated[str, typer.Option("--format", help="What to print: mermaid, md, dot or svg.")] = "mermaid",
    out: Annotated[Path | None, typer.Option(help="Write every format there instead of printing.")] = None,
    check: Annotated[bool, typer.Option(help="Exit 3 when the committed pictures differ from the code.")] = False,
) -> None:
    """Draw the state machines."""
    from motor_flow.views.drawing import draw

    raise typer.Exit(draw(machine, form, out, check=check))


@app.command()
def check(
    *,
    config: Annotated[Path | None, typer.Option("--config", help="JSON file: probe everything it names.")] = None,
    sim: Annotated[bool, typer.Option("--sim", help="Play random faults on simulators, in virtual time.")] = False,
    requests: Annotated[int, typer.Option(min=1, help="With --sim: how many.")] = 2000,
    seed: Annotated[int, typer.Option(help="With --sim: the same seed, the same campaign.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Probe a deployment, or put the Coordinator itself to the test; exit 3 if something is unfit."""
    if sim == (config is not None):
        raise typer.BadParameter("give either --config FILE or --sim")
    if config is not None:
        from motor_flow.views.check import run_check

        raise typer.Exit(run_check(config, as_json=as_json))
    from motor_flow.views.campaign.run import run_campaign

    raise typer.Exit(run_campaign(requests, seed, as_json=as_json))


@app.command()
def parity(
    *,
    native: Annotated[str | None, typer.Option(metavar="URL", help="A vLLM server's own OpenAI API.")] = None,
    coordinator: Annotated[str | None, typer.Option(metavar="URL", help="Inference URL of the Coordinator.")] = None,
    fixed_tokens: Annotated[
        bool, typer.Option(help="Derender alone, on the tokens of the native answers: for engines that are not greedy.")
    ] = False,
    sidecar: Annotated[
        str | None, typer.Option(metavar="URL", help="With --fixed-tokens, instead of a Coordinator: the sidecar.")
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option(metavar="FILE|DIR", help="JSON lines; without it, the requests of this package.")
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="GLOB", help='Such requests only: "tools/*", "*/stream".')] = None,
    model: Annotated[
        str | None, typer.Option(help="Its served name; without it, the first that --native shows.")
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Print the names of the requests and leave.")] = False,
    out: Annotated[
        Path | None, typer.Option("--json", metavar="OUT", help="Write one document there; -: to stdout, no tables.")
    ] = None,
) -> None:
    """Send the same requests to native vLLM and to the Coordinator; exit 3 on a difference that is not accepted."""
    from motor_flow.views.parity.run import list_cases, run_parity

    if names:
        raise typer.Exit(list_cases(corpus, only))
    other = sidecar if fixed_tokens else coordinator
    if native is None or other is None or (sidecar is not None) != fixed_tokens:
        raise typer.BadParameter(
            "give --native URL and --coordinator URL; or --native URL, --fixed-tokens and --sidecar URL; or --list"
        )
    raise typer.Exit(
        run_parity(native, other, fixed_tokens=fixed_tokens, corpus=corpus, only=only, model=model, out=out)
    )


@sim_app.command("engine")
def sim_engine(
    *,
    port: SimPort = 0,
    host: SimHost = "127.0.0.1",
    name: Annotated[str, typer.Option(help="Who it is, for its logs and ids.")] = "engine-1",
    pace: Annotated[float, typer.Option(min=0, help="Seconds between two tokens.")] = 0.02,
    first_token: Annotated[float, typer.Option(min=0, help="Seconds before the first token.")] = 0.0,
    max_model_len: SimLength = 4096,
    scale_out: Annotated[bool, typer.Option(help="Offer the token-only routes.")] = True,
    role: Annotated[
        Literal["union", "prefill", "decode"],
        typer.Option(
            help="prefill and decode hand KV over, as handoff and trigger want it; GET /sim/kv shows tickets."
        ),
    ] = "union",
    tokens_only: Annotated[bool, typer.Option("--tokens-only", help="Without a tokenizer, for tokens alone.")] = False,
    fault: FaultLines = None,
) -> None:
    """A token engine that speaks vLLM's protocol."""
    from motor_flow.views.simulate import Engine, run_simulator

    app = Engine(
        name=name,
        role=role,
        pace_s=pace,
        first_token_s=first_token,
        max_model_len=max_model_len,
        scale_out=scale_out,
        tokens_only=tokens_only,
    )
    _plan(app.faults, fault)
    raise typer.Exit(run_simulator(app, "engine", host, port))


@sim_app.command("sidecar")
def sim_sidecar(
    port: SimPort = 0,
    host: SimHost = "127.0.0.1",
    max_model_len: SimLength = 4096,
    parsers: Annotated[bool, typer.Option(help="Parse reasoning and tool calls.")] = True,
    fault: FaultLines = None,
) -> None:
    """A Render/Derender sidecar that speaks vLLM's protocol."""
    from motor_flow.views.simulate import Sidecar, run_simulator

    app = Sidecar(max_model_len=max_model_len, parsers=parsers)
    _plan(app.faults, fault)
    raise typer.Exit(run_simulator(app, "sidecar", host, port))


@sim_app.command("kv")
def sim_kv(
    port: SimPort = 0,
    host: SimHost = "127.0.0.1",
    objects: Annotated[bool, typer.Option(help="Answer as the conductor in Rust, not as Mooncake's.")] = False,
    fault: FaultLines = None,
) -> None:
    """A KV conductor. What is cached where is posted to its /events."""
    from motor_flow.views.simulate import Conductor, run_simulator

    app = Conductor(objects=objects)
    _plan(app.faults, fault)
    raise typer.Exit(run_simulator(app, "kv", host, port))


def _plan(faults: Plan, lines: list[str] | None) -> None:
    from motor_flow.views.simulate import BadFault, plan

    try:
        plan(faults, lines or ())
    except BadFault as bad:
        raise typer.BadParameter(str(bad), param_hint="'--fault'") from None


@config_app.command("schema")
def config_schema() -> None:
    """The JSON Schema of the configuration file."""
    from motor_flow.views.settings import print_schema

    raise typer.Exit(print_schema())


@config_app.command("show")
def config_show(
    config: Annotated[Path | None, typer.Option("--config", help="JSON file; without it, the defaults.")] = None,
) -> None:
    """The effective configuration, secrets hidden."""
    from motor_flow.views.settings import print_effective

    raise typer.Exit(print_effective(config))


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
