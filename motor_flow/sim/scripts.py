r"""Which prompts does the simulated model know by heart?

A few dialogues and texts, the same that the real model of this tokenizer was trained to recite: reasoning, one and
two tool calls, Chinese, emoji, and a text that ends with the model's second end token. They are recognised in the
TOKENS, and by how far they have got, so that a prompt which already holds half the answer is continued where it
stops.

    … <|im_start|> user \\n QUESTION <|im_end|> \\n <|im_start|> assistant \\n  |  ANSWER so far
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from motor_flow.sim.tokenizer import Tokenizer

COUNT = " ".join(str(number) for number in range(1, 61))


def _call(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


# question → (reasoning, answer)
DIALOGUES = {
    "Hello!": ("A greeting. Greet back.", "Hello! How can I help you today?"),
    "Say hello in Chinese.": ("用户想要中文。", "你好，世界！👋🌍 很高兴见到你🇨🇳。"),
    "Count.": ("Count to sixty.", COUNT),
    "Weather in Paris?": ("I need the weather tool.", _call("Paris")),
    "Weather in Paris and 北京?": ("Two calls.", f"Checking both.\n{_call('Paris')}\n{_call('北京')}"),
}
# (the beginning that is recognised, the rest, the token that ends it)
TEXTS = (
    (
        "Once upon a ",
        "time there was a coordinator. It rendered, scheduled, generated and derendered. The end.",
        "<|endoftext|>",
    ),
    ("从前有座山", "，山里有座庙🏯，庙里有个老和尚👴在讲故事。", "<|endoftext|>"),
    ("Numbers: 1 2", f"{COUNT[3:]}.", "<|endoftext|>"),
)


class Scripts:
    """What is known by heart, in one tokenizer's tokens."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        encode = tokenizer.encode
        self._user = encode("<|im_start|>user\n")
        self._header = encode("<|im_end|>\n<|im_start|>assistant\n")
        self._header_size = len(encode("<|im_start|>assistant\n"))
        end = [tokenizer.eos_id]
        no_thought = encode("<think>\n\n</think>\n\n")
        self._answers: dict[tuple[int, ...], tuple[list[int], list[int]]] = {
            tuple(encode(question)): (
                encode(f"<think>\n{reasoning}\n</think>\n\n{answer}") + end,
                no_thought + encode(answer) + end,
            )
            for question, (reasoning, answer) in DIALOGUES.items()
        }
        self._texts = [(encode(head), encode(rest) + encode(stop)) for head, rest, stop in TEXTS]

    def turn(self, tokens: Sequence[int]) -> tuple[list[int] | None, list[int]]:
        """The last question, and what has been answered to it so far; no question: (None, everything)."""
        at = _rfind(tokens, self._header)
        if at < 0:
            return None, list(tokens)
        start = _rfind(tokens[:at], self._user)
        done = list(tokens[at + len(self._header) :])
        return (list(tokens[start + len(self._user) : at]) if start >= 0 else []), done

    def rest(self, question: list[int] | None, done: list[int]) -> list[int] | None:
        """What a known answer still has to say after a turn, or None for anything that is not known."""
        if question is None:
            scripts = [head + rest for head, rest in self._texts if len(done) >= len(head)]
        else:
            scripts = list(self._answers.get(tuple(question), ()))
        for script in scripts:
            if len(done) < len(script) and script[: len(done)] == done:
                return script[len(done) :]
        return None


def _rfind(tokens: Sequence[int], part: list[int]) -> int:
    size, first = len(part), part[0]
    for at in range(len(tokens) - size, -1, -1):
        if tokens[at] == first and list(tokens[at : at + size]) == part:
            return at
    return -1
