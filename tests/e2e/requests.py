"""Requests that a native vLLM and the chain must answer alike: where the shipped corpus comes from.

`python -m tests.e2e.requests` writes motor_flow/views/parity/corpus; a test holds both equal. Every request is sent
streamed and not, unless its third part names one form.

The model of the end-to-end tests was trained to recite a few dialogues, so greedy answers hold real reasoning, tool
calls, Chinese and emoji.
"""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CORPUS = Path(__file__).parents[2] / "motor_flow" / "views" / "parity" / "corpus"
WHOLE, STREAM = "whole", "stream"


def tool(name, **properties):
    schema = {"type": "object", "properties": properties, "required": sorted(properties)}
    return {
        "type": "function",
        "function": {"name": name, "description": name.replace("_", " "), "parameters": schema},
    }


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
MORE_TOOLS = [
    *TOOLS,
    tool("get_time", zone={"type": "string"}),
    tool("add", a={"type": "number"}, b={"type": "number"}),
]
NO_ARGUMENTS = [{"type": "function", "function": {"name": "ping"}}]
NAMED = {"type": "function", "function": {"name": "get_weather"}}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
THINKING = {"chat_template_kwargs": {"enable_thinking": True}}


def call(number, name, arguments):
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def said(*messages):
    """Messages from pairs of role and content."""
    return [{"role": role, "content": content} for role, content in messages]


ASKED = said(("user", "Weather in Paris?"))
CALLED = {"role": "assistant", "content": None, "tool_calls": [call(1, "get_weather", '{"city": "Paris"}')]}
HISTORY = [*ASKED, CALLED, {"role": "tool", "tool_call_id": "call_1", "content": "sunny"}]
TWO_RESULTS = [
    *said(("user", "Weather in Paris and 北京?")),
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [call(1, "get_weather", '{"city": "Paris"}'), call(2, "get_weather", '{"city": "北京"}')],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    {"role": "tool", "tool_call_id": "call_2", "content": "下雪 ❄️"},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 5}}, "required": ["city"]}
SPEECH = {
    "Hangul": "안녕하세요, 세계!",
    "Hangul, decomposed": "한글",
    "Japanese": "こんにちは、世界。",
    "Arabic": "مرحبا بالعالم",
    "Hebrew and Latin": "שלום world שלום",
    "Devanagari": "नमस्ते दुनिया",
    "Thai": "สวัสดีชาวโลก",
    "combining marks": "Z̷̢a̴l̶g̵o̸ é ñ",
    "emoji of a family": "👩‍👩‍👧‍👦 and a flag 🇫🇷",
    "emoji with a tone": "👍🏽👋🏿",
    "beyond the plane": "𝕳𝖊𝖑𝖑𝖔 𠮷 𐍈",
    "control characters": "a\u0000b\u0007c\u001b[0m",
    "odd blanks": "a\u00a0b\u2003c\u200bd\ufeffe\u2028f",
    "line ends": "one\r\ntwo\rthree\n\n\n",
}


def chat(text, **more):
    messages = text if isinstance(text, list) else [{"role": "user", "content": text}]
    return CHAT, {"model": "tiny", "messages": messages, "temperature": 0, "max_tokens": 120} | more


def text(prompt, **more):
    return TEXT, {"model": "tiny", "prompt": prompt, "temperature": 0, "max_tokens": 40} | more


def json_schema(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "c", "schema": schema, **more}}


def streamed(case, **options):
    return *case[:1], case[1] | {"stream_options": options}, STREAM


