"""How TensorFlow's sessions run: from the operator's options to a ConfigProto and RunOptions."""

from pathlib import Path

from tpuserve_formats.messages.official import ConfigProto, RewriterConfig, RunOptions
from tpuserve_server.executors.tensorflow.options import TensorFlowOptions

# RunOptions.inter_op_thread_pool: run operations in the thread that calls.
IN_CALLERS_THREAD = -1


def session_config(options: TensorFlowOptions, *, bfloat16: bool) -> ConfigProto:
    """The ConfigProto of a session, `bfloat16` if its kernels may be used."""
    config = ConfigProto()
    if options.session_config is not None:
        config.CopyFrom(options.session_config)
    if options.intra_op_threads:
        config.intra_op_parallelism_threads = options.intra_op_threads
    if options.inter_op_threads:
        config.inter_op_parallelism_threads = options.inter_op_threads
    # A GPU that is there is not this executor's: TensorFlow would take all of its memory.
    config.device_count["GPU"] = 0
    if bfloat16 or options.mixed_precision:
        rewrites = config.graph_options.rewrite_options
        rewrites.auto_mixed_precision_onednn_bfloat16 = RewriterConfig.ON
    return config


def run_options(config: ConfigProto) -> RunOptions:
    """Operations run one by one in the thread that asks, unless a number of threads was asked for."""
    wants_pool = config.inter_op_parallelism_threads > 0 or bool(config.session_inter_op_thread_pool)
    return RunOptions(inter_op_thread_pool=0 if wants_pool else IN_CALLERS_THREAD)


def cpu_has_bfloat16(cpuinfo: Path) -> bool:
    """Whether the CPU multiplies bfloat16 itself (AVX512_BF16, AMX_BF16, Arm's BF16). False where nobody can say."""
    try:
        words = set(cpuinfo.read_text().split())
    except OSError:
        return False
    return not words.isdisjoint({"avx512_bf16", "amx_bf16", "bf16"})
