"""The option `--price-per-hour`: the price of the server's machine."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from tpuserve_loadtests.cli.command import option

if TYPE_CHECKING:
    from tpuserve_formats.price import Price


def price_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --price-per-hour, the price of the server's machine."""
    return _price_option("PRICE", _parsed, "such as 1.20 or '1.20 EUR'")


def sides_price_option() -> Any:  # noqa: ANN401  a field of any type
    """Declare --price-per-hour for two sides, with a price for each machine."""
    return _price_option("PRICE[,PRICE]", _parsed_sides, "for two machines, the prices of A and B")


def _price_option(metavar: str, callback: Callable[..., Any], which: str) -> Any:  # noqa: ANN401  a field of any type
    """Declare --price-per-hour. `which` describes its form in the help."""
    return option(
        "--price-per-hour",
        metavar=metavar,
        callback=callback,
        help=f"Price of the server for an hour, to report the cost of a million predictions; {which}.",
    )


def _parsed(context: click.Context, parameter: click.Parameter, value: str | None) -> "Price | None":
    return None if value is None else _parse(value)


def _parsed_sides(context: click.Context, parameter: click.Parameter, value: str | None) -> "tuple[Price, ...]":
    """Return the price of each side, or an empty tuple. A single price applies to both."""
    if value is None:
        return ()
    prices = tuple(_parse(each) for each in value.split(","))
    if len(prices) > 2:
        raise click.BadParameter(f"{value!r} has {len(prices)} prices. Set at most two, for A and B.")
    if prices[0].currency != prices[-1].currency:
        raise click.BadParameter(
            f"{value!r} has two currencies, and nothing converts them. Set both prices in the same currency."
        )
    return prices if len(prices) == 2 else prices * 2


def _parse(text: str) -> "Price":
    from tpuserve_formats.price import Price

    try:
        return Price.parse(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
