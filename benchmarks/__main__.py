"""`python -m benchmarks NAME`: run one benchmark from the repository's root; without a name, list them."""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

# Modules by benchmark name. `main` is a click command, or a function that reads sys.argv and may return a status.
BENCHMARKS: Final = {
    "overhead": "overhead.overhead",
    "loop_delay": "overhead.loop_delay",
    "load_reports": "overhead.load_reports",
    "codecs": "codecs.codecs",
    "large": "large.large",
    "recommender": "recommender.recommender",
    "observation": "observation.observation",
    "scrapes": "observation.scrapes",
    "access": "access.access",
    "client": "client.client",
    "peers": "peers.peers",
    "ray": "ray.ray",
    "multiplexed": "ray.multiplexed",
    "memory": "memory.memory",
    "updates": "memory.updates",
    "on_demand": "memory.on_demand",
    "reload": "reload.reload",
    "balance": "balancing.balance",
    "resnet": "devices.resnet",
    "cpu_runtimes": "devices.cpu_runtimes",
    "device": "devices.device",
    "device_programs": "devices.device_programs",
    "executor": "devices.executor_loop",
    "tpu_models": "devices.tpu_models",
    "simulate": "batching.simulate",
    "objective_live": "batching.objective_live",
    "overload": "batching.overload_live",
    "fleet": "fleet.fleet",
    "sequences": "batching.sequences",
    "loadgen": "loadgen.loadgen",
    "loadtest": "loadgen.loadtest",
    "export_memory": "export.export_memory",
    "frozen_model": "export.frozen_model",
    "preflight": "export.preflight",
}
EPILOG = """\b
Examples:
  python -m benchmarks overhead --quick
  python -m benchmarks overhead --help
  python -m benchmarks peers --only triton

benchmarks/README.md describes what each benchmark measures, its requirements, and its output.
"""


class _Names(click.Command):
    """A command whose `--help` lists the benchmarks."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        with formatter.section("Benchmarks"):
            formatter.write_dl([(name, summary(name)) for name in BENCHMARKS])


@click.command(
    cls=_Names,
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False, "max_content_width": 120},
)
@click.argument("name", required=False, type=click.Choice(list(BENCHMARKS)), metavar="NAME")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def benchmarks(ctx: click.Context, name: str | None, arguments: Sequence[str]) -> None:
    """Run the benchmark NAME with its ARGUMENTS. `NAME --help` lists them."""
    if name is None:
        click.echo(ctx.get_help())
        return
    main = importlib.import_module(f"benchmarks.{BENCHMARKS[name]}").main
    program = f"python -m benchmarks {name}"
    if isinstance(main, click.Command):
        main.main(list(arguments), prog_name=program)
    sys.argv = [program, *arguments]
    sys.exit(main())


def summary(name: str) -> str:
    """Read the first line of a benchmark's docstring, without importing it."""
    source = Path(__file__).parent.joinpath(*BENCHMARKS[name].split(".")).with_suffix(".py")
    return (ast.get_docstring(ast.parse(source.read_text())) or "").partition("\n")[0]


if __name__ == "__main__":
    benchmarks(prog_name="python -m benchmarks", terminal_width=120)
