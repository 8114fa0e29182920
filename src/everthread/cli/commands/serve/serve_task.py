"""The options of `serve`, and the gateway that they describe."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from everthread.config import Config

if TYPE_CHECKING:
    from everthread.gateway.contracts import Auth
    from everthread.gateway.router import Upstream
    from everthread.gateway.server import Gateway


@dataclass(frozen=True, slots=True)
class ServeTask:
    """The options of `serve` that every worker needs."""

    config: Config
    upstreams: list[Upstream]
    host: str
    auth: Auth
    log_format: Literal["text", "json"]
    log_file: Path | None
    verbose: bool
    quiet: bool

    def set_up_logs(self) -> None:
        from everthread.gateway.monitoring.log_lines import set_up_logs

        set_up_logs(self.log_format, verbose=self.verbose, quiet=self.quiet, file=self.log_file)

    def open_gateway(self, **options: Any) -> AbstractAsyncContextManager[Gateway]:
        from everthread.factory.gateways import open_gateway
        from everthread.lab.replay.trial import run_trial

        return open_gateway(
            self.config,
            host=self.host,
            upstreams=self.upstreams,
            auth=self.auth,
            trial=run_trial,
            is_gateway_process=True,
            **options,
        )
