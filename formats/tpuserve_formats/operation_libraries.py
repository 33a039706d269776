"""Libraries of operations that TensorFlow Serving links, and that TensorFlow's own package does not have.

The exporter and the server load them from the packages of an extra, for a graph that needs them. Only the shared
objects are loaded: importing the packages would import all of TensorFlow's Python code.
"""

import importlib.util
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final


@dataclass(frozen=True, slots=True)
class OperationLibrary:
    """One library. `extra` of tpuserve-server and tpuserve-exporter installs `distribution`, which has `module`.

    `files` is the pattern of the shared objects in the module's directory.
    """

    name: str
    extra: str
    distribution: str
    module: str
    files: str
    operations: frozenset[str]

    @property
    def is_installed(self) -> bool:
        """Whether the package can be found."""
        return importlib.util.find_spec(self.module) is not None

    def shared_objects(self) -> list[Path]:
        """Return the files to load; none if the package is not installed."""
        found = importlib.util.find_spec(self.module)
        folders = [] if found is None else map(Path, found.submodule_search_locations or ())
        return sorted(file for folder in folders for file in folder.glob(self.files))

    def named(self, operations: Collection[str]) -> str:
        """Return those of `operations` that are the library's, as text with its name."""
        return f"{', '.join(sorted(self.operations & set(operations)))} of {self.name}"


TEXT: Final = OperationLibrary(
    "TensorFlow Text",
    "text",
    "tensorflow-text",
    "tensorflow_text",
    "python/*/_*.so",
    frozenset({
        "CaseFoldUTF8", "ConstrainedSequence", "FastBertNormalize", "FastWordpieceTokenizeWithOffsets",
        "FindSourceOffsets", "MaxSpanningTree", "NormalizeUTF8", "NormalizeUTF8WithOffsetsMap", "PhraseTokenize",
        "RegexSplitWithOffsets", "RougeL", "SentenceFragments", "SentenceFragmentsV2", "SentencepieceDetokenizeOp",
        "SentencepieceIdToStringOp", "SentencepieceOp", "SentencepieceStringToIdOp", "SentencepieceTokenizeOp",
        "SentencepieceTokenizeWithOffsetsOp", "SentencepieceVocabSizeOp", "SplitMergeTokenizeWithOffsets",
        "TFText>BoiseTagsToOffsets", "TFText>ByteSplitByOffsets", "TFText>ByteSplitWithOffsets",
        "TFText>FastSentencepieceDetokenize", "TFText>FastSentencepieceTokenize", "TFText>FastWordpieceDetokenize",
        "TFText>NgramsStringJoin", "TFText>OffsetsToBoiseTags", "TFText>PhraseDetokenize",
        "TFText>RoundRobinGenerateMasks", "TFText>RoundRobinTrim", "TFText>Utf8Binarize",
        "TFText>WhitespaceTokenizeWithOffsetsV2", "TokenizerFromLogits", "UnicodeScriptTokenizeWithOffsets",
        "WhitespaceTokenizeWithOffsets", "WordpieceTokenizeWithOffsets",
    }),
)  # fmt: skip
FORESTS: Final = OperationLibrary(
    "Decision Forests",
    "forests",
    "ydf-tf",
    "ydf_tf",
    "inference.so",
    frozenset({
        "SimpleMLCreateModelResource", "SimpleMLInferenceLeafIndexOpWithHandle", "SimpleMLInferenceOp",
        "SimpleMLInferenceOpWithHandle", "SimpleMLLoadModelFromPath", "SimpleMLLoadModelFromPathWithHandle",
    }),
)  # fmt: skip
LIBRARIES: Final = (TEXT, FORESTS)


def libraries_with(operations: Collection[str]) -> list[OperationLibrary]:
    """Return the libraries that have any of the operations."""
    return [one for one in LIBRARIES if not one.operations.isdisjoint(operations)]
