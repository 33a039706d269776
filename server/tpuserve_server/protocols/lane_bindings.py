"""LaneBindings: the layouts of a request lane, bound to the versions that answer their requests.

A lane does all work that does not depend on the numbers of a request once for each layout and loaded version: the
checks, the choice of outputs, the frame of the response, and the other facts that a protocol needs.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from tpuserve_server.core.serving.acquired import PreparedRequest
from tpuserve_server.core.serving.service import AcquiredModel, InferenceService
from tpuserve_server.core.terms.errors import FailedPrecondition, ServingError
from tpuserve_server.core.terms.types import Array
from tpuserve_server.wire.layouts import Layout

# Requests of a layout that go the long way after one that the lane could not take, before it tries again.
_SKIPPED: Final = 64
# Outputs of ever new shapes need no templates.
_MOST_TEMPLATES: Final = 16
_Facts = TypeVar("_Facts")
_Template = TypeVar("_Template")


class Bound(Generic[_Facts, _Template]):
    """Facts that all requests of one layout share on one loaded version. They do not keep the version in memory.

    `facts` are the protocol's. `template` encodes a response from its outputs, if one is known.
    """

    __slots__ = ("_templates_left", "facts", "prepared", "template")

    def __init__(self, prepared: PreparedRequest, facts: _Facts) -> None:
        """Bind the checks of a request and the facts. There is no template yet."""
        self.prepared = prepared
        self.facts = facts
        self.template: _Template | None = None
        self._templates_left = _MOST_TEMPLATES

    def renew_template(self, make: Callable[[], _Template | None]) -> None:
        """Make a template for the responses after one that did not fit, unless there were many."""
        if self._templates_left:
            self._templates_left -= 1
            self.template = make()


class LaneBindings(Generic[_Facts, _Template]):
    """Finds the facts that are bound to a layout. One event loop's thread owns it."""

    def __init__(self, service: InferenceService, find_facts: Callable[[Layout, AcquiredModel], _Facts]) -> None:
        """Bind to the versions of `service`. `find_facts` returns a protocol's facts for a layout and a version."""
        self._service = service
        self._find_facts = find_facts

    def skips(self, layout: Layout) -> bool:
        """Return whether a request must take the long way, because the lane could not take one like it recently."""
        skipped = layout.bound
        if type(skipped) is not _Skipped:
            return False
        skipped.left -= 1
        if not skipped.left:
            layout.bound = None
        return True

    def acquire(self, layout: Layout) -> AcquiredModel | None:
        """Hold the model of a layout, or return None for an error, which the long way reports."""
        try:
            return self._service.acquire(layout.spec)
        except ServingError as error:
            if isinstance(error, FailedPrecondition):
                # The default signature is missing. Some protocols then look for another one, on the long way.
                layout.bound = _Skipped()
            return None

    def bind(
        self, layout: Layout, model: AcquiredModel, inputs: Mapping[str, Array]
    ) -> Bound[_Facts, _Template] | None:
        """Return the facts for the version that answers now, or None if the lane does not take the layout."""
        bound: Any = layout.bound  # this class alone binds to its layouts
        if type(bound) is Bound and model.is_prepared(bound.prepared):
            return bound
        try:
            prepared = model.prepare(inputs, layout.output_filter)
        except ServingError:
            prepared = None
        if prepared is None:
            layout.bound = _Skipped()
            return None
        new: Bound[_Facts, _Template] = Bound(prepared, self._find_facts(layout, model))
        layout.bound = new
        return new


class _Skipped:
    """Binding of a layout that the lane leaves to the long way for a while."""

    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = _SKIPPED
