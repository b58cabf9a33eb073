"""What do parsers take out of a text?

The markers of vLLM's reasoning and tool parsers. Which of them are single tokens is found out by the probe.

Source: vLLM 0.33 vllm/reasoning, vllm/tool_parsers, vllm/parser.
"""

MARKERS = (
    *("<think>", "</think>", "[THINK]", "[/THINK]", "<seed:think>", "</seed:think>"),
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "<|python_tag|>", "<|tool_call|>"),
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_end|>"),
    *("<|tool_call_argument_begin|>", "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>"),
    *("<｜tool▁call▁end｜>", "<｜tool▁sep｜>", "<|START_THINKING|>", "<|END_THINKING|>", "<|START_ACTION|>"),
    *("<|END_ACTION|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|channel|>", "<|message|>", "<|start|>"),
    *("<|end|>", "<|call|>", "<|return|>", "<|constrain|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
)  # of vLLM 0.33's reasoning and tool parsers
