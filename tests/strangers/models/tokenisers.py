"""SavedModels with the tokeniser in the graph, of TensorFlow Text."""

import numpy as np
import tensorflow as tf
import tensorflow_text as text

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "##s", "very", "not", "the", "un", "##watch"]
WORDS += ["##able", "café", "cafe", "!", "."]
SENTENCES = np.array(
    ["A very good film!", "unwatchable, not good", "The Café films.", "", "zebra"], object
)  # fmt: skip


class Sentiment(tf.Module):
    """BERT's tokeniser, packing, and a bag of embeddings. It writes its vocabulary as an asset."""

    def __init__(self, folder):
        super().__init__()
        vocabulary = folder / "vocabulary.txt"
        vocabulary.write_text("\n".join(WORDS), encoding="utf-8")
        self.tokenizer = text.BertTokenizer(str(vocabulary), token_out_type=tf.int64, lower_case=True)
        random = np.random.default_rng(5)
        self.embedding = tf.Variable(random.normal(size=(len(WORDS), 8)).astype("f"))
        self.head = tf.Variable(random.normal(size=(8, 3)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text_):
        tokens = self.tokenizer.tokenize(text_).merge_dims(1, 2)
        trimmed = text.RoundRobinTrimmer(6).trim([tokens])
        packed, _ = text.combine_segments(trimmed, 2, 3)
        ids, mask = text.pad_model_inputs(packed, 8)
        pooled = tf.reduce_sum(tf.gather(self.embedding, ids) * tf.cast(mask, tf.float32)[..., None], 1)
        return {"scores": tf.nn.softmax(pooled @ self.head), "ids": ids}


def save_bert(folder):
    model = Sentiment(folder)
    tf.saved_model.save(model, str(folder / "saved"), signatures=model.serve)
    outputs = {name: value.numpy() for name, value in model.serve(tf.constant(SENTENCES)).items()}
    return {"serving_default": [({"text": SENTENCES}, outputs)]}


class Normaliser(tf.Module):
    """Unicode normalisation, a fast wordpiece tokeniser and n-grams, whose models are constants of the graph."""

    def __init__(self):
        super().__init__()
        self.tokenizer = text.FastBertTokenizer(WORDS, token_out_type=tf.string, lower_case_nfd_strip_accents=True)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text_):
        folded = text.normalize_utf8(text.case_fold_utf8(text_), "NFKC")
        tokens = self.tokenizer.tokenize(folded)
        pairs = text.ngrams(tokens, 2, reduction_type=text.Reduction.STRING_JOIN, string_separator=" ")
        return {"pairs": tf.strings.reduce_join(pairs, 1, separator="|"), "folded": folded}


def save_fast_bert(folder):
    model = Normaliser()
    tf.saved_model.save(model, str(folder / "saved"), signatures=model.serve)
    outputs = {name: value.numpy() for name, value in model.serve(tf.constant(SENTENCES)).items()}
    return {"serving_default": [({"text": SENTENCES}, outputs)]}


def _field(number, content):
    """Return a field of a serialized message: text, bytes, a float or a small number."""
    if isinstance(content, float):
        return bytes([number << 3 | 5]) + np.float32(content).tobytes()
    if isinstance(content, int):
        return bytes([number << 3, content])
    content = content.encode() if isinstance(content, str) else content
    return bytes([number << 3 | 2, len(content)]) + content


def _sentencepiece_model():
    """Return a ModelProto of SentencePiece (sentencepiece_model.proto) with a few pieces of a unigram model."""
    special = [("<unk>", 0.0, 2), ("<s>", 0.0, 3), ("</s>", 0.0, 3)]
    pieces = ["▁a", "▁good", "▁film", "▁not", "▁un", "watch", "able", "s", "▁", "o", "g", "d", "f", "i", "l", "m"]
    scored = [(piece, -1.0 - index / 4, 1) for index, piece in enumerate(pieces)]
    return b"".join(
        _field(1, _field(1, piece) + _field(2, score) + _field(3, kind)) for piece, score, kind in special + scored
    )


class Pieces(tf.Module):
    def __init__(self):
        super().__init__()
        self.tokenizer = text.SentencepieceTokenizer(_sentencepiece_model(), add_eos=True)
        size = int(self.tokenizer.vocab_size())
        self.embedding = tf.Variable(np.random.default_rng(6).normal(size=(size, 4)).astype("f"))

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")])
    def serve(self, text_):
        ids = self.tokenizer.tokenize(text_)
        return {"mean": tf.reduce_mean(tf.gather(self.embedding, ids), 1), "ids": ids.to_tensor(-1, shape=[None, 16])}


def save_sentencepiece(folder):
    model = Pieces()
    tf.saved_model.save(model, str(folder / "saved"), signatures=model.serve)
    sentences = np.array(["a good film", "not unwatchable", "good films", "zebra"], object)
    outputs = {name: value.numpy() for name, value in model.serve(tf.constant(sentences)).items()}
    return {"serving_default": [({"text": sentences}, outputs)]}


def save_forest(folder):
    """Train a random forest with YDF, which writes its nodes as assets."""
    import ydf

    random = np.random.default_rng(1)
    a, b, c = random.normal(size=(3, 200)).astype("f")
    words = np.where(c > 0, "v", "u")
    data = {"a": a, "b": b, "c": words, "label": (a * b > 0).astype(int)}
    model = ydf.RandomForestLearner(label="label", num_trees=5, max_depth=4).train(data, verbose=0)
    model.to_tensorflow_saved_model(str(folder / "saved"), mode="tf")
    few = {name: values[:5] for name, values in data.items() if name != "label"}
    answer = model.predict(few)
    return {"serving_default": [({**few, "c": few["c"].astype(bytes).astype(object)}, {"output": answer})]}