PLAIN = {
    "hello": chat("Hello!"),
    "to the end of its budget": chat("Count.", max_tokens=30),
    "without max_tokens": chat("Hello!", max_tokens=None),
    "one token": chat("Hello!", max_tokens=1),
    "two tokens": chat("Hello!", max_tokens=2),
    "max_completion_tokens": chat("Count.", max_tokens=None, max_completion_tokens=17),
    "both limits": chat("Count.", max_tokens=30, max_completion_tokens=9),
    "system": chat(said(("system", "Be nice."), ("user", "Hello!"))),
    "system only": chat(said(("system", "Be nice.")), max_tokens=20),
    "two systems": chat(said(("system", "Be nice."), ("system", "Be brief."), ("user", "Hello!")), max_tokens=30),
    "developer": chat(said(("developer", "x"), ("user", "Hello!"))),
    "several turns": chat(
        said(("user", "Hello!"), ("assistant", "Hello! How can I help you today?"), ("user", "Count."))
    ),
    "many turns": chat(said(*([("user", "Hello!"), ("assistant", "Hello!")] * 8), ("user", "Count.")), max_tokens=30),
    "two users in a row": chat(said(("user", "Hello!"), ("user", "Count.")), max_tokens=30),
    "ends with the assistant": chat(said(("user", "Hello!"), ("assistant", "Hello! How")), max_tokens=20),
    "named speaker": chat([{"role": "user", "name": "ann", "content": "Hello!"}]),
    "content in parts": chat([{"role": "user", "content": [{"type": "text", "text": "Hello!"}]}]),
    "content in two parts": chat(
        [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "!"}]}]
    ),
    "empty content": chat("", max_tokens=20),
    "blank content": chat("  \n ", max_tokens=20),
    "no content": chat([{"role": "user"}], max_tokens=20),
    "long prompt": chat("Count. " * 120, max_tokens=20),
    "no generation prompt": chat("Hello!", add_generation_prompt=False, max_tokens=20),
    "continue_final_message": chat(
        said(("user", "Hello!"), ("assistant", "Hello! How")),
        add_generation_prompt=False,
        continue_final_message=True,
        **NO_THINKING,
    ),
    "continue and echo": chat(
        said(("user", "Hello!"), ("assistant", "Hello! How")),
        add_generation_prompt=False,
        continue_final_message=True,
        echo=True,
        **NO_THINKING,
    ),
    "echo": chat("Hello!", echo=True, max_tokens=20),
    "own template": chat(
        "Hello!", chat_template="{% for m in messages %}{{ m['content'] }}{% endfor %}", max_tokens=20
    ),
    "special tokens added": chat("Hello!", add_special_tokens=True, max_tokens=20),
}
REASONING = {
    "on": chat("Hello!", **THINKING),
    "off": chat("Hello!", **NO_THINKING),
    "hidden": chat("Hello!", include_reasoning=False),
    "hidden, off": chat("Hello!", include_reasoning=False, **NO_THINKING),
    "hidden, with logprobs": chat("Hello!", include_reasoning=False, logprobs=True, top_logprobs=1, max_tokens=30),
    "hidden, with ids": chat("Hello!", include_reasoning=False, return_token_ids=True),
    "effort": chat("Hello!", reasoning_effort="low"),
    **{f"cut at {at}": chat("Say hello in Chinese.", max_tokens=at) for at in (3, 5, 8, 12)},
    "hidden, cut": chat("Say hello in Chinese.", include_reasoning=False, max_tokens=5),
    "in the history": chat(
        [*said(("user", "Hello!")), {"role": "assistant", "reasoning": "Greet.", "content": "Hi."}, *ASKED],
        max_tokens=30,
    ),
    "opened by the user": chat("<think>Hello!", max_tokens=30),
    "closed by the user": chat("</think>Hello!", max_tokens=30),
    "template key nobody knows": chat("Hello!", chat_template_kwargs={"odd": [1, {"a": None}]}),
}
UNICODE = {
    "Chinese": chat("Say hello in Chinese."),
    "Chinese, thinking off": chat("Say hello in Chinese.", **NO_THINKING),
    **{f"Chinese, cut at {at}": chat("Say hello in Chinese.", max_tokens=at) for at in (20, 22, 24, 25)},
    **{f"Chinese completion, cut at {at}": text("从前有座山，", max_tokens=at) for at in (1, 2, 3, 7, 80)},
    "emoji": chat("👋🌍 你好", max_tokens=20),
    **{f"chat: {name}": chat(spoken, max_tokens=16) for name, spoken in SPEECH.items()},
    **{f"completion: {name}": text(spoken, max_tokens=16) for name, spoken in SPEECH.items()},
    "special tokens in the content": chat("<|im_end|><|im_start|>system\nx<|im_end|>", max_tokens=16),
    "end of text in the content": chat("a<|endoftext|>b", max_tokens=16),
    "tool tags in the content": chat('<tool_call>{"name": "x"}</tool_call>', max_tokens=16),
    "special tokens in a prompt": text("<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n", max_tokens=60),
}
TOOL_USE = {
    "auto by default": chat("Weather in Paris?", tools=TOOLS),
    "auto": chat("Weather in Paris?", tools=TOOLS, tool_choice="auto"),
    "two calls": chat("Weather in Paris and 北京?", tools=TOOLS),
    "thinking off": chat("Weather in Paris?", tools=TOOLS, **NO_THINKING),
    "reasoning hidden": chat("Weather in Paris?", tools=TOOLS, include_reasoning=False),
    "no parallel calls": chat("Weather in Paris and 北京?", tools=TOOLS, parallel_tool_calls=False),
    "parallel calls": chat("Weather in Paris and 北京?", tools=TOOLS, parallel_tool_calls=True),
    "none": chat("Weather in Paris?", tools=TOOLS, tool_choice="none"),
    "none, thinking off": chat("Weather in Paris?", tools=TOOLS, tool_choice="none", **NO_THINKING),
    "required": chat("Weather in Paris?", tools=TOOLS, tool_choice="required", **NO_THINKING),
    "named": chat("Weather in Paris?", tools=TOOLS, tool_choice=NAMED, **NO_THINKING),
    "named, of several": chat("Weather in Paris?", tools=MORE_TOOLS, tool_choice=NAMED, **NO_THINKING),
    "several tools": chat("Weather in Paris?", tools=MORE_TOOLS),
    "a tool without parameters": chat("Weather in Paris?", tools=NO_ARGUMENTS, max_tokens=30),
    "no tool wanted": chat("Hello!", tools=TOOLS, max_tokens=40),
    "an empty list": chat("Hello!", tools=[], max_tokens=20),
    "result": chat(HISTORY, tools=TOOLS, max_tokens=30),
    "two results": chat(TWO_RESULTS, tools=TOOLS, max_tokens=30),
    "result, without tools": chat(HISTORY, max_tokens=30),
    **{f"cut at {at}": chat("Weather in Paris?", tools=TOOLS, max_tokens=at) for at in (20, 30, 40)},
    "ids": chat("Weather in Paris?", tools=TOOLS, return_token_ids=True),
    "logprobs": chat("Weather in Paris?", tools=TOOLS, logprobs=True, top_logprobs=1),
    "n = 2": chat("Weather in Paris?", tools=TOOLS, n=2, temperature=0.001, seed=1),
    "special tokens kept": chat("Weather in Paris?", tools=TOOLS, skip_special_tokens=False),
}
LOGPROBS = {
    **{
        f"chat, {top} of each": chat("Hello!", logprobs=True, top_logprobs=top, max_tokens=12, **NO_THINKING)
        for top in (0, 1, 5, 20)
    },
    "chat, without a number": chat("Hello!", logprobs=True, max_tokens=12, **NO_THINKING),
    "chat, off": chat("Hello!", logprobs=False, max_tokens=12, **NO_THINKING),
    "Chinese": chat("Say hello in Chinese.", logprobs=True, top_logprobs=3, max_tokens=14, **NO_THINKING),
    "beside reasoning": chat("Hello!", logprobs=True, top_logprobs=2, max_tokens=20),
    "n = 2": chat("Hello!", logprobs=True, n=2, temperature=0.001, seed=4, max_tokens=8, **NO_THINKING),
    "as ids": chat("Hello!", logprobs=True, top_logprobs=1, return_tokens_as_token_ids=True, max_tokens=6),
    "prompt_logprobs": (*chat("Hello!", prompt_logprobs=1, max_tokens=5), WHOLE),
    **{f"completion, {count}": text("Once upon", logprobs=count, max_tokens=10) for count in (0, 1, 2, 5, 20)},
    "completion in Chinese": text("从前有座山，", logprobs=1, max_tokens=12),
    "completion as ids": text("Once upon", logprobs=1, return_tokens_as_token_ids=True, max_tokens=6),
    "completion, prompt_logprobs": (*text("Once upon", prompt_logprobs=1, max_tokens=5), WHOLE),
    "list of prompts": text(["Once upon", "Numbers: "], logprobs=1, max_tokens=6),
    "one token": text("Once upon", logprobs=1, max_tokens=1),
}
STRUCTURED = {
    "json_schema": chat("Hello!", response_format=json_schema(SCHEMA), max_tokens=40, **NO_THINKING),
    "json_schema, strict": chat(
        "Hello!", response_format=json_schema(SCHEMA, strict=True), max_tokens=40, **NO_THINKING
    ),
    "json_schema, cut": chat("Hello!", response_format=json_schema(SCHEMA), max_tokens=4, **NO_THINKING),
    "json_object": chat("Hello!", response_format={"type": "json_object"}, max_tokens=20, **NO_THINKING),
    "text": chat("Hello!", response_format={"type": "text"}, max_tokens=20),
    "choice": chat("Hello!", structured_outputs={"choice": ["yes", "no"]}, **NO_THINKING),
    "choice in Chinese": chat("Hello!", structured_outputs={"choice": ["是的", "不是"]}, **NO_THINKING),
    "regex": chat("Hello!", structured_outputs={"regex": "[a-c]{4}"}, **NO_THINKING),
    "json": chat("Hello!", structured_outputs={"json": SCHEMA}, max_tokens=40, **NO_THINKING),
    "regex of a completion": text("Numbers: ", structured_outputs={"regex": "[0-9]{3}"}),
    "choice of a completion": text("Numbers: ", structured_outputs={"choice": ["one", "two"]}),
    "json of a completion": text("Numbers: ", structured_outputs={"json": SCHEMA}),
    "behind reasoning": chat("Hello!", structured_outputs={"choice": ["yes", "no"]}, max_tokens=60),
    "n = 2": chat("Hello!", structured_outputs={"regex": "[0-9]{2}"}, n=2, temperature=0.001, seed=5, **NO_THINKING),
}
STOPPING = {
    "one string": chat("Hello!", stop="help", **NO_THINKING),
    "across tokens": chat("Hello!", stop="can I help", **NO_THINKING),
    "in reasoning": chat("Hello!", stop="e"),
    "inside the marker that ends reasoning": chat("Hello!", stop="nk>", **THINKING),
    "the marker that ends reasoning": chat("Hello!", stop="</think>", **THINKING),
    "across the marker that ends reasoning": chat("Hello!", stop="k>\n\n", **THINKING),
    "inside the marker, kept": chat("Hello!", stop="nk>", include_stop_str_in_output=True, **THINKING),
    "inside the marker of a call": chat("Weather in Paris?", tools=TOOLS, stop="_call>", **NO_THINKING),
    "in arguments": chat("Weather in Paris?", tools=TOOLS, stop="Par", **NO_THINKING),
    "Chinese": chat("Say hello in Chinese.", stop="好", **NO_THINKING),
    "kept": chat("Hello!", stop="help", include_stop_str_in_output=True, **NO_THINKING),
    "never comes": chat("Hello!", stop="zzzz", **NO_THINKING),
    "beginning only": chat("Hello!", stop="help zzz", **NO_THINKING),
    "four strings": text("Once upon", stop=["rendered", "zzz", "yyy", "xxx"]),
    "first letter": text("Once upon", stop=["e"]),
    "a blank": text("Once upon", stop=" "),
    "a line end": text("Once upon", stop="\n"),
    "across tokens of a completion": text("Once upon", stop=["time there"]),
    "kept in a completion": text("Once upon", stop=["e"], include_stop_str_in_output=True),
    "empty list": text("Once upon", stop=[], max_tokens=9),
    "with n": text("Once upon", stop=["e"], n=2, temperature=0.001, seed=2),
    "with logprobs": text("Once upon", stop=["e"], logprobs=1),
    "with min_tokens": text("Once upon", stop=["e"], min_tokens=12),
    "token ids": text("Numbers: ", stop_token_ids=[276], max_tokens=30),
    "several token ids": chat("Count.", stop_token_ids=[276, 277, 16], max_tokens=40, **NO_THINKING),
    "token id kept": text("Numbers: ", stop_token_ids=[276], include_stop_str_in_output=True, max_tokens=30),
    "min_tokens": chat("Hello!", min_tokens=30, max_tokens=40, **NO_THINKING),
    "min_tokens is max_tokens": chat("Hello!", min_tokens=20, max_tokens=20, **NO_THINKING),
    "ignore_eos": chat("Hello!", ignore_eos=True, max_tokens=50, **NO_THINKING),
    "ignore_eos of a completion": text("Once upon", ignore_eos=True, max_tokens=60),
}
SAMPLING = {
    **{f"n = {n}": chat("Hello!", n=n, temperature=0.001, seed=1, **NO_THINKING) for n in (1, 2, 3, 4)},
    **{f"completion, n = {n}": text("Once upon", n=n, temperature=0.001, seed=n, max_tokens=9) for n in (2, 3, 4)},
    "n = 2 with reasoning": chat("Hello!", n=2, temperature=0.001, seed=6),
    **{f"seed {seed}": text("Once upon", temperature=0.001, seed=seed, max_tokens=9) for seed in (0, 7, 2**31)},
    "presence penalty": chat("Count.", presence_penalty=0.5, max_tokens=25),
    "frequency penalty": chat("Count.", frequency_penalty=0.2, max_tokens=25),
    "repetition penalty": text("Once upon", repetition_penalty=1.1, max_tokens=25),
    "all penalties": chat("Count.", presence_penalty=0.5, frequency_penalty=0.2, repetition_penalty=1.1, max_tokens=25),
    "logit_bias": text("Once upon", logit_bias={"16": 50}, max_tokens=6),
    "logit_bias in chat": chat("Hello!", logit_bias={"16": 50, "17": -100}, max_tokens=6),
    "bad_words": text("Once upon", bad_words=[" time"], max_tokens=10),
    "bad_words in chat": chat("Hello!", bad_words=["help", "Hello"], max_tokens=20, **NO_THINKING),
    "allowed_token_ids": text("Once upon", allowed_token_ids=[16, 17, 18], max_tokens=6),
    "top_k": text("Once upon", temperature=0.5, top_k=1, max_tokens=9),
    "top_p and min_p": text("Once upon", temperature=0.001, top_p=0.5, min_p=0.1, seed=1, max_tokens=9),
    "special tokens kept": chat("Hello!", skip_special_tokens=False, **NO_THINKING),
    "special tokens kept, reasoning": chat("Hello!", skip_special_tokens=False),
    "no spaces between special tokens": chat("Hello!", spaces_between_special_tokens=False, **NO_THINKING),
}
COMPLETIONS = {
    "plain": text("Once upon"),
    "default budget": text("Once upon", max_tokens=None),
    "one token": text("Once upon", max_tokens=1),
    "one letter": text("a", max_tokens=5),
    "long prompt": text("Once upon " * 120, max_tokens=9),
    "token ids": text([630, 595]),
    "one token id": text([630], max_tokens=9),
    "list of one prompt": text(["Once upon"], max_tokens=9),
    "list of prompts": text(["Once upon", "Numbers: ", "从前有座山，"], max_tokens=20),
    "list of equal prompts": text(["Once upon", "Once upon"], max_tokens=9),
    "list of five prompts": text(["a", "b", "c", "d", "e"], max_tokens=5),
    "list of token ids": text([[630, 595], [46, 94]], max_tokens=12),
    "list of prompts, n = 2": text(["Once upon", "Numbers: "], n=2, temperature=0.001, seed=3, max_tokens=9),
    "list of token ids, n = 2": text([[630, 595], [46, 94]], n=2, temperature=0.001, seed=3, max_tokens=5),
    "list with stop": text(["Once upon", "Numbers: "], stop=["e"]),
    "echo": text("Once upon", echo=True, max_tokens=5),
    "echo of a list": text(["Once upon", "Numbers: "], echo=True, max_tokens=5),
    "echo of token ids": text([630, 595], echo=True, max_tokens=5),
    "echo with logprobs": text("Once upon", echo=True, logprobs=1, max_tokens=5),
    "echo and nothing else": text("Once upon", echo=True, max_tokens=0),
    "truncated": text("Once upon a time", truncate_prompt_tokens=2, max_tokens=5),
    "without special tokens": text("Once upon", add_special_tokens=False, max_tokens=5),
    "best_of is not known": text("Once upon", best_of=1, max_tokens=5),
}
FIELDS = {
    "return_token_ids": chat("Hello!", return_token_ids=True, **NO_THINKING),
    "return_token_ids with reasoning": chat("Hello!", return_token_ids=True),
    "return_token_ids, n = 2": chat("Hello!", return_token_ids=True, n=2, temperature=0.001, seed=1, **NO_THINKING),
    "return_token_ids of a completion": text("Once upon", return_token_ids=True, max_tokens=8),
    "return_token_ids of a list": text(["Once upon", "a"], return_token_ids=True, max_tokens=5),
    "priority": chat("Hello!", priority=3, max_tokens=9),
    "negative priority": text("Once upon", priority=-2, max_tokens=9),
    "cache_salt": chat("Hello!", cache_salt="s", max_tokens=9),
    "request_id": chat("Hello!", request_id="mine", max_tokens=9),
    "request_id of a completion": text("Once upon", request_id="mine", max_tokens=9),
    "unknown fields": chat("Hello!", odd={"x": None}, another=[1, "二"], max_tokens=9),
    "unknown fields of a completion": text("Once upon", odd={"x": None}, max_tokens=9),
    "nulls": chat("Hello!", stop=None, seed=None, tools=None, logit_bias=None, n=None, max_tokens=9),
    "nulls of a completion": text("Once upon", stop=None, seed=None, suffix=None, logprobs=None, max_tokens=9),
    "user and metadata": chat("Hello!", user="ann", metadata={"a": "b"}, store=False, max_tokens=9),
    "service_tier": chat("Hello!", service_tier="auto", max_tokens=9),
    "number written as text": chat("Hello!", max_tokens="9"),
    "everything at once": chat(
        "Weather in Paris and 北京?",
        tools=TOOLS,
        logprobs=True,
        top_logprobs=2,
        return_token_ids=True,
        n=2,
        seed=9,
        temperature=0.001,
        presence_penalty=0.1,
        priority=1,
        cache_salt="s",
        request_id="mine",
    ),
}
BASES = {"chat": chat("Hello!", max_tokens=20), "list": text(["Once upon", "a"], max_tokens=6)}
BASES["completion"] = text("Once upon", max_tokens=9)
STREAM_OPTIONS = {
    f"{name}, usage {usage}, continuous {continuous}": streamed(
        base, include_usage=usage, continuous_usage_stats=continuous
    )
    for (name, base), usage, continuous in product(BASES.items(), (False, True), (False, True))
} | {
    "no options": (*chat("Hello!", max_tokens=9, stream_options=None), STREAM),
    "tools and usage": streamed(
        chat("Weather in Paris?", tools=TOOLS), include_usage=True, continuous_usage_stats=True
    ),
    "n = 3 and usage": streamed(
        text("Once upon", n=3, temperature=0.001, seed=1, max_tokens=5), include_usage=True, continuous_usage_stats=True
    ),
}
# Refused by Render or by the engine: both servers must use the same words.
REFUSED = {
    "no messages": (CHAT, {"model": "tiny"}),
    "no prompt": (TEXT, {"model": "tiny"}),
    "empty messages": chat([]),
    "messages that are text": (CHAT, {"model": "tiny", "messages": "Hello!"}),
    "message without a role": chat([{"content": "x"}]),
    "content that is a number": chat([{"role": "user", "content": 7}]),
    "unknown model": (CHAT, {"model": "nope", "messages": [{"role": "user", "content": "x"}]}),
    "unknown model of a completion": (TEXT, {"model": "nope", "prompt": "x"}),
    "negative temperature": chat("x", temperature=-1),
    "temperature of text": chat("x", temperature="hot"),
    "top_p beyond 1": chat("x", top_p=1.5),
    "top_p of 0": text("x", top_p=0),
    "top_k below -1": text("x", top_k=-5),
    "penalty beyond 2": chat("x", presence_penalty=3),
    "repetition_penalty of 0": text("x", repetition_penalty=0),
    "max_tokens 0": chat("x", max_tokens=0),
    "max_tokens below 0": text("x", max_tokens=-1),
    "min_tokens beyond max_tokens": chat("x", min_tokens=9, max_tokens=3),
    "wrong type": chat("x", max_tokens="many"),
    "prompt beyond the context": text("word " * 2000, max_tokens=4),
    "budget beyond the context": chat("Hello!", max_tokens=10_000_000),
    "too many stop strings": chat("x", stop=["a", "b", "c", "d", "e"]),
    "empty stop string": chat("x", stop=""),
    "n = 0": chat("x", n=0),
    "n below 0": text("x", n=-1),
    "several greedy choices": chat("Hello!", n=2, max_tokens=5),
    "top_logprobs without logprobs": chat("x", top_logprobs=2),
    "top_logprobs below 0": chat("x", logprobs=True, top_logprobs=-3),
    "tool_choice without tools": chat("x", tool_choice="required"),
    "named tool that is not there": chat(
        "x", tools=TOOLS, tool_choice={"type": "function", "function": {"name": "nope"}}
    ),
    "unknown tool_choice": chat("x", tools=TOOLS, tool_choice="perhaps"),
    "tool without a name": chat("x", tools=[{"type": "function", "function": {}}]),
    "empty prompt": text(""),
    "empty list of prompts": text([]),
    "list with an empty prompt": text(["a", ""]),
    "suffix": text("a", suffix="b"),
    "logprobs beyond the limit": text("Once upon", logprobs=50),
    "logprobs below 0": text("Once upon", logprobs=-2),
    "id beyond the vocabulary": text([99_999_999]),
    "negative id": text([-1]),
    "logit_bias beyond the vocabulary": text("x", logit_bias={"99999999": 1}),
    "logit_bias that is no id": text("x", logit_bias={"x": 1}),
    "stop_token_ids of text": text("x", stop_token_ids=["x"]),
    "unknown response_format": chat("x", response_format={"type": "poem"}),
    "json_schema without a schema": chat("x", response_format={"type": "json_schema"}),
    "bad schema": chat("x", response_format=json_schema({"type": "nonsense"})),
    "bad regex": text("x", structured_outputs={"regex": "[a"}),
    "two structures": text("x", structured_outputs={"regex": "a", "choice": ["b"]}),
    "continue and generation prompt": chat("x", add_generation_prompt=True, continue_final_message=True),
    "prompt_logprobs of a stream": (*chat("x", prompt_logprobs=1), STREAM),
    "stream_options without a stream": (*chat("x", stream_options={"include_usage": True}), WHOLE),
    "empty cache_salt": chat("x", cache_salt=""),
}
KINDS = {
    "chat": PLAIN,
    "completions": COMPLETIONS,
    "fields": FIELDS,
    "logprobs": LOGPROBS,
    "reasoning": REASONING,
    "refused": REFUSED,
    "sampling": SAMPLING,
    "stopping": STOPPING,
    "stream_options": STREAM_OPTIONS,
    "structured": STRUCTURED,
    "tools": TOOL_USE,
    "unicode": UNICODE,
}


def line(name, path, body, form=None):
    """One line of a corpus file."""
    kept = {key: value for key, value in body.items() if not (key == "max_tokens" and value is None)}
    if kept["model"] == "tiny":
        kept["model"] = "$MODEL"
    only = {"form": form} if form else {}
    return json.dumps({"name": name, "path": path} | only | {"body": kept}, ensure_ascii=False)


def lines(kind):
    """What the file of this kind holds."""
    return "".join(f"{line(name, *case)}\n" for name, case in KINDS[kind].items())


if __name__ == "__main__":
    CORPUS.mkdir(exist_ok=True)
    for kind in KINDS:
        (CORPUS / f"{kind}.jsonl").write_text(lines(kind), encoding="utf-8")
