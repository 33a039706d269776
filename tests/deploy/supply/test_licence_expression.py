"""Tests of SPDX licence expressions."""

import pytest

from deploy.supply.licence_expression import ExpressionError, is_permitted

ALLOWED = frozenset(("MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"))


@pytest.mark.parametrize(
    ("expression", "permitted"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("GPL-3.0-only OR MIT", True),
        ("MIT AND GPL-3.0-only", False),
        ("MIT AND Apache-2.0", True),
        # AND binds more tightly than OR.
        ("MIT OR Apache-2.0 AND GPL-3.0-only", True),
        ("GPL-3.0-only AND MIT OR GPL-2.0-only", False),
        ("GPL-3.0-only AND (MIT OR Apache-2.0)", False),
        ("MIT AND (GPL-3.0-only OR Apache-2.0)", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("MIT WITH LLVM-exception", False),
        (" ( MIT ) ", True),
    ],
)
def test_all_parts_of_and_and_one_part_of_or_must_be_allowed(expression: str, permitted: bool) -> None:
    assert is_permitted(expression, ALLOWED) is permitted


@pytest.mark.parametrize(
    "text", ["", " ", "MIT OR", "OR MIT", "(MIT", "MIT)", "MIT Apache-2.0", "MIT, BSD", "()", "AND"]
)
def test_other_text_is_no_expression(text: str) -> None:
    with pytest.raises(ExpressionError):
        is_permitted(text, ALLOWED)
