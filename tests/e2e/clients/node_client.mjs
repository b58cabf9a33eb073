// What does openai-node read? Prints one JSON object: kind -> what the client's user sees. Usage: node_client.mjs BASE
import { readFileSync } from "node:fs";
import OpenAI, { APIError } from "openai";
import { VERSION } from "openai/version";

const kinds = JSON.parse(readFileSync(new URL("./kinds.json", import.meta.url)));
const tool = {
  type: "function",
  function: {
    name: "get_weather",
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
};
const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });

function said(entry) {
  return Object.fromEntries(
    Object.entries(entry).filter(([, value]) => value && !(Array.isArray(value) && value.length === 0)),
  );
}

function seen(choices) {
  return Object.fromEntries(Object.entries(choices).map(([index, entry]) => [index, said(entry)]));
}

function logprobs(choice) {
  return choice.logprobs?.tokens?.length ?? choice.logprobs?.content?.length ?? 0;
}

function ofWhole(answer) {
  const choices = {};
  for (const choice of answer.choices) {
    choices[choice.index] = {
      finish: choice.finish_reason,
      text: choice.message ? choice.message.content : choice.text,
      reasoning: choice.message?.reasoning,
      calls: (choice.message?.tool_calls ?? []).map((call) => [call.function.name, call.function.arguments]),
      logprobs: logprobs(choice),
    };
  }
  return { choices: seen(choices), usage: answer.usage.completion_tokens };
}

async function joined(stream) {
  const choices = {};
  const ids = new Set();
  let usage = null;
  for await (const chunk of stream) {
    ids.add(chunk.id);
    usage = chunk.usage?.completion_tokens ?? usage;
    for (const choice of chunk.choices) {
      const entry = (choices[choice.index] ??= { text: "", reasoning: "", calls: [], logprobs: 0 });
      entry.finish = choice.finish_reason ?? entry.finish;
      entry.text += (choice.delta ? choice.delta.content : choice.text) ?? "";
      entry.reasoning += choice.delta?.reasoning ?? "";
      entry.logprobs += logprobs(choice);
      for (const call of choice.delta?.tool_calls ?? []) {
        entry.calls[call.index] ??= [call.function.name, ""];
        entry.calls[call.index][1] += call.function.arguments ?? "";
      }
    }
  }
  if (ids.size !== 1) throw new Error(`ids: ${[...ids]}`);
  return { choices: seen(choices), usage };
}

async function read(ask) {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof APIError)) throw error;
    return { error: [error.constructor.name, error.status, error.type, Boolean(error.message)] };
  }
}

const answers = {};
for (const [kind, { api, body: raw }] of Object.entries(kinds)) {
  const { stream_options: options, ...body } = { model: "tiny", temperature: 0, ...raw };
  if (body.tools) body.tools = [tool];
  const resource = api === "chat" ? client.chat.completions : client.completions;
  answers[kind] = {
    whole: await read(async () => ofWhole(await resource.create(body))),
    stream: await read(async () =>
      joined(await resource.create({ ...body, stream: true, ...(options ? { stream_options: options } : {}) })),
    ),
  };
}
console.log(JSON.stringify({ version: VERSION, answers }));
