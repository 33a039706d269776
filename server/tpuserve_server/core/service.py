"""InferenceService: the one door through which every protocol and host reaches the models."""

from collections.abc import Callable

from tpuserve_server.core.types import (
    ModelMetadata,
    ModelSpec,
    PredictRequest,
    PredictResult,
    Signature,
    VersionStatus,
)


class InferenceService:
    """Predict, metadata and status over the registry. Coroutines run on any event loop; nothing blocks it."""

    async def predict(self, request: PredictRequest) -> PredictResult:
        """Run one request through its model's batcher."""
        raise NotImplementedError

    def signature(self, spec: ModelSpec) -> Signature:
        """The signature a spec resolves to, for front-ends that need it to decode (REST's rows)."""
        raise NotImplementedError

    def metadata(self, spec: ModelSpec) -> ModelMetadata:
        """The signatures of the version a spec resolves to."""
        raise NotImplementedError

    def status(self, spec: ModelSpec) -> list[VersionStatus]:
        """Every version of the model, newest first, or the one version named."""
        raise NotImplementedError

    def models(self) -> list[str]:
        """Names of all models, sorted."""
        raise NotImplementedError

    def subscribe(self, on_change: Callable[[], None]) -> Callable[[], None]:
        """Call `on_change` after any version's state or the readiness changed, from any thread; returns the way out."""
        raise NotImplementedError

    def is_ready(self) -> bool:
        """Whether every configured model has an AVAILABLE version and the server is not draining."""
        raise NotImplementedError
