"""Training states of optax with averages: of gradients, of weights with their bias, and those of other optimizers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax.training import train_state
from optax import contrib

ROWS = np.random.default_rng(3).normal(0.3, 1.2, (5, 6)).astype(np.float32)
SHAPES = {"w0": (6, 8), "b0": (8,), "w1": (8, 3)}


def mlp_apply(params, x):
    return {"y": jnp.tanh(x @ params["w0"] + params["b0"]) @ params["w1"]}


def mlp():
    return mlp_apply, {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in SHAPES.items()}


def first_params():
    generator = np.random.default_rng(1)
    return {name: jnp.asarray(generator.normal(0, 0.3, shape), "float32") for name, shape in SHAPES.items()}


def train(transformation, steps=50, params=None):
    generator = np.random.default_rng(2)
    x, y = generator.normal(size=(64, 6)).astype("f"), generator.normal(size=(64, 3)).astype("f")
    params = first_params() if params is None else params
    state = train_state.TrainState.create(apply_fn=mlp_apply, params=params, tx=transformation)

    def loss(params):
        fast = params.fast if isinstance(params, optax.LookaheadParams) else params
        return ((mlp_apply(fast, x)["y"] - y) ** 2).mean()

    def gradient(params):
        found = jax.grad(loss)(params)
        return found.fast if isinstance(params, optax.LookaheadParams) else found

    for _ in range(steps):
        updates, kept = transformation.update(gradient(state.params), state.opt_state, state.params)
        state = state.replace(step=state.step + 1, params=optax.apply_updates(state.params, updates), opt_state=kept)
    return state


def save_state(folder, state):
    with ocp.CheckpointManager(folder / "checkpoints") as manager:
        manager.save(50, args=ocp.args.StandardSave(state))


def save_gradient_average(folder):
    state = train(optax.chain(optax.clip_by_global_norm(1.0), optax.ema(0.9), optax.scale(-1e-1)))
    save_state(folder, state)
    return {"serving_default": [({"x": ROWS}, mlp_apply(state.params, ROWS))]}


def save_biased_average(folder):
    params, average = first_params(), optax.ema(0.999)
    kept = average.init(params)
    for _ in range(100):
        debiased, kept = average.update(params, kept)
    with ocp.StandardCheckpointer() as checkpointer:
        checkpointer.save(folder / "checkpoint", {"params": params, "ema": kept._asdict(), "step": 100})
    return {"serving_default": [({"x": ROWS}, mlp_apply(debiased, ROWS))]}


def keep_average(decay):
    """Return a transformation that changes no update, and averages the weights after each."""
    average = optax.ema(decay)

    def update(updates, state, params):
        debiased, kept = average.update(optax.apply_updates(params, updates), state)
        latest.update(debiased)
        return updates, kept

    latest = {}
    return optax.GradientTransformation(average.init, update), latest


def save_kept_average(folder):
    average, debiased = keep_average(0.9)
    save_state(folder, train(optax.chain(optax.sgd(1e-1), average)))
    return {"serving_default": [({"x": ROWS}, mlp_apply(debiased, ROWS))]}


def save_schedule_free(folder):
    state = train(contrib.schedule_free_sgd(1.0))
    save_state(folder, state)
    weights = contrib.schedule_free_eval_params(state.opt_state, state.params)
    return {"serving_default": [({"x": ROWS}, mlp_apply(weights, ROWS))]}


def save_lookahead(folder):
    transformation = optax.lookahead(optax.sgd(1e-1), sync_period=7, slow_step_size=0.5)
    state = train(transformation, params=optax.LookaheadParams.init_synced(first_params()))
    save_state(folder, state)
    return {"serving_default": [({"x": ROWS}, mlp_apply(state.params.slow, ROWS))]}
