// opencode: large tool results become previews, and every summary is followed by the user's words and a journal.
//
// Copy it to ~/.config/opencode/plugins/ (or .opencode/plugins/ of a project). It runs the command `everthread`;
// EVERTHREAD_COMMAND names another one. No gateway is needed. If the command fails, opencode works as without it.

import { spawn } from "node:child_process";

const [PROGRAM, ...ARGUMENTS] = (process.env.EVERTHREAD_COMMAND ?? "everthread").split(" ");
const NOT_INSTALLED =
  `the command ${PROGRAM} is not found. To install Everthread from a clone: ` +
  "git clone https://github.com/everthread/everthread && uv tool install ./everthread";

/** Call `everthread hook opencode` and return its answer; undefined if there is nothing to change. */
function callHook(given) {
  return new Promise((resolve, reject) => {
    const child = spawn(PROGRAM, [...ARGUMENTS, "hook", "opencode"]);
    const heard = { out: "", err: "" };
    child.stdout.on("data", (data) => (heard.out += data));
    child.stderr.on("data", (data) => (heard.err += data));
    child.on("error", (error) => reject(error.code === "ENOENT" ? new Error(NOT_INSTALLED) : error));
    child.on("close", (code) => {
      if (code) reject(new Error(heard.err.trim() || `exit code ${code}`));
      else resolve(heard.out.trim() ? JSON.parse(heard.out) : undefined);
    });
    child.stdin.on("error", () => {}); // the exit code says why
    child.stdin.end(JSON.stringify(given));
  });
}

export const Everthread = async ({ client }) => {
  const prepared = new Map(); // texts by session, until the summary is written
  const orComplain = (hook) => (input, output) =>
    hook(input, output).catch((error) => console.error(`everthread: ${error}`));
  return {
    "tool.execute.after": orComplain(async ({ tool, sessionID, callID }, output) => {
      if (typeof output.output !== "string" || output.output.length <= 16_000 || tool === "read") return;
      const given = { event: "tool_result", session: sessionID, tool, call: callID, text: output.output };
      output.output = (await callHook(given))?.text ?? output.output;
    }),
    "experimental.session.compacting": orComplain(async ({ sessionID }) => {
      prepared.delete(sessionID);
      const { data } = await client.session.messages({ path: { id: sessionID } });
      const transcript = { info: { id: sessionID }, messages: data };
      const made = await callHook({ event: "compact", session: sessionID, transcript });
      if (made) prepared.set(sessionID, made.text);
    }),
    "experimental.text.complete": orComplain(async ({ sessionID, messageID }, output) => {
      if (!prepared.has(sessionID)) return;
      const { data } = await client.session.message({ path: { id: sessionID, messageID } });
      if (!data.info.summary) return;
      output.text += `\n\n${prepared.get(sessionID)}`;
      prepared.delete(sessionID);
    }),
  };
};
