"""What another process needs to go on with a session, besides its messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from everthread.core.calibration import Calibration
from everthread.core.rhythm import Rhythm
from everthread.errors import InputError

if TYPE_CHECKING:
    from everthread.conversation.live import Live

ENGINE, CALIBRATION, RHYTHM, TOOLS = "engine", "calibration", "rhythm", "tools"
LEFT_OUT = "tools_left_out"
"""Among a compaction's figures: committed with the session it made, so that nobody sees the one without the other."""


async def save(live: Live) -> None:
    """Engine, calibration, rhythm and tools, kept with the session they describe: an undo finds the parent's own."""
    store, session = live.setup.store, live.session.id
    measured = live.calibration.dump() | {RHYTHM: live.rhythm.dump()}
    if live.toolbox.given:
        measured[TOOLS] = live.toolbox.dump()
    await asyncio.gather(_save_engine(live, session), store.put_state(session, CALIBRATION, measured))


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
    if calibration is None and session.kind == "continuation" and session.parent is not None:
        calibration = await store.get_state(session.parent, CALIBRATION)
        live.calibration = Calibration.load(calibration)
        live.calibration.reset()
    else:
        live.calibration = Calibration.load(calibration)
    live.rhythm = Rhythm.load(calibration.get(RHYTHM) if isinstance(calibration, dict) else None)
    await restore_tools(live)
    await live.regrets.restore()
    if isinstance(engine, dict) and engine.get("name") == live.engine.name:
        live.engine.load_state(engine.get("state") or {})


async def restore_tools(live: Live) -> None:
    """Offer the same as whoever had the session before; as its parent did, where nobody has saved anything yet."""
    if not live.toolbox.given:
        return
    store, session = live.setup.store, live.session
    own = await store.get_state(session.id, CALIBRATION)
    if own is None and live.toolbox.settled and session.kind != "continuation":
        return  # nobody has saved anything: what was chosen here holds
    if own is not None or session.parent is None or session.kind not in ("continuation", "branch"):
        live.toolbox.load(_tools_in(own))
        return
    parents, out = await store.get_state(session.parent, CALIBRATION), None
    if session.kind == "continuation":
        made = [record for record in await store.compactions(session.thread) if record.session == session.id]
        out = [name for record in made for name in record.record.figures.get(LEFT_OUT, ())]
    live.toolbox.load(_tools_in(parents), out=out)


def _tools_in(measured: Any) -> Any:
    return measured.get(TOOLS) if isinstance(measured, dict) else None
