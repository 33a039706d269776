"""Flax models for the exporter's tests, named on its command line as `tests.exporter.flax_builders:FUNCTION`."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from flax import linen, nnx

from tpuserve_exporter.models.jax_function import PyTree


class Scorer(linen.Module):  # type: ignore[misc]  # flax is untyped
    """A model with batch norm and dropout: `features` [batch, 3] → [batch, 2]."""

    units: int = 8
    dtype: Any = jnp.float32

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, features: Any, train: bool = True) -> Any:  # noqa: ANN401 - arrays of jax
        x = linen.Dense(self.units, name="hidden", dtype=self.dtype)(features)
        x = linen.BatchNorm(use_running_average=not train, name="norm", dtype=self.dtype)(x)
        x = linen.Dropout(0.5, deterministic=not train)(linen.relu(x))
        return linen.Dense(2, name="scores", dtype=self.dtype)(x).astype(jnp.float32)


def scorer(units: int = 8, dtype: str = "float32") -> Scorer:
    return Scorer(units, jnp.dtype(dtype))


def applied() -> tuple[Callable[..., Any], PyTree]:
    """Return an apply function of two inputs with a dictionary of outputs, and the shapes of its parameters."""

    def apply(params: PyTree, x: Any, scale: Any) -> dict[str, Any]:  # noqa: ANN401 - arrays of jax
        return {"scores": x @ params["kernel"] * scale[:, None], "rows": scale}

    return apply, {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)}


def row_picky() -> tuple[Callable[..., Any], PyTree]:
    """Return a function that compares the number of rows, which JAX cannot do with a symbolic dimension."""

    def apply(params: PyTree, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return x @ params["kernel"] if x.shape[0] < 3 else jnp.einsum("bi,io->bo", x, params["kernel"])

    return apply, {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)}


def positions() -> tuple[Callable[..., Any], PyTree]:
    """Return a function that adds a table of 12 learned positions, cut to the length of the input."""

    def apply(params: PyTree, ids: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return params["words"][ids] + params["positions"][: ids.shape[1]]

    return apply, {
        "words": jax.ShapeDtypeStruct((9, 2), jnp.float32),
        "positions": jax.ShapeDtypeStruct((12, 2), jnp.float32),
    }


def rows_and_positions() -> tuple[Callable[..., Any], PyTree]:
    """Return a function like `positions` whose code also depends on the number of rows."""
    apply, params = positions()

    def by_rows(params: PyTree, ids: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return apply(params, ids) if ids.shape[0] % 2 else apply(params, ids) * jnp.ones(())

    return by_rows, params


def kernel() -> tuple[Callable[..., Any], PyTree]:
    return (lambda params, x: x @ params["kernel"]), {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)}


def repeated() -> tuple[Callable[..., Any], PyTree]:
    """Return a function with an argument that is no array."""
    return (lambda params, x, times: sum([x @ params["kernel"]] * times)), kernel()[1]


class Decoder(linen.Module):  # type: ignore[misc]  # flax is untyped
    """Attention that keeps the keys and values of earlier calls."""

    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return linen.MultiHeadDotProductAttention(num_heads=1, decode=True)(x[:, None])


class AlwaysDropout(linen.Module):  # type: ignore[misc]  # flax is untyped
    @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
    def __call__(self, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        kernel = self.param("kernel", linen.initializers.ones, (3, 2))
        return linen.Dropout(0.5, deterministic=False)(x @ kernel)


class Noisy(nnx.Module):  # type: ignore[misc]  # flax is untyped
    """A module that adds noise, and counts its calls without using the count."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.dense = nnx.Linear(3, 2, rngs=rngs)
        self.calls = nnx.Variable(jnp.zeros((), jnp.int32))
        self.rngs = rngs

    def __call__(self, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        self.calls[...] += 1
        return self.dense(x) + jax.random.normal(self.rngs.noise(), (2,))


def noisy() -> Callable[[], Noisy]:
    return lambda: Noisy(nnx.Rngs(0))


class Counting(Noisy):
    """A module that answers with the number of its calls."""

    def __call__(self, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        self.calls[...] += 1
        return self.dense(x) * self.calls[...]


class Tower(nnx.Module):  # type: ignore[misc]  # flax is untyped
    """A model: `features` [batch, 3] → [batch, 2].

    It has a list of layers, batch norm, and dropout with a separate key.
    """

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.layers = nnx.List([nnx.Linear(3, 4, rngs=rngs), nnx.Linear(4, 4, rngs=rngs)])
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.scores = nnx.Linear(4, 2, rngs=rngs)

    def __call__(self, features: Any) -> Any:  # noqa: ANN401 - arrays of jax
        for layer in self.layers:
            features = nnx.relu(layer(features))
        return self.scores(self.dropout(self.norm(features)))


def tower() -> Tower:
    return Tower(nnx.Rngs(0))


def abstract_tower() -> Callable[[], Tower]:
    """Return a function that builds the tower. The exporter calls it without values."""
    return lambda: Tower(nnx.Rngs(0))


def other_input() -> Scorer:
    """Build a model that fails for `features` [batch, 3]."""

    class Narrow(Scorer):
        @linen.compact  # type: ignore[untyped-decorator]  # flax is untyped
        def __call__(self, features: Any, train: bool = True) -> Any:  # noqa: ANN401 - arrays of jax
            return features.reshape((-1, 5))

    return Narrow()


def lookup() -> tuple[Callable[..., Any], PyTree]:
    """Return a function with a callback to the host, which no TPU program can contain."""

    def apply(params: PyTree, x: Any) -> Any:  # noqa: ANN401 - arrays of jax
        return jax.pure_callback(lambda a: a, jax.ShapeDtypeStruct(x.shape, x.dtype), x) @ params["kernel"]

    return apply, {"kernel": jax.ShapeDtypeStruct((3, 2), jnp.float32)}


def haiku_like() -> tuple[Callable[..., Any], PyTree]:
    """Return Haiku's `transform` results: module paths as keys, and a function with a random key before its inputs."""

    def apply(params: PyTree, rng: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - arrays of jax
        assert rng is None
        assert not args
        first, last = params["mlp/~/linear_0"], params["mlp/~/linear_1"]
        return jax.nn.relu(kwargs["features"] @ first["w"] + first["b"]) @ last["w"]

    def shape(*dims: int) -> Any:  # noqa: ANN401 - jax has no types here
        return jax.ShapeDtypeStruct(dims, jnp.float32)

    return apply, {"mlp/~/linear_0": {"w": shape(3, 4), "b": shape(4)}, "mlp/~/linear_1": {"w": shape(4, 2)}}


class JaxSine(keras.layers.Layer):  # type: ignore[misc]  # keras is untyped
    """A layer that computes with JAX, whatever Keras' backend is."""

    def call(self, x: Any) -> Any:  # noqa: ANN401 - a tensor of some framework
        return jnp.sin(x)


def sine() -> keras.Model:
    features = keras.Input((3,), name="features")
    return keras.Model(features, JaxSine(name="scores")(features))
