"""How do token ids cross the border to engines and back?

One border for every route, leg and attempt. `PlainCodec` is the border when nothing is hidden: it hands on what it was
given. `ObfuscatingCodec` translates, and lets nothing pass that it cannot translate.

Source: RFC Token 混淆适配.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from machines.tokens import PhysicalFields, PhysicalIds, SemanticIds, SemanticJson, TokenizedPrompt
from motor_flow.errors import ClientError, EngineError, RenderError
from motor_flow.obfuscation.answers import translated
from motor_flow.obfuscation.limits import ID, ID_KEYS, IDS, PLAIN_OF_PROMPT, refused
from motor_flow.obfuscation.tables import Obfuscator, OutsideVocabulary


class TokenCodec(Protocol):
    """The border."""

    def admit(self, prompt: TokenizedPrompt, *, own_ids: bool = True) -> None:
        """Refuse a prompt that cannot cross, before anything of its request does.

        Args:
            prompt: as rendered.
            own_ids: its token ids are the client's own.

        Raises:
            ClientError: why.
            RenderError: Render made an id that the configured vocabulary does not hold.

        """

    def physical(self, ids: SemanticIds) -> PhysicalIds:
        """For engines, and for who asks on their behalf (the KV conductor)."""

    def semantic(self, ids: PhysicalIds) -> SemanticIds:
        """From engines."""

    def physical_sampling(self, sampling: Mapping[str, Any]) -> PhysicalFields:
        """Sampling parameters for engines. What our own legs added to Render's stays."""

    def physical_rest(self, rest: Mapping[str, Any]) -> PhysicalFields:
        """The other fields of a prompt, for engines."""

    def semantic_event(self, raw: bytes) -> SemanticJson:
        """An engine's event or whole answer.

        Raises:
            msgspec.DecodeError: it cannot be read.
            EngineError: it holds an id that no token has.

        """


class PlainCodec:
    """Nothing is hidden; nothing is copied."""

    def admit(self, prompt: TokenizedPrompt, *, own_ids: bool = True) -> None:
        """Everything may cross."""

    def physical(self, ids: SemanticIds) -> PhysicalIds:
        return PhysicalIds(ids)

    def semantic(self, ids: PhysicalIds) -> SemanticIds:
        return SemanticIds(ids)

    def physical_sampling(self, sampling: Mapping[str, Any]) -> PhysicalFields:
        return sampling  # type: ignore[return-value]  # no copy; whoever builds a body only reads it

    def physical_rest(self, rest: Mapping[str, Any]) -> PhysicalFields:
        return rest  # type: ignore[return-value]  # as above

    def semantic_event(self, raw: bytes) -> SemanticJson:
        return SemanticJson(raw)


class ObfuscatingCodec:
    """Engines see a permutation of the vocabulary.

    Args:
        tables: which.

    """

    def __init__(self, tables: Obfuscator) -> None:
        self._tables = tables

    def admit(self, prompt: TokenizedPrompt, *, own_ids: bool = True) -> None:
        error = refused(prompt)
        if error is not None:
            raise error
        try:
            self.physical_sampling(prompt.sampling)
        except OutsideVocabulary as exc:
            raise ClientError(str(exc)) from exc
        try:
            self.physical(prompt.ids)
        except OutsideVocabulary as exc:
            if own_ids:
                raise ClientError(str(exc)) from exc
            raise RenderError(
                f"Render's {exc}: token_obfuscation_config.vocab_size does not fit the model", status=500
            ) from exc

    def physical(self, ids: SemanticIds) -> PhysicalIds:
        return self._tables.physical(ids)

    def semantic(self, ids: PhysicalIds) -> SemanticIds:
        return self._tables.semantic(ids)

    def physical_sampling(self, sampling: Mapping[str, Any]) -> PhysicalFields:
        return PhysicalFields({name: self._parameter(name, value) for name, value in sampling.items()})

    def physical_rest(self, rest: Mapping[str, Any]) -> PhysicalFields:
        return PhysicalFields({name: value for name, value in rest.items() if name in PLAIN_OF_PROMPT})

    def semantic_event(self, raw: bytes) -> SemanticJson:
        try:
            return translated(raw, self._tables)
        except OutsideVocabulary as exc:
            raise EngineError("the engine sent a token that no vocabulary has", detail=str(exc)) from exc

    def _parameter(self, name: str, value: Any) -> Any:
        if value is None:
            return None
        if name in IDS:
            return self.physical(SemanticIds(list(value)))
        if name in ID:
            return self.physical(SemanticIds([value]))[0]
        if name in ID_KEYS:
            ids = self.physical(SemanticIds([int(token) for token in value]))
            return dict(zip(map(str, ids), value.values(), strict=True))
        return value
