"""Which devices JAX computes on while a file is exported."""


def compute_on_cpu() -> None:
    """Checks compare numbers: on the CPU, wherever the export runs, unless JAX_PLATFORMS says otherwise.

    TensorFlow has imported JAX by now, which reads its environment then. JAX that is up already keeps its devices.
    """
    import jax

    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")
