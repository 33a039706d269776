"""The commands of the client in one group, for tests that run them in this process."""

import click

from tpuserve_client.cli import predict, status

client_commands = click.Group("tpuserve", commands=[predict, status])
