"""The devices that JAX uses during an export."""


def compute_on_cpu() -> None:
    """Run JAX on the CPU unless JAX_PLATFORMS is set, so that checks compare the same numbers on every machine.

    This sets JAX's configuration, because TensorFlow has already imported JAX and JAX reads the environment at import.
    If JAX has initialized its devices, it keeps them.
    """
    import jax

    if jax.config.jax_platforms is None:
        jax.config.update("jax_platforms", "cpu")
