"""How TensorFlow's sessions run: from the operator's options to a ConfigProto and RunOptions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tpuserve_formats.messages.official import ConfigProto, RewriterConfig, RunOptions

DEFAULT_TAGS = ("serve",)

# RunOptions.inter_op_thread_pool: run operations in the thread that calls.
IN_CALLERS_THREAD = -1


@dataclass(frozen=True, slots=True)
class TensorFlowOptions:
    """What the operator said about TensorFlow.

    Threads of one operation, 0 for as many as cores; operations at a time, 0 for one, in the caller's thread.
    `bfloat16_kernels` where a version's exporter has checked them, `mixed_precision` `bfloat16` for every model.
    `session_config` is what the other options are laid over.
    """

    tags: tuple[str, ...] = DEFAULT_TAGS
    intra_op_parallelism: int = 0
    inter_op_parallelism: int = 0
    bfloat16_kernels: bool = True
    mixed_precision: Literal["", "bfloat16"] = ""
    session_config: ConfigProto | None = None


def session_config(options: TensorFlowOptions, *, bfloat16: bool) -> ConfigProto:
    """The ConfigProto of a session, `bfloat16` if its kernels may be used."""
    config = ConfigProto()
    if options.session_config is not None:
        config.CopyFrom(options.session_config)
    if options.intra_op_parallelism:
        config.intra_op_parallelism_threads = options.intra_op_parallelism
    if options.inter_op_parallelism:
        config.inter_op_parallelism_threads = options.inter_op_parallelism
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
