"""Scenario files in YAML: several models with weights, and their common load.

The keys are the names of command-line options. This module sends no requests to a server.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias, get_args

import click
import yaml

from tpuserve_loadtests.arrivals.duration import FORMS as THINK_TIMES
from tpuserve_loadtests.arrivals.load import PROCESSES, RateProfile
from tpuserve_loadtests.cli.commands import RUN_OPTIONS
from tpuserve_loadtests.judgement.threshold import EXAMPLES, Threshold
from tpuserve_loadtests.requests.distribution import FORMS, Distribution
from tpuserve_loadtests.requests.protocols import Port

_Yaml: TypeAlias = Any  # any YAML value, which the code below validates

# The options of `run` by key of the file: `think_time` is --think-time.
_OPTIONS: Final = {each.opts[0].removeprefix("--").replace("-", "_"): each for each in RUN_OPTIONS.values()}
# Keys of a model that are values of its requests.
_OF_REQUESTS: Final = ("signature", "rows", "input", "prompts", "recorded", "recorded_model")


class BadScenario(ValueError):
    """Error for an invalid scenario. The message names the key, the expected value and the received value."""


@dataclass(frozen=True, slots=True)
class Part:
    """The requests for one model, as the file specifies them. Without `ports`, all measured protocols apply.

    `requests` are values of RequestOptions by name.
    """

    model: str
    requests: Mapping[str, Any]
    name: str | None = None
    weight: float = 1.0
    version: int | None = None
    label: str | None = None
    ports: tuple[Port, ...] = ()
    golden: Path | None = None


@dataclass(frozen=True, slots=True)
class Scenario:
    """Several models and their common load. `settings` are values for the server and the load, named as options."""

    title: str
    parts: tuple[Part, ...]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of the file. `read` raises ValueError for a value that is not `expected`."""

    expected: str
    read: Callable[[_Yaml], _Yaml]
    is_needed: bool = False


def read_scenario(path: Path) -> Scenario:
    """Read and validate a file. Paths in it are relative to its directory. Raises BadScenario."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadScenario(f"{path}: {getattr(error, 'strerror', None) or 'not a text file'}") from None
    except (yaml.YAMLError, RecursionError) as error:
        raise BadScenario(f"{path}: not valid YAML: {error}") from None
    try:
        settings = _read(document, _file_keys(path.parent), "")
    except BadScenario as error:
        raise BadScenario(f"{path}: {error}") from None
    parts, load = settings.pop("models"), settings.pop("load", {})
    return Scenario(path.stem, tuple(parts), _named({**settings, **load}))


def _named(values: Mapping[str, _Yaml]) -> dict[str, _Yaml]:
    """Return the values by the name of their option, instead of its flag."""
    return {_OPTIONS[key].name or key: value for key, value in values.items()}


class _StrictLoader(yaml.SafeLoader):
    """YAML loader that rejects duplicate keys. SafeLoader would silently use the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping as SafeLoader does. Raises ConstructorError for a duplicate key."""
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for number, key in enumerate(keys):
            if key in keys[:number]:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key {key!r}", node.start_mark)
        return super().construct_mapping(node, deep)


def _read(document: _Yaml, keys: Mapping[str, _Key], where: str) -> dict[str, _Yaml]:
    """Return the validated values of a mapping. Raises BadScenario."""
    if not isinstance(document, dict):
        raise BadScenario(f"{where or 'the file'}: expected keys and values, received {_shown(document)}")
    prefix = f"{where}." if where else ""
    for key in document:
        if key not in keys:
            raise BadScenario(f"{prefix}{key}: expected one of the keys {', '.join(keys)}, received {key!r:.80}")
    for key, needed in keys.items():
        if needed.is_needed and key not in document:
            raise BadScenario(f"{prefix}{key}: expected {needed.expected}, received nothing")
    return {key: _value(raw, keys[key], f"{prefix}{key}") for key, raw in document.items()}


def _value(raw: _Yaml, key: _Key, where: str) -> _Yaml:
    try:
        return key.read(raw)
    except BadScenario as error:
        raise BadScenario(f"{where}{error}" if str(error).startswith("[") else f"{where}.{error}") from None
    except ValueError as error:
        reason = f"; {error}" if str(error) else ""
        raise BadScenario(f"{where}: expected {key.expected}, received {_shown(raw)}{reason}") from None


def _shown(raw: _Yaml) -> str:
    return "nothing" if raw is None else f"{raw!r:.80}"


def _text(raw: _Yaml) -> str:
    if not isinstance(raw, str) or not raw:
        raise ValueError
    return raw


def _number(least: float, raw: _Yaml, *, integer: bool = False, above: bool = False) -> _Yaml:
    is_number = isinstance(raw, int if integer else (int, float)) and not isinstance(raw, bool)
    if not is_number or not (raw > least if above else raw >= least):
        raise ValueError
    return raw


def _option(name: str, expected: str) -> _Key:
    """Return the key of an option, with the option's type."""

    def read(raw: _Yaml) -> _Yaml:
        try:
            return _OPTIONS[name].type.convert(_scalar(raw), None, None)
        except click.BadParameter as error:
            raise ValueError(error.message) from None

    return _Key(expected, read)


def _integer(name: str, least: int) -> _Key:
    return _option(name, f"an integer of at least {least}")


def _scalar(raw: _Yaml) -> str:
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise ValueError
    return str(raw)


def _rate(raw: _Yaml) -> str:
    RateProfile.parse(_scalar(raw), 1.0)
    return str(raw)


