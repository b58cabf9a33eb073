"""Which codec does a configuration ask for?

Everything is made and verified here, at the start: a process whose tables cannot be made does not serve.

Source: contract section 2 (token_obfuscation_config).
"""

from __future__ import annotations

from motor_flow.config import BadConfiguration
from motor_flow.config.sections import ObfuscationSection
from motor_flow.obfuscation.asset_sdk import SdkUnusable, sdk_table
from motor_flow.obfuscation.codec import ObfuscatingCodec, PlainCodec, TokenCodec
from motor_flow.obfuscation.permutation import permutation
from motor_flow.obfuscation.tables import BadTable, Obfuscator
from motor_flow.obfuscation.vocabulary import UnknownVocabulary, vocab_size

SECTION = "token_obfuscation_config"
PROVIDERS = {"permutation": permutation, "ai_asset_obfuscate": sdk_table}


def codec_of(section: ObfuscationSection, model_path: str) -> TokenCodec:
    """The border of this process. Up to a second for a large vocabulary.

    Raises:
        BadConfiguration: the tables cannot be made.

    """
    if not section.enable:
        return PlainCodec()
    white_list = frozenset(section.token_white_list)
    try:
        size = section.vocab_size or vocab_size(model_path)
        if white_list and max(white_list) >= size:
            raise BadConfiguration(SECTION, [f"{SECTION}.token_white_list: {max(white_list)} is no id of {size}"])
        table = PROVIDERS[section.provider](size, white_list, section.seed_content)
        return ObfuscatingCodec(Obfuscator(table, white_list))
    except UnknownVocabulary as exc:
        raise BadConfiguration(SECTION, [f"{SECTION}.vocab_size: {exc}"]) from exc
    except SdkUnusable as exc:
        raise BadConfiguration(SECTION, [f"{SECTION}.provider: {exc}"]) from exc
    except BadTable as exc:
        raise BadConfiguration(SECTION, [f"{SECTION}: the {section.provider} table is unusable: {exc}"]) from exc
