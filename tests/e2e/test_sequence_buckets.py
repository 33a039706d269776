"""Tests for texts of different lengths over both protocols: outputs have the length of the input."""

import asyncio
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.running_server import RunningServer, run_server
from tests.support.sequence_models import TOKENS, save_tagger
from tpuserve_client import AsyncClient, Client
from tpuserve_client.errors import InvalidArgument

pytestmark = pytest.mark.xdist_group(__name__)

FLAGS = ("--enable_batching", "--allowed_batch_sizes=1,8", "--sequence_buckets=4,8,16")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    base = tmp_path_factory.mktemp("tagger")
    save_tagger(base / "1")
    with run_server(base, tmp_path_factory.mktemp("log") / "log", *FLAGS) as server:
        yield server


def address(server: RunningServer, protocol: str) -> str:
    return server.grpc if protocol == "grpc" else server.rest


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
async def test_texts_that_come_together_are_answered_at_their_own_lengths(server: RunningServer, protocol: str) -> None:
    random = np.random.default_rng(3)
    texts = [random.integers(1, TOKENS, (2, length)).astype(np.int32) for length in (1, 3, 4, 5, 7, 11, 16)]
    async with AsyncClient(address(server, protocol)) as client:
        together = await asyncio.gather(*(client.predict("m", {"ids": text}) for text in texts))
        for text, answer in zip(texts, together, strict=True):
            length = text.shape[1]
            assert np.asarray(answer.outputs["tags"]).shape == (2, length, 5)
            assert np.asarray(answer.outputs["attention"]).shape == (2, length, length)
            # The same text with masked padding.
            longer = np.pad(text, ((0, 0), (0, 16 - length)))
            alone = await client.predict("m", {"ids": longer})
            np.testing.assert_allclose(
                answer.outputs["tags"], np.asarray(alone.outputs["tags"])[:, :length], rtol=1e-4, atol=1e-5
            )


@pytest.mark.parametrize("protocol", ["grpc", "rest"])
def test_a_text_that_is_too_long_is_refused_by_name(server: RunningServer, protocol: str) -> None:
    message = "Input 'ids' has length 17 in dimension 1; the largest sequence bucket is 16"
    with Client(address(server, protocol)) as client, pytest.raises(InvalidArgument, match=message):
        client.predict("m", {"ids": np.ones((1, 17), np.int32)})
