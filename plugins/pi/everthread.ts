// pi: compaction by Everthread instead of a model call, previews of large tool results, and the tool `recall`.
//
//   pi --extension plugins/pi/everthread.ts        (or a copy of it in ~/.pi/agent/extensions/)
//
// It runs the command `everthread`; EVERTHREAD_COMMAND names another one. No gateway is needed. If the command fails, or
// finds nothing to compact, pi works as without it.

import { spawn } from "node:child_process";

const [PROGRAM, ...ARGUMENTS] = (process.env.EVERTHREAD_COMMAND ?? "everthread").split(" ");
const NOT_INSTALLED =
	`the command ${PROGRAM} is not found. To install Everthread from a clone: ` +
	"git clone https://github.com/everthread/everthread && uv tool install ./everthread";

/** Call `everthread hook pi` and return its answer; undefined if there is nothing to change. */
function callHook(given: any, signal?: AbortSignal): Promise<any> {
	return new Promise((resolve, reject) => {
		const child = spawn(PROGRAM, [...ARGUMENTS, "hook", "pi"], { signal });
		const heard = { out: "", err: "" };
		child.stdout.on("data", (data: any) => (heard.out += data));
		child.stderr.on("data", (data: any) => (heard.err += data));
		child.on("error", (error: any) => reject(error.code === "ENOENT" ? new Error(NOT_INSTALLED) : error));
		child.on("close", (code: number) => {
			if (code) reject(new Error(heard.err.trim() || `exit code ${code}`));
			else resolve(heard.out.trim() ? JSON.parse(heard.out) : undefined);
		});
		child.stdin.on("error", () => {}); // the exit code says why
		child.stdin.end(JSON.stringify(given));
	});
}

const text = (content: any): string =>
	typeof content === "string"
		? content
		: (content ?? []).filter((part: any) => part.type === "text").map((part: any) => part.text).join("\n");

/** Convert a message of pi to OpenAI's chat protocol; empty if the model does not see it. */
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

const sessionOf = (ctx: any): string => ctx.sessionManager.getSessionId();

const RECALL = {
	type: "object",
	properties: {
		query: { type: "string", description: "Words, \"a phrase\", prefix*, or identifiers as typed." },
		id: { type: "string", description: "message:123 or output:0123456789abcdef, from an earlier answer." },
		offset: { type: "integer", description: "Hits, or characters of an id, to skip. Default 0." },
	},
};

export default function (pi: any) {
	pi.registerTool({
		name: "recall",
		label: "Recall",
		description:
			"Search this session from before its compactions, and stored tool outputs. Give `id` instead to read one in full.",
		parameters: RECALL,
		async execute(_call: string, found: any, signal: AbortSignal, _update: any, ctx: any) {
			const answer = await callHook({ event: "recall", session: sessionOf(ctx), arguments: found }, signal);
			return { content: [{ type: "text", text: answer.text }], details: undefined };
		},
	});

	pi.on("tool_result", async (event: any, ctx: any) => {
		const said = text(event.content);
		if (said.length <= 16_000 || ["read", "recall"].includes(event.toolName)) return;
		try {
			const given = { event: "tool_result", session: sessionOf(ctx), tool: event.toolName, call: event.toolCallId };
			const answer = await callHook({ ...given, text: said }, ctx.signal);
			const others = event.content.filter((part: any) => part.type !== "text");
			return answer && { content: [{ type: "text", text: answer.text }, ...others] };
		} catch (error) {
			ctx.ui?.notify(`Everthread did not shorten the result: ${error}`, "warning");
		}
	});

	pi.on("session_before_compact", async (event: any, ctx: any) => {
		const { messagesToSummarize, turnPrefixMessages, firstKeptEntryId, tokensBefore } = event.preparation;
		const entries = (event.branchEntries ?? []).filter((entry: any) => entry.type === "compaction");
		const before = entries.at(-1)?.details?.everthread ?? [];
		const messages = [...before, ...[...messagesToSummarize, ...(turnPrefixMessages ?? [])].flatMap(toChat)];
		const given = {
			event: "compact",
			session: sessionOf(ctx),
			transcript_path: ctx.sessionManager.getSessionFile(),
			model: ctx.model?.id,
			window: ctx.model?.contextWindow,
			messages,
		};
		try {
			const made = await callHook(given, event.signal);
			if (!made) return;
			ctx.ui?.notify(`Everthread: ${made.tokens_before} -> ${made.tokens_after} tokens`, "info");
			const { summary, messages: kept } = made;
			return { compaction: { summary, firstKeptEntryId, tokensBefore, details: { everthread: kept } } };
		} catch (error) {
			ctx.ui?.notify(`Everthread failed, pi compacts by itself: ${error}`, "warning");
		}
	});
}
