// opencode: what the user said, word for word, and a journal of what was done stand behind every summary.
//
// Put it into ~/.config/opencode/plugins/ (or .opencode/plugins/ of a project). opencode asks its own model for the
// summary; what a running Everthread gateway made of the whole session is put behind it, by no model. EVERTHREAD_URL
// names the gateway, EVERTHREAD_API_KEY a key of it. Where it does not answer, opencode compacts as it always does.

const URL = process.env.EVERTHREAD_URL ?? "http://127.0.0.1:8484";
const KEY = process.env.EVERTHREAD_API_KEY ?? "everthread";
const WINDOW = 32_000; // what is added fits easily into a window of so many tokens
const LEAD =
  "From the whole session, made by Everthread: what the user said, word for word, and what was done. " +
  "Where the summary above says otherwise, this stands.";

const text = (parts) =>
  parts.filter((part) => part.type === "text" && !part.ignored && !part.synthetic).map((part) => part.text).join("\n");

/** A message of opencode with its parts as messages of OpenAI's chat protocol; none for an earlier summary. */
function toChat({ info, parts }) {
  const said = text(parts);
  if (info.role === "user") return said ? [{ role: "user", content: said }] : [];
  const calls = parts.filter((part) => part.type === "tool" && ["completed", "error"].includes(part.state?.status));
  if (info.summary || (!said && !calls.length)) return [];
  const tool_calls = calls.map((part) => ({
    id: part.callID,
    type: "function",
    function: { name: part.tool, arguments: JSON.stringify(part.state.input ?? {}) },
  }));
  const assistant = { role: "assistant", content: said || null, ...(calls.length ? { tool_calls } : {}) };
  const results = calls.map((part) => ({
    role: "tool",
    tool_call_id: part.callID,
    content: part.state.output ?? part.state.error ?? "",
  }));
  return [assistant, ...results];
}

const shown = ({ role, content, tool_calls }) => {
  const calls = (tool_calls ?? []).map((call) => `${call.function.name}(${call.function.arguments})`);
  return `[${role}] ${[content, ...calls].filter(Boolean).join("\n")}`;
};

/** What the gateway makes of the session, as a text; empty where it finds nothing to take out. */
async function compact(messages) {
  const model = messages.findLast(({ info }) => info.role === "assistant")?.info.modelID ?? "unknown";
  const answer = await fetch(`${URL}/v1/compact`, {
    method: "POST",
    headers: { "content-type": "application/json", authorization: `Bearer ${KEY}` },
    body: JSON.stringify({ model, messages: messages.flatMap(toChat), window: WINDOW }),
  });
  if (!answer.ok) throw new Error(`${URL} answers ${answer.status}: ${await answer.text()}`);
  const made = await answer.json();
  return made.receipt.changed ? made.messages.map(shown).join("\n\n") : "";
}

export const Everthread = async ({ client }) => {
  const prepared = new Map(); // by session, until its summary is written
  const orComplain = (hook) => (input, output) =>
    hook(input, output).catch((error) => console.error(`everthread: ${error}`));
  return {
    "experimental.session.compacting": orComplain(async ({ sessionID }) => {
      prepared.delete(sessionID);
      const { data } = await client.session.messages({ path: { id: sessionID } });
      prepared.set(sessionID, await compact(data));
    }),
    "experimental.text.complete": orComplain(async ({ sessionID, messageID }, output) => {
      if (!prepared.get(sessionID)) return;
      const { data } = await client.session.message({ path: { id: sessionID, messageID } });
      if (!data.info.summary) return;
      output.text += `\n\n${LEAD}\n\n${prepared.get(sessionID)}`;
      prepared.delete(sessionID);
    }),
  };
};
