"""JAX models in the kinds of checkpoints that people have, and models that need an option or a next step."""

import json
import pickle

import flax.serialization
import flax.training.checkpoints
import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
import tensorstore
from flax import linen as nn
from flax import nnx
from flax.training import train_state
from flax.traverse_util import flatten_dict, unflatten_dict

RNG = np.random.default_rng(3)


class Positions(nn.Module):
    """Learned positions for up to 32 tokens, cut to the length of the input."""

    @nn.compact
    def __call__(self, ids):
        positions = self.param("positions", nn.initializers.normal(0.1), (32, 16))
        x = nn.Embed(64, 16)(ids) + positions[: ids.shape[1]]
        return {"logits": nn.Dense(64)(nn.gelu(nn.Dense(32)(x)))}


def positions():
    return Positions()


def save_positions(folder):
    """Answer the shortest and longest sequences of each bucket, and lengths between them."""
    variables = Positions().init(jax.random.key(0), np.ones((1, 8), np.int32))
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", variables)
    requests = [RNG.integers(1, 64, (3, length)).astype("int32") for length in (1, 7, 8, 9, 15, 16)]
    return {"serving_default": [({"ids": ids}, Positions().apply(variables, ids)) for ids in requests]}


class Encoder(nn.Module):
    """Embedding, scaled norm, a gated layer, and a head, with T5's names."""

    @nn.compact
    def __call__(self, ids):
        x = nn.Embed(40, 8, name="token_embedder")(ids)
        scale = self.param("scale", nn.initializers.normal(0.5), (8,))
        x = x * scale * jax.lax.rsqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        x = x + nn.Dense(8, use_bias=False, name="wo")(nn.gelu(nn.Dense(16, use_bias=False, name="wi")(x)))
        return {"logits": nn.Dense(5, name="head", dtype=jnp.float32)(x.mean(1))}


IDS = np.random.default_rng(5).integers(0, 40, (5, 7)).astype(np.int32)


def encoder():
    return Encoder()


def trained(dtype=jnp.float32):
    """Return a state after steps of Adam, so that its moments differ from its parameters."""
    params = jax.tree.map(lambda one: one.astype(dtype), Encoder().init(jax.random.key(3), IDS)["params"])
    state = train_state.TrainState.create(apply_fn=Encoder().apply, params=params, tx=optax.adam(1e-2))
    grad = jax.jit(jax.grad(lambda one: (Encoder().apply({"params": one}, IDS)["logits"] ** 2).mean()))
    for _ in range(3):
        state = state.apply_gradients(grads=grad(state.params))
    return state


def answers(params):
    return {"serving_default": [({"ids": IDS}, jax.jit(Encoder().apply)({"params": params}, IDS))]}


def save_msgpack(folder):
    """Save parameters with to_bytes, a whole state with save_checkpoint, and shards as `transformers` 4 did."""
    state = trained()
    (folder / "params.msgpack").write_bytes(flax.serialization.to_bytes(state.params))
    flax.config.update("flax_use_orbax_checkpointing", False)
    for step in (90, 100):
        flax.training.checkpoints.save_checkpoint(folder / "steps", state.replace(step=step), step, keep=2)
    for name in ("whole", "shards"):
        (folder / name).mkdir()
        (folder / name / "config.json").write_text('{"model_type": "t5"}')
    (folder / "whole/flax_model.msgpack").write_bytes(flax.serialization.to_bytes(state.params))
    flat = flatten_dict(state.params, sep="/")
    weight_map = {}
    for number, names in enumerate((list(flat)[:2], list(flat)[2:]), 1):
        shard = f"flax_model-0000{number}-of-00002.msgpack"
        part = unflatten_dict({name: flat[name] for name in names}, sep="/")
        (folder / "shards" / shard).write_bytes(flax.serialization.to_bytes(part))
        weight_map |= dict.fromkeys(names, shard)
    index = json.dumps({"metadata": {}, "weight_map": weight_map})
    (folder / "shards/flax_model.msgpack.index.json").write_text(index)
    (folder / "params.pkl").write_bytes(pickle.dumps(jax.device_get(state.params)))
    return answers(state.params)


