"""Conversion of the operator's options to the ConfigProto and RunOptions of TensorFlow's sessions."""

from pathlib import Path

from tpuserve_formats.messages.official import ConfigProto, RewriterConfig, RunOptions
from tpuserve_server.executors.tensorflow import TensorFlowOptions

# Value of RunOptions.inter_op_thread_pool that runs operations on the calling thread.
IN_CALLERS_THREAD = -1


def session_config(options: TensorFlowOptions, *, bfloat16: bool) -> ConfigProto:
    """Return the ConfigProto of a session. `bfloat16` allows bfloat16 kernels."""
    config = ConfigProto()
    if options.session_config is not None:
        config.CopyFrom(options.session_config)
    if options.intra_op_threads:
        config.intra_op_parallelism_threads = options.intra_op_threads
    if options.inter_op_threads:
        config.inter_op_parallelism_threads = options.inter_op_threads
    # This executor never uses a GPU: TensorFlow would take all of its memory.
    config.device_count["GPU"] = 0
    if bfloat16 or options.mixed_precision:
        rewrites = config.graph_options.rewrite_options
        rewrites.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.ON
    return config


def run_options(config: ConfigProto) -> RunOptions:
    """Return RunOptions that run operations one by one on the calling thread, unless `config` has threads for them."""
    wants_pool = config.inter_op_parallelism_threads > 0 or bool(config.session_inter_op_thread_pool)
    return RunOptions(inter_op_thread_pool=0 if wants_pool else IN_CALLERS_THREAD)


def may_wait(config: ConfigProto) -> bool:
    """Return whether runs may wait for threads of other runs, or for XLA's compiler, whatever their graph has."""
    is_compiled = bool(config.graph_options.optimizer_options.global_jit_level > 0)
    return is_compiled or run_options(config).inter_op_thread_pool != IN_CALLERS_THREAD


def cpu_has_bfloat16(cpuinfo: Path) -> bool:
    """Return whether the CPU multiplies bfloat16 natively (AVX512_BF16, AMX_BF16, Arm's BF16); False if unknown."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
