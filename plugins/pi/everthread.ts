// pi: compaction by a running Everthread gateway instead of a model call.
//
//   pi --extension plugins/pi/everthread.ts        (or a copy of it in ~/.pi/agent/extensions/)
//
// EVERTHREAD_URL names the gateway (http://127.0.0.1:8484 by default), EVERTHREAD_API_KEY a key of it where it wants
// one. Where the gateway does not answer, or finds nothing to take out, pi compacts as it always does.

const URL = process.env.EVERTHREAD_URL ?? "http://127.0.0.1:8484";
const KEY = process.env.EVERTHREAD_API_KEY ?? "everthread";

const text = (content: any): string =>
	typeof content === "string"
		? content
		: (content ?? []).filter((part: any) => part.type === "text").map((part: any) => part.text).join("\n");

/** A message of pi as one of OpenAI's chat protocol; nothing for what is not said to the model. */
function toChat(message: any): any[] {
	if (message.role === "assistant") {
		const calls = (message.content ?? []).filter((part: any) => part.type === "toolCall");
		const tool_calls = calls.map((call: any) => ({
			id: call.id,
			type: "function",
			function: { name: call.name, arguments: JSON.stringify(call.arguments ?? {}) },
		}));
		const said = text(message.content);
		if (!said && !calls.length) return [];
		return [{ role: "assistant", content: said || null, ...(calls.length ? { tool_calls } : {}) }];
	}
	if (message.role === "toolResult") {
		return [{ role: "tool", tool_call_id: message.toolCallId, content: text(message.content) }];
	}
	const said = text(message.content) || message.summary || "";
	return said ? [{ role: "user", content: said }] : [];
}

const shown = (message: any): string => {
	const said = text(message.content);
	if (message.role === "user") return said;
	const calls = (message.tool_calls ?? []).map((call: any) => `${call.function.name}(${call.function.arguments})`);
	return `[${message.role}] ${[said, ...calls].filter(Boolean).join("\n")}`;
};

export default function (pi: any) {
	pi.on("session_before_compact", async (event: any, ctx: any) => {
		const { messagesToSummarize, turnPrefixMessages, firstKeptEntryId, tokensBefore } = event.preparation;
		const entries = (event.branchEntries ?? []).filter((entry: any) => entry.type === "compaction");
		const before = entries.at(-1)?.details?.everthread ?? [];
		const messages = [...before, ...[...messagesToSummarize, ...(turnPrefixMessages ?? [])].flatMap(toChat)];
		const headers = { "content-type": "application/json", authorization: `Bearer ${KEY}` };
		const body = JSON.stringify({ model: ctx.model?.id ?? "unknown", messages, window: ctx.model?.contextWindow });
		try {
			const answer = await fetch(`${URL}/v1/compact`, { method: "POST", headers, body, signal: event.signal });
			const made = answer.ok ? await answer.json() : undefined;
			if (!made?.receipt.changed) return;
			const { tokens_before, tokens_after, messages_covered } = made.receipt;
			ctx.ui?.notify(`Everthread: ${messages_covered} messages, ${tokens_before} -> ${tokens_after} tokens`, "info");
			const summary = made.messages.map(shown).filter(Boolean).join("\n\n");
			return { compaction: { summary, firstKeptEntryId, tokensBefore, details: { everthread: made.messages } } };
		} catch (error) {
			ctx.ui?.notify(`Everthread did not answer, pi compacts by itself: ${error}`, "warning");
		}
	});
}
