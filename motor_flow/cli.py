"""What can be typed after `motor-flow`?

One function per verb, each one call into a view. stdout carries the result, stderr progress and logs. Imports are
inside the verbs: `--help` answers at once.

Exit status: 0 done; 1 failed; 2 usage; 3 a check found problems; 69 a needed service is unreachable; 78 bad
configuration; 130/143 signals.

Source: contract section 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXIT_CONFIG = 78

app = typer.Typer(
    name="motor-flow",
    help="A Coordinator for LLM serving: Render, Generate, Derender.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

config_app = typer.Typer(help="Look at the configuration.", no_args_is_help=True)
app.add_typer(config_app, name="config")


@app.callback()
def options() -> None:
    """A Coordinator for LLM serving: Render, Generate, Derender."""


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
def diagram(
    machine: Annotated[str | None, typer.Argument(help="request or stream; without it, all.")] = None,
    form: Annotated[str, typer.Option("--format", help="mermaid, md, dot or svg.")] = "mermaid",
    out: Annotated[Path | None, typer.Option(help="Write every format there instead of printing one.")] = None,
    check: Annotated[bool, typer.Option(help="Exit 3 when the committed pictures differ from the code.")] = False,
) -> None:
    """Draw the state machines."""
    from motor_flow.views.drawing import draw

    raise typer.Exit(draw(machine, form, out, check=check))


@app.command()
def check(
    config: Annotated[Path, typer.Option("--config", help="JSON file.")],
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
) -> None:
    """Validate a configuration and probe everything it names; exit 3 if something is unfit."""
    from motor_flow.views.check import run_check

    raise typer.Exit(run_check(config, as_json=as_json))


@config_app.command("schema")
def config_schema() -> None:
    """The JSON Schema of the configuration file."""
    from motor_flow.views.settings import print_schema

    raise typer.Exit(print_schema())


@config_app.command("show")
def config_show(config: ConfigFile = None) -> None:
    """The effective configuration, secrets hidden."""
    from motor_flow.views.settings import print_effective

    raise typer.Exit(print_effective(config))


def main() -> None:
    """The console script."""
    app()


if __name__ == "__main__":
    main()
