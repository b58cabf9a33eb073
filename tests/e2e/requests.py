"""Requests that a native vLLM and the chain must answer alike; each is sent streamed and not.

The model was trained to recite a few dialogues, so greedy answers hold real reasoning, tool calls, Chinese and emoji.
"""

from __future__ import annotations

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
HISTORY = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}


def chat(text, **more):
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return CHAT, {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 120} | more


def text(prompt, **more):
    return TEXT, {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 40} | more


REQUESTS = {
    # plain
    "chat": chat("Hello!"),
    "chat to the end of its budget": chat("Count.", max_tokens=30),
    "chat without max_tokens": chat("Hello!", max_tokens=None),
    "chat of one token": chat("Hello!", max_tokens=1),
    "max_completion_tokens": chat("Count.", max_tokens=None, max_completion_tokens=17),
    "system message": chat([{"role": "system", "content": "Be nice."}, {"role": "user", "content": "Hello!"}]),
    "several turns": chat(
        [
            {"role": "user", "content": "Hello!"},
            {"role": "assistant", "content": "Hello! How can I help you today?"},
            {"role": "user", "content": "Count."},
        ]
    ),
    # reasoning
    "thinking off": chat("Hello!", **NO_THINKING),
    "reasoning hidden": chat("Hello!", include_reasoning=False),
    "cut inside reasoning": chat("Say hello in Chinese.", max_tokens=5),
    # unicode
    "Chinese and emoji": chat("Say hello in Chinese."),
    "Chinese, cut inside a character": chat("Say hello in Chinese.", max_tokens=24),
    "Chinese, thinking off": chat("Say hello in Chinese.", **NO_THINKING),
    "Chinese completion": text("从前有座山，", max_tokens=80),
    "emoji in the prompt": chat("👋🌍 你好", max_tokens=20),
    # tools
    "tool call": chat("Weather in Paris?", tools=TOOLS),
    "two tool calls": chat("Weather in Paris and 北京?", tools=TOOLS),
    "tool call, thinking off": chat("Weather in Paris?", tools=TOOLS, **NO_THINKING),
    "parallel_tool_calls off": chat("Weather in Paris and 北京?", tools=TOOLS, parallel_tool_calls=False),
    "tool_choice none": chat("Weather in Paris?", tools=TOOLS, tool_choice="none"),
    "tool_choice required": chat("Weather in Paris?", tools=TOOLS, tool_choice="required", **NO_THINKING),
    "tool_choice named": chat(
        "Weather in Paris?",
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
        **NO_THINKING,
    ),
    "tool results": chat(HISTORY, tools=TOOLS, max_tokens=30),
    "cut inside a tool call": chat("Weather in Paris?", tools=TOOLS, max_tokens=40),
    # logprobs
    "logprobs": chat("Hello!", logprobs=True, max_tokens=12, **NO_THINKING),
    "top_logprobs": chat("Say hello in Chinese.", logprobs=True, top_logprobs=3, max_tokens=14, **NO_THINKING),
    "logprobs beside reasoning": chat("Hello!", logprobs=True, top_logprobs=2, max_tokens=20),
    "logprobs of a completion": text("Once upon", logprobs=2, max_tokens=10),
    "logprobs of Chinese": text("从前有座山，", logprobs=1, max_tokens=12),
    # structured output
    "json_schema": chat(
        "Hello!",
        response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": SCHEMA}},
        max_tokens=40,
        **NO_THINKING,
    ),
    "choice": chat("Hello!", structured_outputs={"choice": ["yes", "no"]}, **NO_THINKING),
    "regex": text("Numbers: ", structured_outputs={"regex": "[0-9]{3}"}),
    # sampling
    "n = 2": chat("Hello!", n=2, temperature=0.001, seed=1, **NO_THINKING),
    "n = 2 with reasoning and tools": chat("Weather in Paris?", tools=TOOLS, n=2, temperature=0.001, seed=1),
    "ignore_eos": chat("Hello!", ignore_eos=True, max_tokens=50, **NO_THINKING),
    "min_tokens": chat("Hello!", min_tokens=30, max_tokens=40, **NO_THINKING),
    "stop_token_ids": text("Numbers: ", stop_token_ids=[276], max_tokens=30),
    "penalties": chat("Count.", presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, max_tokens=25),
    "logit_bias": text("Once upon", logit_bias={"16": 50}, max_tokens=6),
    "bad_words": text("Once upon", bad_words=[" time"], max_tokens=10),
    "special tokens kept": chat("Hello!", skip_special_tokens=False, **NO_THINKING),
    # completions
    "completion": text("Once upon"),
    "completion with the default budget": text("Once upon", max_tokens=None),
    "list of prompts": text(["Once upon", "Numbers: ", "从前有座山，"], max_tokens=20),
    "token ids": text([630, 595]),
    "list of token ids": text([[630, 595], [46, 94]], max_tokens=12),
    "list of prompts, n = 2": text(["Once upon", "Numbers: "], n=2, temperature=0.001, seed=3, max_tokens=9),
    # what the chain leaves to the engine's own API
    "echo": text("Once upon", echo=True, max_tokens=5),
    "echo with logprobs": text("Once upon", echo=True, logprobs=1, max_tokens=5),
    "prompt_logprobs of a completion": text("Once upon", prompt_logprobs=1, max_tokens=5),
    "stop string": chat("Hello!", stop="help", **NO_THINKING),
    "stop strings": text("Once upon", stop=["rendered", "zzz"]),
    # fields that only pass through
    "return_token_ids": chat("Hello!", return_token_ids=True, **NO_THINKING),
    "return_token_ids of a completion": text("Once upon", return_token_ids=True, max_tokens=8),
    "priority, salt and unknown fields": chat("Hello!", priority=3, cache_salt="s", request_id="mine", odd={"x": None}),
    "developer role": chat([{"role": "developer", "content": "x"}, {"role": "user", "content": "Hello!"}]),
    "continue_final_message": chat(
        [{"role": "user", "content": "Hello!"}, {"role": "assistant", "content": "Hello! How"}],
        add_generation_prompt=False,
        continue_final_message=True,
        **NO_THINKING,
    ),
}

# Refused by Render or by the engine: both servers must use the same words.
REFUSED = {
    "no messages": (CHAT, {"model": "tiny"}),
    "empty messages": chat([]),
    "unknown model": (CHAT, {"model": "nope", "messages": [{"role": "user", "content": "x"}]}),
    "negative temperature": chat("x", temperature=-1),
    "max_tokens 0": chat("x", max_tokens=0),
    "wrong type": chat("x", max_tokens="many"),
    "prompt beyond the context": text("word " * 2000, max_tokens=4),
    "budget beyond the context": chat("Hello!", max_tokens=5000),
    "too many stop strings": chat("x", stop=["a", "b", "c", "d", "e"]),
    "empty stop string": chat("x", stop=""),
    "n = 0": chat("x", n=0),
    "top_logprobs without logprobs": chat("x", top_logprobs=2),
    "tool_choice without tools": chat("x", tool_choice="required"),
    "empty prompt": text(""),
    "empty list of prompts": text([]),
    "suffix": text("a", suffix="b"),
    "logprobs beyond the limit": text("Once upon", logprobs=50),
    "id beyond the vocabulary": text([99999]),
    "negative id": text([-1]),
    "bad schema": chat(
        "x", response_format={"type": "json_schema", "json_schema": {"name": "c", "schema": {"type": "nonsense"}}}
    ),
}
