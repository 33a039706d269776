"""Models of transformers in the directories that `save_pretrained` writes, with random weights."""

import json

import numpy as np
import torch
import transformers

WORDS = 60


def disturb(model):
    """Set weights that differ from those of a new model."""
    torch.manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model.eval()


def ask(model, requests, names):
    exchanges = []
    for inputs in requests:
        with torch.inference_mode():
            answer = model(**{name: torch.from_numpy(value) for name, value in inputs.items()})
        exchanges.append((inputs, {name: answer[name].float().numpy() for name in names}))
    return {"serving_default": exchanges}


def texts(*shapes):
    """Make tokens of several lengths, with a mask of padding at the end of rows."""
    random = np.random.default_rng(5)
    for rows, length in shapes:
        tokens = random.integers(2, WORDS, (rows, length))
        mask = (np.arange(length) < random.integers(1, length + 1, (rows, 1))).astype(np.int64)
        yield {"input_ids": tokens, "attention_mask": mask}


TEXTS = list(texts((5, 7), (1, 1), (4, 16)))
PICTURES = [{"pixel_values": np.random.default_rng(6).normal(0, 1, (5, 3, 16, 16)).astype(np.float32)}]


def save_bert(folder):
    model = disturb(transformers.BertForSequenceClassification(transformers.BertConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=WORDS,
        max_position_embeddings=32, num_labels=3)))  # fmt: skip
    model.save_pretrained(folder / "bert")
    requests = [{**one, "token_type_ids": (one["input_ids"] > 30).astype(np.int64)} for one in TEXTS]
    return ask(model, requests, ["logits"])


def save_t5_encoder(folder):
    model = disturb(transformers.T5EncoderModel(transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=WORDS)))  # fmt: skip
    model.save_pretrained(folder / "t5")
    return ask(model, TEXTS, ["last_hidden_state"])


def gpt2_config():
    return transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=WORDS, n_positions=32)


def save_gpt2(folder):
    model = disturb(transformers.GPT2LMHeadModel(gpt2_config()))
    model.save_pretrained(folder / "gpt2", max_shard_size="8KB")
    return ask(model, TEXTS, ["logits"])


def save_vit(folder):
    model = disturb(transformers.ViTForImageClassification(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, image_size=16, patch_size=8,
        num_labels=5)))  # fmt: skip
    model.save_pretrained(folder / "vit")
    return ask(model, PICTURES, ["logits"])


def save_llama(folder):
    """Save a model with grouped queries and rotary positions, as a pickle."""
    model = disturb(transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
        vocab_size=WORDS, max_position_embeddings=32)))  # fmt: skip
    model.save_pretrained(folder / "llama")
    (folder / "llama/model.safetensors").unlink()
    torch.save(model.state_dict(), folder / "llama/pytorch_model.bin")
    return ask(model, TEXTS, ["logits"])


def save_mixtral(folder):
    """Save a mixture of experts, which chooses the largest scores."""
    model = disturb(transformers.MixtralForCausalLM(transformers.MixtralConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1, intermediate_size=32,
        vocab_size=WORDS, num_local_experts=4, num_experts_per_tok=2)))  # fmt: skip
    model.save_pretrained(folder / "mixtral")
    return ask(model, TEXTS, ["logits"])


def save_t5(folder):
    """Save an encoder with its decoder."""
    model = disturb(transformers.T5ForConditionalGeneration(transformers.T5Config(
        d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2, vocab_size=WORDS)))  # fmt: skip
    model.save_pretrained(folder / "t5")
    return ask(model, [{**one, "decoder_input_ids": one["input_ids"][:, :1]} for one in TEXTS], ["logits"])


def save_whisper(folder):
    model = disturb(transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32, vocab_size=WORDS, num_mel_bins=8, max_source_positions=16,
        max_target_positions=16, pad_token_id=1, bos_token_id=2, eos_token_id=3,
        decoder_start_token_id=2)))  # fmt: skip
    model.save_pretrained(folder / "whisper")
    sounds = np.random.default_rng(8).normal(0, 1, (5, 8, 32)).astype(np.float32)
    return ask(model, [{"input_features": sounds, "decoder_input_ids": TEXTS[0]["input_ids"]}], ["logits"])


def save_swin(folder):
    """Save a model of windows, under the names of transformers 4."""
    model = disturb(transformers.SwinForImageClassification(transformers.SwinConfig(
        image_size=16, patch_size=4, embed_dim=8, depths=[1, 1], num_heads=[2, 2], window_size=2)))  # fmt: skip
    model.save_pretrained(folder / "swin")
    return ask(model, PICTURES, ["logits"])


def save_quantized(folder):
    """Save a directory with weights for the kernels of GPUs."""
    model = transformers.ViTModel(transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32, image_size=16,
        patch_size=8))  # fmt: skip
    model.save_pretrained(folder / "vit")
    config = json.loads((folder / "vit/config.json").read_text())
    (folder / "vit/config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "gptq"}}))
    return ask(model.eval(), PICTURES, ["last_hidden_state"])


class Gpt2(torch.nn.Module):
    """GPT-2 with its default attention, in a module of its user."""

    def __init__(self):
        super().__init__()
        self.gpt2 = transformers.GPT2LMHeadModel(gpt2_config())

    def forward(self, input_ids):
        return {"logits": self.gpt2(input_ids, use_cache=False).logits}


def own_gpt2():
    return Gpt2()


def save_own_gpt2(folder):
    model = disturb(own_gpt2())
    torch.save(model.state_dict(), folder / "gpt2.pt")
    return ask(model, [{"input_ids": one["input_ids"]} for one in TEXTS[:1]], ["logits"])
