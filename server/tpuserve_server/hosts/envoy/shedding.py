"""Shedding: under overload Envoy refuses a share of the requests with a deadline, before they cost the worker time.

The worker sets the share. It alone knows the queue, and its own refusals show that the queue is full.
"""

import asyncio
import logging
from typing import Final

from tpuserve_server.core.overload_gate import OverloadGate
from tpuserve_server.hosts.envoy.admin import AdminError, EnvoyAdmin

_log = logging.getLogger(__name__)

PERIOD_S: Final = 0.1
# The worker should refuse this many requests in a period, plus a quarter of those that it accepts. That costs it a few
# percent of a core. With fewer requests, the queue could run empty before the share changes.
_REFUSALS = 20
_MARGIN = 1.25
# Bounds of the change of the accepted share in a period: a period may see no batch end, or several.
_LEAST_CHANGE, _MOST_CHANGE = 0.7, 1.25
# Envoy takes whole percents.
_LEAST_ACCEPTED = 0.01
# The metric is updated after this many periods.
_PERIODS_A_COUNT = 10


class AcceptedShare:
    """The share of requests that Envoy should pass on to the worker."""

    def __init__(self) -> None:
        """Pass on all requests."""
        self.share = 1.0

    def update(self, seen: int, refused: int) -> None:
        """Adapt to a period in which the worker saw requests with a deadline, and refused some of them."""
        wanted = (seen - refused) * _MARGIN + _REFUSALS
        change = wanted / seen if seen else _MOST_CHANGE
        share = self.share * min(max(change, _LEAST_CHANGE), _MOST_CHANGE)
        self.share = min(max(share, _LEAST_ACCEPTED), 1.0)

    @property
    def refused_percent(self) -> int:
        """The rest, in percent."""
        return round(100 * (1.0 - self.share))


class Shedding:
    """Sets the share in Envoy while the worker refuses requests. One event loop's thread owns it."""

    def __init__(self, gate: OverloadGate, admin: EnvoyAdmin) -> None:
        """Follow the decisions of `gate`."""
        self._gate = gate
        self._admin = admin
        self._share = AcceptedShare()
        self._counted = 0
        self._adapting: asyncio.Task[None] | None = None
        gate.subscribe(self._begin)

    def _begin(self) -> None:
        if self._adapting is None:
            self._adapting = asyncio.get_running_loop().create_task(self._adapt())

    async def _adapt(self) -> None:
        """Adapt the share each period, until Envoy passes on all requests and the worker refuses few."""
        try:
            sent = periods = 0
            while True:
                seen, refused = self._gate.checked, self._gate.refused
                await asyncio.sleep(PERIOD_S)
                seen, refused = self._gate.checked - seen, self._gate.refused - refused
                self._share.update(seen, refused)
                percent = self._share.refused_percent
                if percent != sent:
                    await asyncio.to_thread(self._admin.refuse, percent)
                    sent = percent
                periods += 1
                if not periods % _PERIODS_A_COUNT:
                    await self._count()
                if not (percent or refused):
                    break
            await self._count()
        except (OSError, AdminError) as error:
            # The worker still refuses what is too late, at a higher cost.
            _log.warning("Envoy cannot be told the share of requests to refuse: %s", error)
        finally:
            self._adapting = None

    async def _count(self) -> None:
        refused = await asyncio.to_thread(self._admin.refused)
        if refused != self._counted:
            self._gate.count_refused("envoy", refused - self._counted)
            self._counted = refused
