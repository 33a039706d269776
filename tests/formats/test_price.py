"""Tests for prices on the command line."""

import pytest

from tpuserve_formats.errors import FormatError
from tpuserve_formats.price import Price


@pytest.mark.parametrize(
    ("text", "price", "shown"),
    [
        ("1.20", Price(1.2), "1.2 USD/h"),
        (" 3 eur ", Price(3.0, "EUR"), "3 EUR/h"),
        ("0.4JPY", Price(0.4, "JPY"), "0.4 JPY/h"),
        (".5", Price(0.5), "0.5 USD/h"),
        ("0.000001", Price(1e-6), "1e-06 USD/h"),
        ("1000000", Price(1e6), "1000000 USD/h"),
    ],
)
def test_a_price_is_a_number_with_an_optional_currency(text: str, price: Price, shown: str) -> None:
    assert Price.parse(text) == price
    assert str(price) == shown


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        "0.0",
        "-1",
        "nan",
        "inf",
        "1e3",
        "1000000.01",
        "0.0000009",
        "9" * 400,
        "1,2",
        "$1",
        "1 euro",
        "\u0661",
        "1_0",
    ],
)
def test_other_texts_are_no_price(text: str) -> None:
    with pytest.raises(FormatError, match=r"is not a price per hour\. Write a number from 0\.000001 to 1,000,000"):
        Price.parse(text)
