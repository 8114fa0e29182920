// AI SDK: a history of messages with a tool, answered whole and streamed by turns; the address without /v1.
// Before Claude it is always streamed: the two ways describe the tools differently, so that neither reads the other's cache.
import { readFileSync } from "node:fs";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, jsonSchema, stepCountIs, streamText, tool } from "ai";

const job = JSON.parse(readFileSync(process.argv[2], "utf8"));
const openai = createOpenAI({ baseURL: job.url, apiKey: "any" });
const anthropic = createAnthropic({ baseURL: job.url, apiKey: "any" });
const models = {
  openai_chat: () => openai.chat(job.model),
  openai_responses: () => openai.responses(job.model),
  anthropic: () => anthropic(job.model),
};
const tools = {
  look_up: tool({
    description: "What the book says about an entry.",
    inputSchema: jsonSchema({ type: "object", properties: { entry: { type: "string" } }, required: ["entry"] }),
    execute: async ({ entry }) => `Entry ${entry} is settled; the receipt is in folder ${entry.length + 40}. `.repeat(6),
  }),
};
const messages = [];
const answers = [];
for (const [number, text] of job.texts.entries()) {
  messages.push({ role: "user", content: text });
  const asked = {
    model: models[job.api](),
    system: job.system,
    messages,
    tools,
    stopWhen: stepCountIs(4),
    maxOutputTokens: 500,
    maxRetries: 0,
    providerOptions: { openai: { store: false } },
  };
  if (number % 2 || job.api === "anthropic") {
    const streamed = streamText(asked);
    answers.push(await streamed.text);
    messages.push(...(await streamed.steps).flatMap((step) => step.response.messages));
  } else {
    const given = await generateText(asked);
    answers.push(given.text);
    messages.push(...given.steps.flatMap((step) => step.response.messages));
  }
}
console.log(JSON.stringify(answers));
