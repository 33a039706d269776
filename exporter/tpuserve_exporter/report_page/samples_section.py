"""Sample inputs with the version's predictions. The user's examples with their verdicts come first."""

from collections.abc import Iterator, Mapping
from typing import Any

from tpuserve_formats.markup import Markup, element

_MOST_RANKED = 3


def show_samples(document: Mapping[str, Any]) -> Markup:
    samples = document.get("samples") or ()
    if not samples:
        return Markup()
    cards = [_card(sample) for sample in samples]
    return element("section", element("h2", "Sample answers"), element("div", *cards, class_="samples"))


def _card(sample: Mapping[str, Any]) -> Markup:
    return element("article", *_input(sample), *_answer(sample), *_verdict(sample), class_="sample")


def _input(sample: Mapping[str, Any]) -> Iterator[Markup]:
    if image := sample.get("image"):
        yield element("img", src=image, alt=sample["name"])
    if text := sample.get("text"):
        yield element("p", text, class_="given")
    if sample.get("image") or text != sample["name"]:
        yield element("p", f"{sample['name']} · {sample['signature']}", class_="quiet")
    else:
        yield element("p", sample["signature"], class_="quiet")


def _answer(sample: Mapping[str, Any]) -> Iterator[Markup]:
    prediction = sample["prediction"]
    if top := prediction["top"]:
        rows = [_ranked(one) for one in top[:_MOST_RANKED]]
        yield element("table", element("tbody", *rows), class_="bars")
    for name, value in () if top else prediction["outputs"].items():
        yield element("p", element("b", name), " ", element("code", value))


def _ranked(one: Mapping[str, Any]) -> Markup:
    label = one["label"] or f"class {one['index']}"
    score = one["score"]
    if score is None:
        return element("tr", element("th", label, scope="row"), element("td", "not finite"))
    share = score if 0 <= score <= 1 else 0.0
    bar = element("span", class_="bar", style=f"width:{100 * share:.0f}%")
    return element("tr", element("th", label, bar, scope="row"), element("td", f"{score:.3g}"))


def _verdict(sample: Mapping[str, Any]) -> Iterator[Markup]:
    if sample["passed"] is None:
        return
    verdict, kind = ("correct", "good") if sample["passed"] else ("wrong", "bad")
    expected = f" expected {sample['expected']}"
    yield element("p", element("span", verdict, class_=f"badge {kind}"), expected)
