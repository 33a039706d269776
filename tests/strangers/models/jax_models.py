"""JAX models of several libraries: Flax linen and NNX, trees of Haiku and Equinox, plain functions."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import linen as nn
from flax import nnx

ROWS = np.random.default_rng(3).normal(0.3, 1.2, (5, 6)).astype(np.float32)
PICTURES = np.random.default_rng(4).normal(0.3, 1.2, (5, 8, 8, 3)).astype(np.float32)
IDS = np.random.default_rng(5).integers(0, 20, (5, 7)).astype(np.int32)


def draw_like(tree, seed=1):
    """Return random weights of the same structure. Positive values, such as variances, stay positive."""
    generator = np.random.default_rng(seed)
    leaves, structure = jax.tree.flatten(tree)
    drawn = [
        (np.exp(generator.normal(0, 0.3, leaf.shape)) if np.all(np.asarray(leaf) == 1) else
         generator.normal(0, 0.4, leaf.shape)).astype(np.asarray(leaf).dtype)
        for leaf in leaves
    ]  # fmt: skip
    return jax.tree.unflatten(structure, [jnp.asarray(one) for one in drawn])


def checkpoint(folder, tree):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", tree)


# Flax linen


class ConvNet(nn.Module):
    """Convolution, batch norm, dropout."""

    @nn.compact
    def __call__(self, image, train: bool = False):
        x = nn.Conv(8, (3, 3))(image)
        x = nn.BatchNorm(use_running_average=not train)(x)
        x = nn.relu(x).mean((1, 2))
        x = nn.Dropout(0.5, deterministic=not train)(x)
        return nn.Dense(4)(x)


class Encoder(nn.Module):
    """Embedding, self-attention, layer norm; two outputs."""

    @nn.compact
    def __call__(self, ids):
        mask = ids > 0
        x = nn.Embed(20, 16, name="words")(ids)
        for index in range(2):
            y = nn.LayerNorm(name=f"norm_{index}")(x)
            y = nn.SelfAttention(num_heads=2, name=f"attention_{index}")(y, mask=mask[:, None, None, :])
            x = x + nn.Dense(16, name=f"mlp_{index}")(nn.gelu(y))
        pooled = (x * mask[..., None]).sum(1) / jnp.maximum(mask.sum(1, keepdims=True), 1)
        return {"pooled": pooled, "logits": nn.Dense(3, name="head")(pooled)}


def conv_net():
    return ConvNet()


def encoder():
    return Encoder()


def save_linen_conv(folder):
    """Save a training state with a CheckpointManager: parameters, statistics, optimizer and step."""
    model = ConvNet()
    variables = draw_like(model.init(jax.random.key(0), PICTURES))
    state = {
        "step": 12,
        "params": variables["params"],
        "batch_stats": variables["batch_stats"],
        "opt_state": optax.adam(1e-3).init(variables["params"]),
    }
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        manager.save(12, args=ocp.args.StandardSave(state))
    logits = model.apply(variables, PICTURES, train=False)
    return {"serving_default": [({"image": PICTURES}, {"outputs": logits})]}


def save_linen_encoder(folder):
    model = Encoder()
    variables = draw_like(model.init(jax.random.key(0), IDS))
    checkpoint(folder, variables["params"])
    return {"serving_default": [({"ids": IDS}, model.apply(variables, IDS))]}


# Flax NNX


class Tower(nnx.Module):
    def __init__(self, rngs):
        self.layers = nnx.List([nnx.Linear(6, 8, rngs=rngs), nnx.Linear(8, 8, rngs=rngs)])
        self.norm = nnx.BatchNorm(8, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.head = nnx.Linear(8, 3, rngs=rngs)

    def __call__(self, x):
        for layer in self.layers:
            x = nnx.relu(layer(x))
        return self.head(self.dropout(self.norm(x)))


def tower():
    return Tower(nnx.Rngs(0))


def save_nnx(folder):
    model = Tower(nnx.Rngs(9))
    nnx.update(model, draw_like(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    checkpoint(folder, nnx.to_pure_dict(nnx.state(model, (nnx.Param, nnx.BatchStat))))
    model.eval()
    return {"serving_default": [({"x": ROWS}, {"outputs": model(ROWS)})]}


# Trees with the names of Haiku's transform


def haiku_forward(params, x):
    for index in range(2):
        layer = params[f"mlp/~/linear_{index}"]
        x = jax.nn.relu(x @ layer["w"] + layer["b"])
    return {"logits": x @ params["head"]["w"] + params["head"]["b"]}


def haiku_params():
    shapes = {
        "mlp/~/linear_0": {"w": (6, 8), "b": (8,)},
        "mlp/~/linear_1": {"w": (8, 8), "b": (8,)},
        "head": {"w": (8, 3), "b": (3,)},
    }
    return jax.tree.map(jnp.zeros, shapes, is_leaf=lambda one: isinstance(one, tuple))


def haiku():
    return haiku_forward, jax.eval_shape(haiku_params)


def save_haiku(folder):
    params = draw_like(haiku_params())
    checkpoint(folder, params)
    return {"serving_default": [({"x": ROWS}, haiku_forward(params, ROWS))]}


def export_haiku(folder, out_base):
    from tpuserve_exporter import export

    with ocp.StandardCheckpointer() as checkpointer:
        params = checkpointer.restore(folder / "checkpoint")
    return export((haiku_forward, params), out_base, input="x:float32[batch,6]", progress=False, batch_sizes=(1, 8))


# Trees of Equinox: modules are nodes, with attributes, tuples and numbers in their names


@functools.partial(jax.tree_util.register_dataclass, data_fields=["weight", "bias"], meta_fields=[])
class Linear:
    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def __call__(self, x):
        return self.weight @ x + self.bias


@functools.partial(jax.tree_util.register_dataclass, data_fields=["layers", "scale"], meta_fields=[])
class MLP:
    def __init__(self, layers, scale):
        self.layers, self.scale = layers, scale

    def __call__(self, x):
        for layer in self.layers[:-1]:
            x = jax.nn.relu(layer(x))
        return self.layers[-1](x) * self.scale


def equinox_model(seed=None):
    sizes = [(8, 6), (8, 8), (3, 8)]
    model = MLP(tuple(Linear(jnp.zeros(size), jnp.zeros(size[:1])) for size in sizes), jnp.ones(()))
    return model if seed is None else draw_like(model, seed)


def equinox_forward(model, x):
    return {"logits": jax.vmap(model)(x)}


def equinox():
    return equinox_forward, jax.eval_shape(equinox_model)


def save_equinox(folder):
    model = equinox_model(seed=2)
    checkpoint(folder, model)
    return {"serving_default": [({"x": ROWS}, equinox_forward(model, ROWS))]}


def export_equinox(folder, out_base):
    from tpuserve_exporter import export

    model = equinox_model(seed=2)
    return export((equinox_forward, model), out_base, input="x:float32[batch,6]", progress=False, batch_sizes=(1, 8))


# Plain functions of lists, tuples and numbers


def plain_forward(params, x, scale):
    layers, (weight, bias) = params["layers"], params["out.put"]
    for kernel, shift in layers:
        x = jnp.tanh(x @ kernel + shift)
    return x @ weight * scale[:, None] + bias[0], x.argmax(-1)


def plain_params():
    return {
        "layers": [(jnp.zeros((6, 8)), jnp.zeros(8)), (jnp.zeros((8, 8)), jnp.zeros(8))],
        "out.put": (jnp.zeros((8, 3)), {0: jnp.zeros(3)}),
    }


def plain():
    return plain_forward, jax.eval_shape(plain_params)


def save_plain(folder):
    params = draw_like(plain_params())
    checkpoint(folder, params)
    scale = np.arange(1, 6, dtype=np.float32)
    scores, best = plain_forward(params, ROWS, scale)
    return {"serving_default": [({"x": ROWS, "scale": scale}, {"output_0": scores, "output_1": best})]}


def export_plain(folder, out_base):
    from tpuserve_exporter import export

    params = draw_like(plain_params())
    inputs = ("x:float32[batch,6]", "scale:float32[batch]")
    return export((plain_forward, params), out_base, input=inputs, progress=False, batch_sizes=(1, 8))


# bfloat16 parameters, and explicit batch statistics


def half_forward(params, x):
    hidden = jax.nn.relu(x.astype(jnp.bfloat16) @ params["w0"])
    return {"scores": hidden @ params["w1"], "total": (hidden @ params["w1"]).astype(jnp.float32).sum(-1)}


def half_params():
    return {"w0": jnp.zeros((6, 8), jnp.bfloat16), "w1": jnp.zeros((8, 3), jnp.bfloat16)}


def half():
    return half_forward, jax.eval_shape(half_params)


def save_half(folder):
    params = draw_like(half_params())
    checkpoint(folder, params)
    return {"serving_default": [({"x": ROWS}, jax.jit(half_forward)(params, ROWS))]}


def batch_statistics_forward(params, x):
    """Normalize by the batch, so that each row's output depends on the other rows."""
    x = x @ params["w"]
    return {"scores": (x - x.mean(0)) / jnp.sqrt(x.var(0) + 1e-3)}


def batch_statistics_params():
    return {"w": jnp.zeros((6, 3))}


def batch_statistics():
    return batch_statistics_forward, jax.eval_shape(batch_statistics_params)


def save_batch_statistics(folder):
    params = draw_like(batch_statistics_params())
    checkpoint(folder, params)
    return {"serving_default": [({"x": ROWS}, batch_statistics_forward(params, ROWS))]}