def _thresholds(raw: _Yaml) -> tuple[str, ...]:
    texts = [raw] if isinstance(raw, str) else raw
    if not isinstance(texts, list) or not texts:
        raise ValueError
    return tuple(Threshold.parse(_text(text)).text for text in texts)


def _distribution(raw: _Yaml) -> str:
    if isinstance(raw, dict):
        shares = {_number(1, key, integer=True): _number(0, share) for key, share in raw.items()}
        Distribution.choice(shares)
        raw = ",".join(f"{value}:{share:.9f}" for value, share in shares.items())
    return Distribution.parse(_scalar(raw)).text


def _lengths(raw: _Yaml) -> tuple[str, ...]:
    if isinstance(raw, dict) and raw and all(isinstance(key, str) for key in raw):
        return tuple(f"{name}={_distribution(each)}" for name, each in raw.items())
    return (_distribution(raw),)


def _ports(raw: _Yaml) -> tuple[Port, ...]:
    known: tuple[Port, ...] = get_args(Port)
    if raw not in (*known, "both"):
        raise ValueError
    return known if raw == "both" else tuple(each for each in known if each == raw)


def _path(folder: Path, raw: _Yaml, *, or_folder: bool = False) -> Path:
    path = folder / _text(raw)
    if not path.is_file() and not (or_folder and path.is_dir()):
        raise ValueError(f"file {path} does not exist")
    return path


def _paths(folder: Path, raw: _Yaml) -> tuple[Path, ...]:
    return tuple(_path(folder, each) for each in (raw if isinstance(raw, list) and raw else [raw]))


def _parts(folder: Path, raw: _Yaml) -> list[Part]:
    if not isinstance(raw, list) or not raw:
        raise ValueError
    return [_part(_read(each, _part_keys(folder), f"[{number}]"), number) for number, each in enumerate(raw)]


def _part(values: dict[str, _Yaml], number: int) -> Part:
    if "version" in values and "label" in values:
        raise BadScenario(f"[{number}]: expected a version or a label, received both")
    if "input" in values and "lengths" in values:
        raise BadScenario(f"[{number}]: expected lengths of random inputs or an input file, received both")
    if "golden" in values and values["golden"].is_dir() and "rows" in values:
        raise BadScenario(f"[{number}]: expected no rows with a version directory in golden, which contains requests")
    if "golden" in values and ("input" in values or "lengths" in values):
        raise BadScenario(f"[{number}]: expected no input and no lengths with golden, which contains inputs")
    if "recorded" in values and (others := values.keys() & {"input", "lengths", "rows", "golden"}):
        raise BadScenario(f"[{number}]: expected recorded requests alone, received {', '.join(sorted(others))}, too")
    requests = _named({key: values.pop(key) for key in _OF_REQUESTS if key in values})
    lengths = {"lengths": values.pop("lengths")} if "lengths" in values else {}
    return Part(requests={**requests, **lengths}, ports=values.pop("protocol", ()), **values)


def _part_keys(folder: Path) -> dict[str, _Key]:
    distribution = _Key(f"a number or a distribution ({FORMS})", _distribution)
    return {
        "model": _Key("the model's name", _text, is_needed=True),
        "name": _Key("a name for tables", _text),
        "weight": _Key("a number above 0", partial(_number, 0, above=True)),
        "version": _option("version", "a version's number"),
        "label": _Key("a version's label", _text),
        "signature": _Key("a signature's name", _text),
        "protocol": _Key("grpc, rest or both", _ports),
        "rows": distribution,
        "lengths": _Key(f"{distribution.expected}, or one for each input", _lengths),
        "input": _Key("an .npz, .npy or .json file", partial(_path, folder)),
        "prompts": _Key("a file of prompts", partial(_path, folder)),
        "golden": _Key(
            "an .npz or .json file of inputs and outputs, or a version directory",
            partial(_path, folder, or_folder=True),
        ),
        "recorded": _Key("a file of recorded requests, or several", partial(_paths, folder)),
        "recorded_model": _Key("the model's name in the recording", _text),
    }


def _load_keys(folder: Path) -> dict[str, _Key]:
    return {
        "users": _integer("users", 1),
        "think_time": _option("think_time", f"a think time such as {THINK_TIMES}"),
        "rate": _Key("requests per second: 500, 100,200,400 or 100..1000", _rate),
        "trace": _Key("a file of arrival times", partial(_path, folder)),
        "speed": _option("speed", "a number above 0"),
        "arrivals": _option("arrivals", f"one of {', '.join(PROCESSES)}"),
        "burst": _integer("burst", 2),
        "requests": _integer("requests", 1),
        "duration": _option("duration", "a duration such as 30s or 2m"),
        "warm_up": _option("warm_up", "a duration such as 5s, or 0"),
        "seed": _integer("seed", 0),
    }


def _load(folder: Path, raw: _Yaml) -> dict[str, _Yaml]:
    if not isinstance(raw, dict):
        raise ValueError
    values = _read(raw, _load_keys(folder), "")
    ways = [key for key in ("users", "rate", "trace") if key in values]
    if len(ways) > 1:
        raise ValueError(f"set one of {' and '.join(ways)}")
    return values


def _file_keys(folder: Path) -> dict[str, _Key]:
    return {
        "models": _Key("a list of models", partial(_parts, folder), is_needed=True),
        "grpc": _Key("HOST:PORT", _text),
        "rest": _Key("a URL", _text),
        "timeout": _option("timeout", "a duration such as 30s"),
        "load": _Key("keys and values", partial(_load, folder)),
        "fail_if": _Key(f"gates such as {EXAMPLES}", _thresholds),
        "slo": _Key("objectives such as 'p99<=20ms'", _thresholds),
    }
