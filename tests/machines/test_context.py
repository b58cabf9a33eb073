"""A commit moves state, ledger and bytes together, or nothing."""

from __future__ import annotations

import pytest

from machines.context import PendingChunk, RequestFacts, SemanticIds, StreamFacts, TokenizedPrompt


def stream(emit=None):
    prompt = TokenizedPrompt(ids=SemanticIds([1, 2]), sampling={}, rest={})
    facts = StreamFacts(request=RequestFacts(), prompt=prompt, index=0, choice=0)
    if emit is not None:
        facts.emit = emit
    return facts


def test_commit_moves_everything_at_once():
    sent = []
    facts = stream(sent.append)
    facts.pending = PendingChunk(ids=[7, 8], state=b'{"n":1}', sse=b"data: x\n\n", finish=None)
    facts.commit()
    assert (list(facts.ledger), facts.state, sent) == ([7, 8], b'{"n":1}', [b"data: x\n\n"])
    assert (facts.spoken, facts.request.visible, facts.pending, facts.finish) == (True, True, None, None)


def test_an_empty_chunk_commits_but_is_not_visible():
    facts = stream()
    facts.pending = PendingChunk(ids=[7], state=b"{}", sse=b"", finish=None)
    facts.commit()
    assert (list(facts.ledger), facts.spoken, facts.request.visible) == ([7], False, False)


def test_commit_without_a_derendered_chunk_is_a_bug():
    with pytest.raises(RuntimeError, match="without a derendered chunk"):
        stream().commit()


def test_a_whole_answer_needs_a_derender_but_an_accepted_one_may_have_been_streamed():
    request = RequestFacts()
    with pytest.raises(RuntimeError, match="without a derendered answer"):
        request.commit()
    request.accept()
    assert (request.answer, request.visible) == (None, False)
    request.pending_answer = b"{}"
    request.commit()
    assert (request.answer, request.pending_answer, request.visible) == (b"{}", None, True)
