"""Trained models that pass --expect on held-out rows, and the untrained or wrongly prepared ones that do not."""

from tests.strangers.stranger import Export, Refusal, Stranger

MODELS = "tests.strangers.models.labelled_models"


def _export(
    source: str, builder: str, *options: str, path: str = "trained", refused: str = "", exit_code: int = 14
) -> Export:
    refusal = Refusal(exit_code, refused) if refused else None
    given = ("--model", f"{MODELS}:{builder}", "--batch-sizes", "1,8", "--labelled", *options)
    return Export(source, path, given, refusal=refusal)


def _expect(*texts: str) -> tuple[str, ...]:
    return tuple(word for text in texts for word in ("--expect", text))


FLOWERS = _expect("accuracy>=0.9", "top-2>=0.96")
PHOTO = ("--signature", "serving_default=tensor", "--signature", "photo=image_bytes", "--labels", "{folder}/labels.txt")
RECORDS = ("{folder}/rows.tfrecord", "--input-key", "image_bytes=image/encoded", *_expect("accuracy>=0.95"), *PHOTO)
NAMES = ("--label-key", "image/class/text")
TOKENS = _expect("perplexity<=3", "accuracy>=0.8")
TUMOURS = _expect("auc(risk,benign)>=0.95", "accuracy(risk,benign)>=0.9", "mae(size,radius)<=0.4")

STRANGERS = (
    Stranger(
        "labelled_flowers",
        f"{MODELS}:save_flowers",
        (
            _export("trained, .npz", "flowers", "{folder}/rows.npz", *FLOWERS),
            _export("trained, .csv", "flowers", "{folder}/rows.csv", "--labels", "{folder}/labels.txt",
                    "--label-key", "species", *FLOWERS),
            _export("untrained", "flowers", "{folder}/rows.npz", *FLOWERS, path="untrained", refused="accuracy is 0."),
            _export("labels shifted", "flowers", "{folder}/shifted.npz", *FLOWERS, refused="accuracy is 0"),
            _export("inputs not scaled", "flowers", "{folder}/unscaled.npz", *FLOWERS, refused="Likely causes: "),
            _export("names without --labels", "flowers", "{folder}/rows.csv", "--label-key", "species", *FLOWERS,
                    refused="is a name, but the classes have no names. Use --labels FILE", exit_code=9),
        ),
    ),
    Stranger(
        "labelled_shades",
        f"{MODELS}:save_shades",
        (
            _export("trained, TFRecord", "shades", *RECORDS, *NAMES, "--image-scale", "0..1"),
            _export("untrained", "shades", *RECORDS, *NAMES, "--image-scale", "0..1", path="untrained",
                    refused="accuracy is 0."),
            _export("pixels of 0..255", "shades", *RECORDS, *NAMES, "--image-scale", "none", refused="accuracy is "),
            _export("classes from 1", "shades", *RECORDS, "--label-key", "image/class/label", "--image-scale", "0..1",
                    refused="is no class: the output has classes 0 to 2. Number labels from 0", exit_code=9),
        ),
    ),
    Stranger(
        "labelled_tokens",
        f"{MODELS}:save_letters_in_order",
        (
            _export("trained", "successor", "{folder}/rows.npz", *TOKENS),
            _export("untrained", "successor", "{folder}/rows.npz", *TOKENS, path="untrained", refused="perplexity is "),
            _export("labels not shifted", "successor", "{folder}/unshifted.npz", *TOKENS, refused="such as the next"),
        ),
    ),
    Stranger(
        "labelled_tumours",
        f"{MODELS}:save_tumours",
        (
            _export("trained", "tumours", "{folder}/rows.npz", *TUMOURS),
            _export("untrained", "tumours", "{folder}/rows.npz", *TUMOURS, path="untrained", refused="auc is "),
            _export("no output named", "tumours", "{folder}/rows.npz", *_expect("auc(,benign)>=0.95"),
                    refused="may mean any of the outputs risk, size of serving_default. Name one", exit_code=2),
        ),
    ),
)  # fmt: skip
