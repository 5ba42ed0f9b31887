"""``unsoftmax serve``."""

from __future__ import annotations

import os
import signal
import threading

import click

from unsoftmax.cli.options import Positive, width_option
from unsoftmax.cli.running import Running, running
from unsoftmax.cli.targets import HELP, open_target


@click.command(epilog=HELP)
@click.argument("target", default="demo")
@width_option
@click.option("--round", "decimals", type=click.IntRange(min=0), help="Defence: round answers to this many decimals.")
@click.option("--digits", type=click.IntRange(min=1), help="Defence: round answers to this many significant digits.")
@click.option("--dtype", type=click.Choice(["float32", "float16"]), help="Defence: cast answers to this number format.")
@click.option("--noise", type=Positive(), help="Defence: add Gaussian noise of this standard deviation.")
@click.option(
    "--labels", "threshold", type=float, help="Defence: say only whether an answer exceeds this, or which output is largest."
)
@click.option("--max-norm", type=Positive(), help="Defence: shorten longer tokens to this length.")
@click.option("--rate", type=Positive(), help="Defence: let this many queries (sequences) a second pass.")
@click.option("--quota", type=click.IntRange(min=1), help="Defence: answer this many queries (sequences) in all.")
@click.option("--port", type=click.IntRange(0, 65535), default=8080, show_default=True, help="HTTP port; 0 takes a free one.")
@click.option("--grpc-port", type=click.IntRange(0, 65535), default=0, help="gRPC port; 0, the default, takes a free one.")
@click.option("--name", default="target", show_default=True, help="The model's name in its address.")
@click.option(
    "--token-file",
    type=click.Path(exists=True, dir_okay=False),
    help="Only requests with the bearer token in this file are answered (mode 600).",
)
@running()
def serve(
    target: str,
    width: int | None,
    decimals: int | None,
    digits: int | None,
    dtype: str | None,
    noise: float | None,
    threshold: float | None,
    max_norm: float | None,
    rate: float | None,
    quota: int | None,
    port: int,
    grpc_port: int,
    name: str,
    token_file: str | None,
    run: Running,
) -> int:
    """Host TARGET on this machine over the Open Inference Protocol, for trying an audit in a second terminal.

    It listens on 127.0.0.1 alone, until Ctrl-C or for --max-time. The defences are those of an audit: tokens are shortened first,
    then noise is added to the answers, then they are rounded, then cast.
    """
    from unsoftmax.oracles.base import Oracle
    from unsoftmax.oracles.noise import Cast, Clipped, Noisy, Rounded, Thresholded
    from unsoftmax.oracles.text import find_token
    from unsoftmax.serving import free_port
    from unsoftmax.serving import serve as host

    if not name.isidentifier():
        raise click.UsageError(f"The name {name!r} must be letters, digits and underscores, since it becomes part of the address.")
    oracle: Oracle = open_target(target, width)
    if max_norm is not None:
        oracle = Clipped(oracle, max_norm)
    if noise is not None:
        oracle = Noisy(oracle, noise)
    if decimals is not None or digits is not None:
        oracle = Rounded(oracle, decimals=decimals, digits=digits)
    if dtype is not None:
        oracle = Cast(oracle, dtype)
    if threshold is not None:
        oracle = Thresholded(oracle, threshold)
    active = [
        f"{words} {value:g}" if isinstance(value, int | float) else f"{words} {value}"
        for words, value in (
            ("tokens shortened to", max_norm),
            ("noise", noise),
            ("decimals", decimals),
            ("significant digits", digits),
            ("numbers as", dtype),
            ("labels alone, above", threshold),
            ("queries a second", rate),
            ("quota of queries", quota),
        )
        if value is not None
    ]
    http = port or free_port(but=grpc_port)
    grpc = grpc_port or free_port(but=http)
    address = f"http://127.0.0.1:{http}/v2/models/{name}"

    def announce() -> None:
        click.echo(f"Serving {target} (width {oracle.width}) at {address} and grpc://127.0.0.1:{grpc}/{name}")
        click.echo(f"Defences: {', '.join(active) or 'none'}.")
        click.echo(f"In another terminal:  unsoftmax recover {address} --out audit")
        if run.max_time is not None:  # as if told to stop: the server, which heeds that from here on, ends what it is at
            clock = threading.Timer(run.max_time, os.kill, (os.getpid(), signal.SIGTERM))
            clock.daemon = True
            clock.start()

    token = None if token_file is None else find_token(file=token_file)
    host(oracle, name=name, port=http, grpc_port=grpc, rate=rate, quota=quota, token=token, announce=announce)
    return 0
