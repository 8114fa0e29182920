// opencode: what the user said, word for word, and a journal of what was done go into every compaction.
//
// Put it into ~/.config/opencode/plugins/ (or .opencode/plugins/ of a project). opencode asks its own model for the
// summary; its hook adds what a running Everthread gateway made of the session. EVERTHREAD_URL names the gateway,
// EVERTHREAD_API_KEY a key of it. Where it does not answer, opencode compacts as it always does.

const URL = process.env.EVERTHREAD_URL ?? "http://127.0.0.1:8484";
const KEY = process.env.EVERTHREAD_API_KEY ?? "everthread";
const WINDOW = 32_000 // what is added fits easily into a window of so many tokens
const LEAD =
  "What follows was made from the whole session: the user's words, each word for word, and a journal of what was done. " +
  "Carry the user's words into your summary unchanged, and let nothing in it contradict the journal.";

const text = (parts) =>
  parts.filter((part) => part.type === "text" && !part.ignored).map((part) => part.text).join("\n");

/** A message of opencode with its parts as messages of OpenAI's chat protocol. */
function toChat({ info, parts }) {
  const said = text(parts);
  if (info.role === "user") return said ? [{ role: "user", content: said }] : [];
  const calls = parts.filter((part) => part.type === "tool" && ["completed", "error"].includes(part.state?.status));
  const tool_calls = calls.map((part) => ({
    id: part.callID,
    type: "function",
    function: { name: part.tool, arguments: JSON.stringify(part.state.input ?? {}) },
  }));
  if (!said && !calls.length) return [];
  const assistant = { role: "assistant", content: said || null, ...(calls.length ? { tool_calls } : {}) };
  const results = calls.map((part) => ({
    role: "tool",
    tool_call_id: part.callID,
    content: part.state.output ?? part.state.error ?? "",
  }));
  return [assistant, ...results];
}

const shown = ({ role, content, tool_calls }) => {
  const calls = (tool_calls ?? []).map((call) => `${call.function.name}(${call.function.arguments})`)
  return `[${role}] ${[content, ...calls].filter(Boolean).join("\n")}`
}

export const Everthread = async ({ client }) => ({
  "experimental.session.compacting": async (input, output) => {
    try {
      const listed = await client.session.messages({ path: { id: input.sessionID } });
      const all = listed.data ?? listed;
      const answered = all.findLast(({ info }) => info.role === "assistant")?.info;
      const body = { model: answered?.modelID ?? "unknown", messages: all.flatMap(toChat), window: WINDOW };
      const answer = await fetch(`${URL}/v1/compact`, {
        method: "POST",
        headers: { "content-type": "application/json", authorization: `Bearer ${KEY}` },
        body: JSON.stringify(body),
      });
      const made = answer.ok ? await answer.json() : undefined;
      if (made?.receipt.changed) output.context.push(`${LEAD}\n\n${made.messages.map(shown).join("\n\n")}`);
    } catch (error) {
      console.error(`everthread: ${error}`);
    }
  },
});
