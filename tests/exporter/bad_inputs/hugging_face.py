"""Hugging Face directories that the exporter cannot serve, or that need another command."""

import json
from pathlib import Path

from tests.exporter.bad_inputs.case import Case, Change, Section, remove

_EXPORT = "bert models/bert"


def make(folder: Path) -> None:
    """Save a small BERT."""
    import transformers

    config = transformers.BertConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, vocab_size=20,
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder / "bert")


def _configure(**settings: object) -> Change:
    """Return a change of the directory's config.json."""

    def change(folder: Path) -> None:
        path = folder / "bert/config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), **settings}))

    return change


SECTION = Section(
    "Hugging Face directories",
    "`bert` contains a BERT of transformers with 32 positions.",
    make,
    (
        Case("transformers is not installed", 10, _EXPORT, without=("transformers",)),
        Case("Directory without weights", 6, f"{_EXPORT} --from huggingface", remove("bert/model.safetensors")),
        Case("Class that transformers lacks", 7, _EXPORT,
             _configure(architectures=["OurBert"], auto_map={"AutoModel": "modeling.OurBert"})),
        Case("Class without these weights", 2, _EXPORT, _configure(num_hidden_layers=2)),
        Case("Builder that is no class of transformers", 2, f"{_EXPORT} --from huggingface --model json:loads"),
        Case("Unknown setting", 7, f"{_EXPORT} --model-arg heads=3"),
        Case("Unknown input of the class", 2, f"{_EXPORT} --input 'words:int64[batch,length]'"),
        Case("Sequence bucket above the positions", 2, f"{_EXPORT} --sequence-buckets 16,64"),
        Case("Quantized weights", 4, _EXPORT, _configure(quantization_config={"quant_method": "gptq"})),
    ),
    packages=("torch", "torchax", "transformers"),
)  # fmt: skip
