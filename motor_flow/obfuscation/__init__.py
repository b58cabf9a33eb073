"""How are token ids hidden from engines?

```
Render ── semantic ──► codec ── physical ──► engine (weights permuted alike)
Derender ◄─ semantic ── codec ◄─ physical ──┘
```

Engines see a permutation of the vocabulary that only this program and their owner know. Whatever cannot be permuted is
refused before anything leaves (`limits`): there is no other way to an engine.

Source: RFC Token 混淆适配; contract section 7 (Obfuscating).
"""
