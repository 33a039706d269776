"""JAX models of public reports about free sizes: batches and lengths that tracing made constants, or refused."""

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from flax import linen as nn

PICTURES = np.random.default_rng(4).normal(0.3, 1.2, (5, 8, 8, 3)).astype(np.float32)


def draw_like(tree, seed=1):
    """Return random weights of the same structure. Variances and scales, which begin with ones, stay positive."""
    generator = np.random.default_rng(seed)

    def draw(leaf):
        values = generator.normal(0, 0.4, leaf.shape)
        return jnp.asarray(np.exp(values) if np.all(np.asarray(leaf) == 1) else values, jnp.float32)

    return jax.tree.map(draw, tree)


def checkpoint(folder, tree):
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", tree)


def save_linen(folder, model, requests, names=("outputs",)):
    """Save the variables of a linen model. Return its outputs for each request."""
    variables = draw_like(model.init(jax.random.key(0), *requests[0].values()))
    checkpoint(folder, variables["params"])
    exchanges = []
    for one in requests:
        answers = model.apply(variables, *one.values())
        answers = answers if isinstance(answers, tuple) else (answers,)
        exchanges.append((one, dict(zip(names, answers, strict=True))))
    return {"serving_default": exchanges}


class Reflecting(nn.Module):
    """Convolutions that pad images with their reflection."""

    @nn.compact
    def __call__(self, image):
        x = nn.relu(nn.Conv(4, (3, 3), padding="REFLECT")(image))
        return nn.Conv(2, (5, 5), padding="REFLECT")(x)


def reflecting():
    return Reflecting()


def save_reflecting(folder):
    return save_linen(folder, reflecting(), [{"image": PICTURES}])


class Chosen(nn.Module):
    """Take the vector at one position of each row."""

    @nn.compact
    def __call__(self, ids, position):
        x = nn.Embed(20, 6)(ids)
        x = jnp.take_along_axis(x, position[:, None, None], axis=1)[:, 0]
        best = jnp.take_along_axis(ids, position[:, None], axis=1)
        return nn.Dense(3)(x), best


def chosen():
    return Chosen()


def save_chosen(folder):
    generator = np.random.default_rng(5)
    requests = []
    for rows, length in ((5, 7), (1, 4), (3, 8)):
        ids = generator.integers(0, 20, (rows, length)).astype(np.int32)
        requests.append({"ids": ids, "position": generator.integers(0, length, rows).astype(np.int32)})
    return save_linen(folder, chosen(), requests, ("output_0", "output_1"))


class Audio(nn.Module):
    """Halve the length twice with strides, and double it again with transposed convolutions."""

    @nn.compact
    def __call__(self, samples):
        x = samples[..., None]
        for width in (4, 6):
            x = nn.relu(nn.Conv(width, (4,), strides=(2,), padding="SAME")(x))
        for width in (4, 1):
            x = nn.ConvTranspose(width, (4,), strides=(2,), padding="SAME")(nn.relu(x))
        return x[..., 0]


def audio():
    return Audio()


def save_audio(folder):
    requests = [{"samples": np.random.default_rng(n).normal(0, 1, (3, n)).astype(np.float32)} for n in (16, 8, 32)]
    return save_linen(folder, audio(), requests)


# A residual network in the form of Haiku's transform_with_state: two trees, parameters and state


def normalize(x, params, state):
    mean, variance = state["mean_ema"]["average"], state["var_ema"]["average"]
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * params["scale"] + params["offset"]


def convolve(x, params):
    return jax.lax.conv_general_dilated(x, params["w"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))


BLOCKS = tuple(f"res_net18/~/block_group_{group}/~/block_{index}/~" for group in range(2) for index in range(2))


def res_net(variables, image):
    params, state = variables["params"], variables["state"]
    x = convolve(image, params["res_net18/~/initial_conv"])
    for block in BLOCKS:
        y = jax.nn.relu(normalize(x, params[f"{block}/batchnorm_0"], {
            kind: state[f"{block}/batchnorm_0/~/{kind}"] for kind in ("mean_ema", "var_ema")}))  # fmt: skip
        x = x + convolve(y, params[f"{block}/conv_0"])
    logits = params["res_net18/~/logits"]
    return {"logits": jnp.mean(x, (1, 2)) @ logits["w"] + logits["b"]}


def res_net_variables():
    params = {"res_net18/~/initial_conv": {"w": jnp.zeros((3, 3, 3, 4))},
              "res_net18/~/logits": {"w": jnp.zeros((4, 2)), "b": jnp.zeros(2)}}  # fmt: skip
    state = {}
    for block in BLOCKS:
        params[f"{block}/conv_0"] = {"w": jnp.zeros((3, 3, 4, 4))}
        params[f"{block}/batchnorm_0"] = {"scale": jnp.ones(4), "offset": jnp.zeros(4)}
        for kind, value in (("mean_ema", jnp.zeros(4)), ("var_ema", jnp.ones(4))):
            state[f"{block}/batchnorm_0/~/{kind}"] = {
                "average": value, "hidden": value, "counter": jnp.zeros((), jnp.int32)}  # fmt: skip
    return {"params": params, "state": state}


def haiku_res_net():
    return res_net, jax.eval_shape(res_net_variables)


def save_haiku_res_net(folder):
    variables = res_net_variables()
    drawn = draw_like(variables)
    drawn["state"] = jax.tree.map(lambda old, new: new if old.ndim else old, variables["state"], drawn["state"])
    checkpoint(folder, drawn)
    return {"serving_default": [({"image": PICTURES}, res_net(drawn, PICTURES))]}
