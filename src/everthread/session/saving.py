"""What another process needs to go on with a session, besides its messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from everthread.core.calibration import Calibration
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.session.live import Live

ENGINE, CALIBRATION = "engine", "calibration"


async def save(live: Live) -> None:
    """Engine and calibration, kept with the session they describe: an undo finds the parent's own."""
    store, session = live.setup.store, live.session.id
    await asyncio.gather(_save_engine(live, session), store.put_state(session, CALIBRATION, live.calibration.dump()))


async def _save_engine(live: Live, session: str) -> None:
    state = {"name": live.engine.name, "state": live.engine.dump_state()}
    try:
        await live.setup.store.put_state(session, ENGINE, state)
    except InputError as error:  # it is no JSON
        live.engine.failed("dump_state", error)


async def restore(live: Live) -> None:
    """Go on from what was saved; of a continuation that came to no save, from its parent's."""
    store, session = live.setup.store, live.session
    engine, calibration = await asyncio.gather(
        store.get_state(session.id, ENGINE), store.get_state(session.id, CALIBRATION)
    )
    if session.kind == "continuation" and session.parent is not None:
        engine = engine or await store.get_state(session.parent, ENGINE)
        if calibration is None:
            calibration = await store.get_state(session.parent, CALIBRATION)
            live.calibration = Calibration.load(calibration)
            live.calibration.reset()
            calibration = live.calibration.dump()
    if isinstance(engine, dict) and engine.get("name") == live.engine.name:
        live.engine.load_state(engine.get("state") or {})
    live.calibration = Calibration.load(calibration)
