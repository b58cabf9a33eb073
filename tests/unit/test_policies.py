"""Which instance do the policies choose, and why?"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from motor_flow.net.http import origin_of
from motor_flow.scheduling.load import Charge
from motor_flow.scheduling.policy import (
    LOAD_WEIGHT,
    REMEMBERED_MAX,
    Chain,
    Demand,
    GatedKvAffinity,
    KvAffinity,
    LoadBalance,
    policy_of,
)
from motor_flow.scheduling.registry import Instance


@dataclass
class One:
    id: int
    load_tokens: int = 0

    @property
    def name(self):
        return f"union-{self.id}"


def some(*loads):
    return [One(number, load) for number, load in enumerate(loads, 1)]


def chosen(chain, candidates, demand=Demand(), role="union"):  # noqa: B008 - immutable
    return chain.choose(role, candidates, demand)[0].id


# --- in turn --------------------------------------------------------------------------------------


def test_in_turn():
    chain, three = policy_of("round_robin"), some(9, 0, 4)
    assert [chosen(chain, three) for _ in range(7)] == [1, 2, 3, 1, 2, 3, 1]


def test_roles_have_turns_of_their_own():
    """Alternating roles over one counter would give each role every second instance only."""
    chain, two = policy_of("round_robin"), some(0, 0)
    seen = [(role, chosen(chain, two, role=role)) for _ in range(2) for role in ("prefill", "decode")]
    assert seen == [("prefill", 1), ("decode", 1), ("prefill", 2), ("decode", 2)]


def test_turns_are_not_skewed_by_who_is_left_out():
    """A counter modulo the number of candidates would give the second one four times what the third gets."""
    chain, three = policy_of("round_robin"), some(0, 0, 0)
    count = Counter()
    for number in range(300):
        left = three if number % 2 else [one for one in three if one.id != 1]
        count[chosen(chain, left)] += 1
    assert count[1] == 75  # half of the time it was left out
    assert abs(count[2] - count[3]) <= 1


def test_who_comes_is_next_and_who_left_is_forgotten():
    chain = policy_of("round_robin")
    two = some(0, 0)
    assert [chosen(chain, two) for _ in range(2)] == [1, 2]
    assert chosen(chain, [*two, One(3)]) == 3
    for number in range(REMEMBERED_MAX + 10):
        chain.choose("union", [One(number)], Demand())
    assert all(len(known) == REMEMBERED_MAX for known in chain._turns._chosen.values())


# --- by load --------------------------------------------------------------------------------------


def test_the_least_loaded_and_equals_in_turn():
    chain = policy_of("load_balance")
    assert chosen(chain, some(5, 3, 4)) == 2
    assert [chosen(chain, some(3, 7, 3, 3)) for _ in range(6)] == [1, 3, 4, 1, 3, 4]


@given(st.lists(st.integers(1, 4000), min_size=1, max_size=60), st.integers(1, 6))
def test_load_never_differs_by_more_than_the_largest_demand(demands, instances):
    chain, there = policy_of("load_balance"), some(*[0] * instances)
    for tokens in demands:
        one, _ = chain.choose("union", there, Demand(tokens))
        one.load_tokens += tokens
    loads = [one.load_tokens for one in there]
    assert max(loads) - min(loads) <= max(demands)


# --- by what is cached ----------------------------------------------------------------------------


def asked(prompt, **matched):
    return Demand(prompt, 0, {name.replace("_", "-"): tokens for name, tokens in matched.items()})


def test_what_is_cached_is_not_read_again():
    chain = policy_of("kv_cache_affinity")
    assert chosen(chain, some(0, 0, 0), asked(1000, union_2=512)) == 2
    assert chosen(chain, some(0, 0, 0), asked(1000, union_2=512, union_3=768)) == 3


def test_a_cache_is_worth_what_it_saves():
    """An instance may be busier than others, but not without bound."""
    chain = policy_of("kv_cache_affinity")
    assert chosen(chain, some(0, 512 / LOAD_WEIGHT - 1), asked(1000, union_2=512)) == 2
    assert chosen(chain, some(0, 512 / LOAD_WEIGHT + 1), asked(1000, union_2=512)) == 1


def test_more_is_never_saved_than_there_is_to_read():
    chain = policy_of("kv_cache_affinity")
    assert chosen(chain, some(10, 20), asked(100, union_1=100, union_2=500)) == 1


def test_nothing_cached_is_load_balance():
    chain = policy_of("kv_cache_affinity")
    assert chosen(chain, some(4, 2, 3), asked(1000)) == 2
    assert [chosen(chain, some(0, 0), asked(1000)) for _ in range(4)] == [1, 2, 1, 2]


def test_a_miss_falls_to_load_balance_and_not_to_turns():
    """And says so."""
    chain = policy_of("kv_cache_affinity")
    demand = Demand(100, 0, None, "the conductor is away")
    for _ in range(3):
        one, reason = chain.choose("union", some(4, 2, 3), demand)
        assert one.id == 2
        assert reason == "load_balance load=2 (kv_cache_affinity: the conductor is away)"


def test_a_decode_instance_reads_nothing():
    chain = policy_of("kv_cache_affinity")
    one, reason = chain.choose("decode", some(4, 2), asked(1000, union_1=1000))
    assert (one.id, reason.split()[0]) == (2, "load_balance")


def test_equal_costs_go_to_the_least_loaded_and_then_in_turn():
    chain = policy_of("kv_cache_affinity")
    demand = asked(100, union_1=50)
    assert [chosen(chain, some(50 / LOAD_WEIGHT, 0, 0), demand) for _ in range(4)] == [2, 3, 2, 3]


def test_gated_takes_the_longest_prefix_of_the_least_loaded():
    chain = Chain(GatedKvAffinity(gate=2), LoadBalance())
    assert chosen(chain, some(0, 1, 9), asked(1000, union_2=16, union_3=960)) == 2
    assert chosen(chain, some(0, 1, 1), asked(1000, union_2=16, union_3=960)) == 3  # equals pass the gate
    assert chosen(chain, some(5), asked(1000)) == 1


@pytest.mark.parametrize("first", [KvAffinity(), GatedKvAffinity()])
@given(data=st.data())
def test_one_of_the_candidates_is_chosen_whatever_is_said(first, data):
    loads = data.draw(st.lists(st.integers(0, 100), min_size=1, max_size=5))
    matched = data.draw(st.none() | st.dictionaries(st.sampled_from(["union-1", "union-3", "x"]), st.integers(0, 200)))
    there = some(*loads)
    one, _ = Chain(first, LoadBalance()).choose("prefill", there, Demand(100, 10, matched))
    assert one in there


def test_the_reason_has_what_it_went_by():
    one, reason = policy_of("kv_cache_affinity").choose("union", some(8, 0), asked(100, union_1=96))
    assert (one.id, reason) == (1, "kv_cache_affinity load=8 matched=96 cost=6")
    assert policy_of("round_robin").choose("union", some(7), Demand())[1] == "round_robin load=7"


def test_what_weighs_on_whom():
    demand = Demand(100, 20)
    assert [demand.of(role) for role in ("union", "prefill", "decode")] == [120, 100, 120]


# --- load -----------------------------------------------------------------------------------------


def instance():
    return Instance(1, "union", "http://engine:80", origin_of("http://engine:80"))


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.integers(0, 5000)), max_size=60))
def test_load_is_what_is_charged_and_not_given_back(steps):
    one, charges = instance(), []
    for charging, which, tokens in steps:
        if charging:
            charges.append(Charge(one, tokens))
        elif charges:
            charges[which % len(charges)].close()  # maybe again
        assert one.load_tokens == sum(charge.tokens for charge in charges) >= 0
    for charge in charges:
        charge.close()
    assert one.load_tokens == 0


def test_a_charge_ends_with_its_block():
    one = instance()
    with Charge(one, 7) as charge:
        assert one.load_tokens == 7
    assert one.load_tokens == 0
    charge.close()
    assert one.load_tokens == 0


def test_load_stays_at_zero_when_somebody_else_took_it(capsys):
    one = instance()
    charge = Charge(one, 7)
    one.load_tokens = 0
    charge.close()
    assert one.load_tokens == 0
    assert "more load was given back than was charged" in capsys.readouterr().out + capsys.readouterr().err
