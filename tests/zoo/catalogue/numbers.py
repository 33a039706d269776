"""Operations on numbers: reductions, products, sorting, spectra and matrices."""

from typing import Final

import tensorflow as tf

from tests.zoo.catalogue.operation import Operation, operation


def _square(x: tf.Tensor) -> tf.Tensor:
    """Make every matrix regular."""
    return x + tf.eye(tf.shape(x)[-1])


NUMBERS: Final[tuple[Operation, ...]] = (
    operation("reduce_sum", lambda x: tf.reduce_sum(x, -1), x="f N,C"),
    operation("reduce_sum_first", lambda x: tf.reduce_sum(x, 0), x="f N,C"),
    operation("reduce_sum_all", lambda x: tf.reduce_sum(x), x="f N,T,C"),
    operation("reduce_mean", lambda x: tf.reduce_mean(x, 1), x="f N,T,C"),
    operation("reduce_max", lambda x: tf.reduce_max(x, 1), x="f N,T,C"),
    operation("reduce_prod", lambda x: tf.reduce_prod(x, [1, 2]), x="f N,T,C"),
    operation("reduce_any", lambda x: tf.reduce_any(x, -1), x="b N,C"),
    operation("argmax", lambda x: tf.argmax(x, -1), x="f N,C"),
    operation("argmax_middle", lambda x: tf.argmax(x, 1), x="f N,T,C"),
    operation("logsumexp", lambda x: tf.reduce_logsumexp(x, -1), x="f N,C"),
    operation("moments", lambda x: tf.nn.moments(x, [1])[1], x="f N,T,C"),
    operation("cumsum", lambda x: tf.cumsum(x, 1), x="f N,T,C"),
    operation("cumprod", lambda x: tf.math.cumprod(x, 0), x="f N,C"),
    operation("cumulative_logsumexp", lambda x: tf.math.cumulative_logsumexp(x, -1), x="f N,C"),
    operation("add", lambda x, y: x + y, x="f N,C", y="f N,C"),
    operation("add_outer", lambda x, y: x[:, None] + y[None], x="f N", y="f M"),
    operation("clip", lambda x: tf.clip_by_value(x, 0.0, 1.0), x="f N,C"),
    operation("floor_mod", lambda x, y: x % y, x="i N=7", y="i N=3"),
    operation("cast", lambda x: tf.cast(x, tf.float32) / 255.0, x="u N,H,W,3"),
    operation("matmul", lambda x, y: tf.matmul(x, y), x="f N,M", y="f M,K"),
    operation("batch_matmul", lambda x, y: tf.matmul(x, y), x="f N,T,M", y="f N,M,K"),
    operation("einsum", lambda x, y: tf.einsum("nhtc,nhsc->nhts", x, y), x="f N,H,T,C", y="f N,H,S,C"),
    operation("tensordot", lambda x: tf.tensordot(x, tf.ones([4, 2]), 1), x="f N,T,4"),
    operation("sort", lambda x: tf.sort(x), x="f N,C"),
    operation("argsort", lambda x: tf.argsort(x, stable=True), x="f N,C"),
    operation("top_k", lambda x: tf.math.top_k(x, 2).indices, x="f N,C"),
    operation("unique", lambda x: tf.unique(x).y, x="f N"),
    operation("unique_axis", lambda x: tf.raw_ops.UniqueV2(x=x, axis=[1]).y, x="f N,C"),
    operation("bincount", lambda x: tf.math.bincount(x, minlength=4, maxlength=8), x="i N=1"),
    operation("bincount_axis", lambda x: tf.math.bincount(x, minlength=4, maxlength=8, axis=-1), x="i N,T=1"),
    operation("searchsorted", lambda x, y: tf.searchsorted(x, y), x="f N,T", y="f N,S"),
    operation("histogram", lambda x: tf.histogram_fixed_width(x, [0.0, 1.0], 5), x="f N,C"),
    operation("bucketize", lambda x: tf.raw_ops.Bucketize(input=x, boundaries=[0.0, 0.5]), x="f N,C"),
    operation("confusion", lambda x, y: tf.math.confusion_matrix(x, y, 4), x="i N=1", y="i N=2"),
    operation("fft", lambda x: tf.signal.fft(x), x="c N,T"),
    operation("ifft", lambda x: tf.signal.ifft(x), x="c N,T"),
    operation("rfft", lambda x: tf.signal.rfft(x), x="f N,T"),
    operation("rfft_length", lambda x: tf.signal.rfft(x, [8]), x="f N,T"),
    operation("irfft", lambda x: tf.signal.irfft(x), x="c N,T"),
    operation("fft2d", lambda x: tf.signal.fft2d(x), x="c N,H,W"),
    operation("rfft2d", lambda x: tf.signal.rfft2d(x), x="f N,H,W"),
    operation("stft", lambda x: tf.abs(tf.signal.stft(x, 4, 2)), x="f N,T", sizes={"T": 16}),
    operation("mfcc", lambda x: tf.signal.mfccs_from_log_mel_spectrograms(x), x="f N,T,C"),
    operation(
        "audio_spectrogram",
        lambda x: tf.raw_ops.AudioSpectrogram(input=x, window_size=4, stride=2),
        x="f T,C",
        sizes={"T": 16},
    ),
    operation("inverse", lambda x: tf.linalg.inv(_square(x)), x="f N,M,M"),
    operation("cholesky", lambda x: tf.linalg.cholesky(tf.matmul(x, x, transpose_b=True) + 9 * tf.eye(3)), x="f N,3,K"),
    operation("cholesky_free", lambda x: tf.linalg.cholesky(_square(x * 0)), x="f N,M,M"),
    operation("qr", lambda x: tf.abs(tf.linalg.qr(x)[1]), x="f N,M,K"),
    operation("svd", lambda x: tf.linalg.svd(x, compute_uv=False), x="f N,M,K"),
    operation("eigh", lambda x: tf.linalg.eigvalsh(_square(x * 0)), x="f N,M,M"),
    operation("det", lambda x: tf.linalg.det(_square(x)), x="f N,M,M"),
    operation("solve", lambda x, y: tf.linalg.solve(_square(x), y), x="f N,M,M", y="f N,M,K"),
    operation("triangular_solve", lambda x, y: tf.linalg.triangular_solve(_square(x), y), x="f N,M,M", y="f N,M,K"),
    operation("lstsq", lambda x, y: tf.linalg.lstsq(x, y, 0.1), x="f N,M,K", y="f N,M,J"),
    operation("lu", lambda x: tf.linalg.lu(_square(x))[0], x="f N,M,M"),
    operation("expm", lambda x: tf.linalg.expm(x), x="f N,M,M"),
    operation("band_part", lambda x: tf.linalg.band_part(x, 1, 0), x="f N,M,K"),
    operation("diag", lambda x: tf.linalg.diag(x), x="f N,M"),
    operation("diag_part", lambda x: tf.linalg.diag_part(x), x="f N,M,M"),
    operation("set_diag", lambda x, y: tf.linalg.set_diag(x, y), x="f N,M,M", y="f N,M"),
    operation("trace", lambda x: tf.linalg.trace(x), x="f N,M,M"),
    operation("tridiagonal", lambda x, y: tf.linalg.tridiagonal_solve(x + 9, y), x="f N,3,M", y="f N,M"),
    operation("cross", lambda x, y: tf.linalg.cross(x, y), x="f N,3", y="f N,3"),
)
