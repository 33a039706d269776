"""The choice of pixel values in the console's form."""

from tests.support.web_driver import WebDriver


def select_pixel_values(page: WebDriver, values: str) -> None:
    """Select pixel values such as `0..1` for the input `image`."""
    page.evaluate(
        "const scale = document.getElementById('input-image-scale'); scale.value = arguments[0];"
        "scale.dispatchEvent(new Event('change', {bubbles: true}))",
        values,
    )