def write_zarr(path, array):
    """Write an array as T5X does: gzip, in chunks, and no fill value."""
    spec = {
        "driver": "zarr",
        "dtype": jnp.dtype(array.dtype).name,
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {
            "shape": list(array.shape), "chunks": [max(1, one // 2) for one in array.shape],
            "compressor": {"id": "gzip"},
        },
    }  # fmt: skip
    tensorstore.open(spec, create=True, open=True).result().write(np.asarray(array)).result()
    spec["kvstore"]["path"] = path.name
    return tensorstore.Spec(spec).to_json()


def save_t5x(folder):
    """Save what t5x.checkpoints.Checkpointer writes: `checkpoint` refers to a directory for each large array."""
    state = trained(jnp.bfloat16)
    directory = folder / "run/checkpoint_1000000"
    directory.mkdir(parents=True)

    def write(path, array):
        name = ".".join(str(key.key) for key in path)
        return write_zarr(directory / name, array) if array.size > 8 else np.asarray(array)

    moments = jax.tree.map(lambda mu, nu: {"m": mu, "v": nu}, state.opt_state[0].mu, state.opt_state[0].nu)
    saved = {"state": {"step": np.int32(1000000), "param_states": moments}, "target": state.params}
    written = jax.tree_util.tree_map_with_path(write, saved)
    content = flax.serialization.msgpack_serialize({"version": 3, "optimizer": written})
    (directory / "checkpoint").write_bytes(content)
    return answers(state.params)


def save_pax(folder):
    """Save what PaxML writes: the path in the tree is the name of the directory."""
    state = trained()
    directory = folder / "checkpoints/checkpoint_00001000"
    (directory / "metadata").mkdir(parents=True)
    (directory / "metadata/metadata").write_text('{"version": 1.2}')
    for name, array in flatten_dict({"mdl_vars": {"params": state.params}}, sep=".").items():
        write_zarr(directory / "state" / name, array)
    write_zarr(directory / "state/step", np.int32(1000))
    return answers(state.params)


def save_npz(folder):
    """Save what big_vision writes: a flat archive with paths, in which NumPy cannot name bfloat16."""
    state = trained(jnp.bfloat16)
    moments = {"mu": state.opt_state[0].mu, "nu": state.opt_state[0].nu, "count": state.opt_state[0].count}
    flat = flatten_dict({"params": state.params, "opt": moments, "extra": {"accum_examples": 9}}, sep="/")
    np.savez(folder / "checkpoint.npz", **{name: np.asarray(one) for name, one in flat.items()})
    return answers(state.params)


def save_maxtext(folder):
    """Save what MaxText writes: an item named `items` in each step, with the collection within the parameters."""
    state = trained()
    saved = {"params": {"params": state.params}, "opt_state": state.opt_state, "step": state.step}
    with ocp.CheckpointManager(folder / "checkpoints", item_names=("items",)) as manager:
        manager.save(3, args=ocp.args.Composite(items=ocp.args.PyTreeSave(saved)))
        manager.wait_until_finished()
    return answers(state.params)


class Decoder(nn.Module):
    """Attention that keeps the keys and values of earlier calls, as for text that it generates."""

    @nn.compact
    def __call__(self, ids):
        return {"logits": nn.Dense(40)(nn.MultiHeadDotProductAttention(num_heads=2, decode=True)(nn.Embed(40, 8)(ids)))}


def decoder():
    return Decoder()


class Noisy(nnx.Module):
    """A module that samples a code in evaluation mode too, as a variational autoencoder does."""

    def __init__(self, rngs):
        self.mean, self.rngs = nnx.Linear(6, 3, rngs=rngs), rngs

    def __call__(self, x):
        return self.mean(x) + jax.random.normal(self.rngs.noise(), (3,))


def noisy():
    return lambda: Noisy(nnx.Rngs(0))


def save_decoder(folder):
    params = Decoder().init(jax.random.key(0), IDS)["params"]
    (folder / "params.msgpack").write_bytes(flax.serialization.to_bytes(params))
    return {}


def save_noisy(folder):
    state = nnx.state(Noisy(nnx.Rngs(0)), nnx.Param)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", nnx.to_pure_dict(state))
    return {}
