"""Panels and rows of the dashboard, and their form in Grafana's schema.

The builders of grafana-foundation-sdk, which Grafana Labs generates from Grafana's own schema, write that form.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from grafana_foundation_sdk.builders import (
    common,
    dashboard,
    heatmap,
    prometheus,
    stat,
    statetimeline,
    table,
    timeseries,
)
from grafana_foundation_sdk.models.common import (
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    StackingMode,
    TooltipDisplayMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DataTransformerConfig,
    Threshold,
    ThresholdsMode,
    ValueMap,
    ValueMappingResult,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from deploy.observability.dashboard.promql import promql

SOURCE: Final = DataSourceRef("prometheus", "${datasource}")
WIDTH: Final = 24
_HEIGHT: Final = 8
_STAT_HEIGHT: Final = 4

Kind: TypeAlias = Literal["lines", "stack", "value", "heatmap", "states", "table"]
_Builder: TypeAlias = heatmap.Panel | stat.Panel | statetimeline.Panel | table.Panel | timeseries.Panel


@dataclass(frozen=True, slots=True)
class Query:
    """One query: PromQL in the short form of promql.py, and the legend of its series."""

    expr: str
    legend: str = ""
    exemplars: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. `description` states the content and the action. `width` is of the 24 columns.

    `steps` maps lower bounds to colours. `words` maps values to texts. `unit` is the id of a unit in Grafana.
    """

    title: str
    description: str
    queries: Sequence[Query]
    unit: str = "short"
    kind: Kind = "lines"
    width: int = 8
    steps: Mapping[float, str] = field(default_factory=dict)
    words: Mapping[str, str] = field(default_factory=dict)

    def builder(self, number: int) -> _Builder:
        """Return the panel for Grafana. `number` is its unique id."""
        height = _STAT_HEIGHT if self.kind == "value" else _HEIGHT
        panel = _of_kind(self.kind).id(number).title(self.title).description(self.description)
        panel = panel.datasource(SOURCE).unit(self.unit).span(self.width).height(height)
        for place, query in enumerate(self.queries):
            panel = panel.with_target(self._target(query, chr(ord("A") + place)))
        if self.steps:
            steps = [Threshold(None, "green"), *(Threshold(value, colour) for value, colour in self.steps.items())]
            panel = panel.thresholds(dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps))
        if self.words:
            shown = {value: ValueMappingResult(text=text) for value, text in self.words.items()}
            panel = panel.mappings([ValueMap(shown)])
        return panel

    def _target(self, query: Query, name: str) -> prometheus.Dataquery:
        target = prometheus.Dataquery().ref_id(name).expr(promql(query.expr)).legend_format(query.legend or "__auto")
        target = target.datasource(SOURCE).exemplar(query.exemplars)
        if self.kind == "table":
            return target.instant().format(PromQueryFormat.TABLE)
        if self.kind == "heatmap":
            return target.range().format(PromQueryFormat.HEATMAP)
        return target.range()


@dataclass(frozen=True, slots=True)
class Row:
    """A titled row of panels."""

    title: str
    panels: Sequence[Panel]


def _of_kind(kind: Kind) -> _Builder:
    if kind == "value":
        newest = common.ReduceDataOptions().calcs(["lastNotNull"])
        return stat.Panel().graph_mode(BigValueGraphMode.AREA).reduce_options(newest)
    if kind == "heatmap":
        return heatmap.Panel().calculate(False)
    if kind == "states":
        return statetimeline.Panel()
    if kind == "table":
        hidden = {"Time": True, "Value": True, "__name__": True, "job": True}
        return table.Panel().with_transformation(DataTransformerConfig("organize", options={"excludeByName": hidden}))
    legend = common.VizLegendOptions().display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    panel = timeseries.Panel().legend(legend.show_legend(True))
    panel = panel.tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI)).min(0).fill_opacity(10)
    if kind == "stack":
        panel = panel.stacking(common.StackingConfig().mode(StackingMode.NORMAL)).fill_opacity(60)
    return panel
