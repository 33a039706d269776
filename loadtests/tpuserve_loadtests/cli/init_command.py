"""The command `tpuserve loadtest init`: a Locust scenario for a model, to be changed by its reader."""

import json
import re
from keyword import iskeyword
from string import Template
from typing import Final

import click

from tpuserve_client.dtypes import STRING
from tpuserve_client.model import ModelSpec, Signature, TensorSpec
from tpuserve_loadtests.cli import access, targets
from tpuserve_loadtests.cli.commands import InitOptions
from tpuserve_loadtests.requests.protocols import shown_address

# A text of JSON is one of Python.
_quoted: Final = json.JSONEncoder(ensure_ascii=False).encode
_FILE: Final = Template(
    '''"""Load test of $model: locust -f $file --host $address"""

import numpy as np
from locust import between, task

from tpuserve_loadtests import TpuserveUser


class $name(TpuserveUser):
$attributes
    wait_time = between(0.5, 2)  # think time between two tasks, in seconds

    def on_start(self):
        self.random = np.random.default_rng(self.number)

    @task
    def visit(self):
        inputs = {
$inputs
        }
        prediction = self.predict(inputs)
        # Outputs, as numpy arrays:
$outputs
'''
)


def init(options: InitOptions) -> None:
    server = access.with_address(options.server, options.server.protocol)
    spec = targets.find_spec(options.model, options.version.version, options.version.label)
    protocol, address = next(iter(access.find_addresses(server.protocol, server.grpc_address, server.rest_url).items()))
    credentials = access.find_access(server.access)
    signature = targets.fetch_signature(spec, options.signature_name, {protocol: address}, credentials)
    text = _FILE.substitute(
        model=spec,
        file=options.output,
        address=shown_address(protocol, address),
        name=f"{_class_name(spec.name)}User",
        inputs="\n".join(f"            {_quoted(name)}: {_values(each)}," for name, each in signature.inputs.items()),
        attributes="\n".join(_attributes(spec, options.signature_name)),
        outputs=_outputs(signature),
    )
    try:
        with options.output.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise click.UsageError(f"{options.output} exists. Set another file with --output.") from None
    except OSError as error:
        raise click.UsageError(f"Cannot write {options.output}: {error.strerror}.") from None
    host = shown_address(protocol, address)
    click.echo(f"Wrote {options.output}. Run it: locust -f {options.output} --host {host} --headless -u 8 -r 8 -t 10s")


def _class_name(model: str) -> str:
    name = "".join(word[:1].upper() + word[1:] for word in re.findall(r"[A-Za-z0-9]+", model))
    return name if name.isidentifier() and not iskeyword(name) else f"Model{name}"


def _attributes(spec: ModelSpec, signature_name: str | None) -> list[str]:
    chosen = {"model": spec.name, "version": spec.version, "label": spec.label, "signature_name": signature_name}
    return [f"    {name} = {_quoted(value)}" for name, value in chosen.items() if value is not None]


def _outputs(signature: Signature) -> str:
    return "\n".join(
        f"        # prediction[{_quoted(name)}] is {str(output).removeprefix(f'{name}: ')}"
        for name, output in signature.outputs.items()
    )


def _values(spec: TensorSpec) -> str:
    """Return the expression of an array for an input: one row, and 1 for every other free dimension."""
    shape = tuple(size or 1 for size in spec.shape or (None,))
    if spec.dtype is None or spec.dtype == STRING:
        return f"np.full({shape}, b'text', object)"
    if spec.dtype.kind in "iub":
        most = 2 if spec.dtype.kind == "b" else 10
        return f"self.random.integers(0, {most}, {shape}).astype({_quoted(spec.dtype.name)})"
    return f"self.random.random({shape}).astype({_quoted(spec.dtype.name)})"
