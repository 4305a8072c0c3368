//! Several charges in one request.

use super::*;
use crate::algorithm::Retry;

const BOTH: [Stacking; 2] = [Stacking::Independent, Stacking::AllOrNothing];

#[test]
fn independent_charges_stand_for_themselves() {
    let store = roomy();
    let (wide, narrow) = (
        limit(Algorithm::TokenBucket, 10, MINUTE),
        limit(Algorithm::TokenBucket, 1, MINUTE),
    );
    let list = [charge(1, &wide, 1), charge(2, &narrow, 1)];
    assert_eq!(
        passed(&store.ask(Stacking::Independent, &list, START)),
        [true, true]
    );
    assert_eq!(
        passed(&store.ask(Stacking::Independent, &list, START)),
        [true, false]
    );
    assert_eq!(store.used(1, &wide, START), 2);
}

#[test]
fn a_request_that_is_refused_as_a_whole_leaves_no_trace() {
    for algorithm in algorithms() {
        let store = roomy();
        let wide = limit(algorithm.clone(), 10, MINUTE);
        let narrow = limit(algorithm, 1, MINUTE);
        let list = [charge(1, &wide, 1), charge(2, &narrow, 1)];
        let first = store.ask(Stacking::AllOrNothing, &list, START);
        assert_eq!(passed(&first), [true, true]);
        let look = |store: &MemoryStore| {
            let peeks = [charge(1, &wide, 0), charge(2, &narrow, 0)];
            (
                store.ask(Stacking::Independent, &peeks, START + MINUTE),
                store.ask(Stacking::Independent, &peeks, START),
            )
        };
        let before = look(&store);
        for _ in 0..100 {
            let refused = store.ask(Stacking::AllOrNothing, &list, START);
            assert_eq!(passed(&refused), [true, false]);
            // What would have passed alone is shown as it stands without it.
            assert_eq!(refused[0].remaining, 9, "{:?}", wide.algorithm);
            assert_eq!(refused[0].used_before, 1);
            assert_eq!(refused[0].reset, before.1[0].reset);
        }
        assert_eq!(look(&store), before);
    }
}

#[test]
fn a_refused_request_makes_no_counter() {
    let store = roomy();
    let (open, closed) = (
        limit(Algorithm::TokenBucket, 10, MINUTE),
        limit(Algorithm::TokenBucket, 0, MINUTE),
    );
    let list = [charge(1, &open, 1), charge(2, &closed, 1)];
    let refused = store.ask(Stacking::AllOrNothing, &list, START);
    assert_eq!(refused[1].retry, Retry::Never);
    assert!(store.is_empty());
}

#[test]
fn one_counter_twice_adds_up() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 3, MINUTE);
        for stacking in BOTH {
            let store = roomy();
            let twice = |cost| [charge(1, &limit, cost), charge(1, &limit, cost)];
            let outcomes = store.ask(stacking, &twice(2), START);
            assert_eq!(passed(&outcomes), [true, false], "{:?}", limit.algorithm);
            // Four of three will not pass later either.
            assert_eq!(outcomes[1].retry, Retry::Never, "{:?}", limit.algorithm);
        }
        let store = roomy();
        let twice = |cost| [charge(1, &limit, cost), charge(1, &limit, cost)];
        assert_eq!(
            passed(&store.ask(Stacking::AllOrNothing, &twice(1), START)),
            [true; 2]
        );
        assert_eq!(store.used(1, &limit, START), 2);
        let refused = store.ask(Stacking::AllOrNothing, &twice(1), START);
        assert_eq!(passed(&refused), [true, false]);
        assert_eq!(store.used(1, &limit, START), 2);
        let Retry::After(wait) = refused[1].retry else {
            panic!("two of three pass later");
        };
        let early = wait.saturating_sub(Span::from_nanos(1));
        let again = |after| passed(&store.ask(Stacking::AllOrNothing, &twice(1), START + after));
        assert_eq!(again(early), [true, false], "{:?}", limit.algorithm);
        assert_eq!(again(wait), [true, true], "{:?}", limit.algorithm);
    }
}

#[test]
fn hints_of_a_refused_request_count_what_passed_and_was_taken() {
    let hour = Span::from_secs(3_600);
    let (rare, frequent) = (
        limit(Algorithm::TokenBucket, 1, hour),
        limit(Algorithm::TokenBucket, 1, Span::from_secs(1)),
    );
    let list = [charge(1, &rare, 1), charge(2, &frequent, 1)];
    let store = roomy();
    assert!(store.one(charge(2, &frequent, 1), START).allowed);
    let alone = store.ask(Stacking::Independent, &list, START);
    assert_eq!(passed(&alone), [true, false]);
    // The token of the rare one is gone: the same request passes in an hour, not in a second.
    assert_eq!(alone[0].retry, Retry::After(hour));
    assert_eq!(alone[1].retry, Retry::After(Span::from_secs(1)));

    let store = roomy();
    assert!(store.one(charge(2, &frequent, 1), START).allowed);
    let together = store.ask(Stacking::AllOrNothing, &list, START);
    assert_eq!(together[0].retry, Retry::After(Span::ZERO));
    assert_eq!(together[1].retry, Retry::After(Span::from_secs(1)));
}

#[test]
fn refunds_clamp_and_always_pass() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 5, MINUTE);
        for stacking in BOTH {
            let store = roomy();
            let refund = |cost| Charge {
                refund: true,
                ..charge(1, &limit, cost)
            };
            assert!(store.ask(stacking, &[refund(3)], START)[0].allowed);
            assert!(store.is_empty(), "nothing was taken, nothing is written");
            assert!(store.ask(stacking, &[charge(1, &limit, 5)], START)[0].allowed);
            let given = store.ask(stacking, &[refund(2)], START);
            assert!(given[0].allowed);
            assert_eq!(given[0].remaining, 2, "{:?}", limit.algorithm);
            let given = store.ask(stacking, &[refund(u64::MAX)], START);
            assert_eq!(given[0].remaining, 5, "{:?}", limit.algorithm);
            assert_eq!(store.used(1, &limit, START), 0);
        }
    }
}

#[test]
fn refunds_are_given_back_even_when_the_rest_is_refused() {
    let (one, other) = (
        limit(Algorithm::TokenBucket, 5, MINUTE),
        limit(Algorithm::TokenBucket, 1, MINUTE),
    );
    let store = roomy();
    let full = [charge(1, &one, 5), charge(2, &other, 1)];
    store.ask(Stacking::AllOrNothing, &full, START);
    let refund = Charge {
        refund: true,
        ..charge(1, &one, 5)
    };
    let outcomes = store.ask(
        Stacking::AllOrNothing,
        &[refund, charge(2, &other, 1)],
        START,
    );
    assert_eq!(passed(&outcomes), [true, false]);
    assert_eq!(store.used(1, &one, START), 0);
}

#[test]
fn a_cost_of_nothing_writes_nothing() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 1, MINUTE);
        for stacking in BOTH {
            let store = roomy();
            let peek = charge(1, &limit, 0);
            let looked = store.ask(stacking, &[peek, peek], START);
            assert_eq!(passed(&looked), [true, true]);
            assert_eq!(looked[1].remaining, 1);
            assert!(store.is_empty());
            assert!(store.one(charge(1, &limit, 1), START).allowed);
            // Nothing is left for one more: exactly then the answer is no.
            assert_eq!(
                passed(&store.ask(stacking, &[peek, peek], START)),
                [false, false]
            );
            assert_eq!(store.used(1, &limit, START), 1);
        }
    }
}

#[test]
fn a_look_says_what_asking_would_say() {
    for algorithm in algorithms() {
        let narrow = limit(algorithm.clone(), 4, MINUTE);
        let wide = limit(algorithm, 9, MINUTE);
        let list = [
            charge(1, &wide, 3),
            charge(2, &narrow, 3),
            charge(1, &wide, 3),
        ];
        let charges = request(Stacking::AllOrNothing, &list);
        let store = roomy();
        let looked = store.look(&charges, START);
        assert_eq!(passed(&looked), [true, true, true]);
        assert_eq!(
            [looked[0].remaining, looked[1].remaining],
            [9, 4],
            "as it stands"
        );
        assert!(store.is_empty());
        assert_eq!(passed(&store.decide(&charges, START)), [true, true, true]);
        let looked = store.look(&charges, START);
        assert_eq!(passed(&looked), [true, false, false]);
        let decided = store.decide(&charges, START);
        assert_eq!(looked, decided, "{:?}", wide.algorithm);
    }
}

#[test]
fn a_look_gives_nothing_back() {
    let limit = limit(Algorithm::TokenBucket, 5, MINUTE);
    let store = roomy();
    assert!(store.one(charge(1, &limit, 5), START).allowed);
    let refund = Charge {
        refund: true,
        ..charge(1, &limit, 5)
    };
    store.look(&request(Stacking::Independent, &[refund]), START);
    assert_eq!(store.used(1, &limit, START), 5);
}

#[test]
fn shadow_limits_are_counted_but_never_stand_in_the_way() {
    let (shadow, enforced) = (
        limit(Algorithm::TokenBucket, 1, MINUTE),
        limit(Algorithm::TokenBucket, 5, MINUTE),
    );
    let store = roomy();
    let list = [
        Charge {
            shadow: true,
            ..charge(1, &shadow, 1)
        },
        charge(2, &enforced, 1),
    ];
    assert_eq!(
        passed(&store.ask(Stacking::AllOrNothing, &list, START)),
        [true, true]
    );
    assert_eq!(
        passed(&store.ask(Stacking::AllOrNothing, &list, START)),
        [false, true]
    );
    assert_eq!(store.used(2, &enforced, START), 2);
}

#[test]
fn quota_limits_refuse_only_all_together() {
    let (small, large, regular) = (
        limit(Algorithm::TokenBucket, 1, MINUTE),
        limit(Algorithm::TokenBucket, 2, MINUTE),
        limit(Algorithm::TokenBucket, 9, MINUTE),
    );
    let quota = |caller, limit| Charge {
        role: Role::Quota,
        ..charge(caller, limit, 1)
    };
    let list = [quota(1, &small), quota(2, &large), charge(3, &regular, 1)];
    let store = roomy();
    let ask = || passed(&store.ask(Stacking::AllOrNothing, &list, START));
    assert_eq!(ask(), [true, true, true]);
    assert_eq!(ask(), [false, true, true]);
    assert_eq!(ask(), [false, false, true]);
    // The third was refused as a whole.
    assert_eq!(store.used(3, &regular, START), 2);

    let mut passed_already = request(Stacking::AllOrNothing, &list);
    passed_already.terms.quota_passed = true;
    store.decide(&passed_already, START);
    assert_eq!(
        store.used(3, &regular, START),
        3,
        "an unmatched quota descriptor passed"
    );
}

#[test]
fn limits_of_one_quota_descriptor_stand_together() {
    let (open, shut) = (
        limit(Algorithm::TokenBucket, 9, MINUTE),
        limit(Algorithm::TokenBucket, 0, MINUTE),
    );
    let quota = |caller, limit, descriptor| Charge {
        role: Role::Quota,
        descriptor,
        ..charge(caller, limit, 1)
    };
    let refused = |list: &[Charge<'_>]| {
        let charges = Charges {
            list: list.iter().copied().collect(),
            terms: Stacking::AllOrNothing.into(),
        };
        charges.are_refused(&roomy().decide(&charges, START))
    };
    // One descriptor with two limits, one of which is shut, is over.
    assert!(refused(&[quota(1, &open, 0), quota(2, &shut, 0)]));
    // Two descriptors, of which one passes.
    assert!(!refused(&[quota(1, &open, 0), quota(2, &shut, 1)]));
}

#[test]
fn more_is_when_one_unit_more_can_be_had() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 7, MINUTE);
        for stacking in BOTH {
            for cost in [1, 3, 7, 8] {
                let store = roomy();
                assert!(store.one(charge(1, &limit, 2), START).allowed);
                let now = START + Span::from_millis(1_234);
                let mut charges = request(stacking, &[charge(1, &limit, cost)]);
                charges.terms.tell_more = true;
                let outcome = store.decide(&charges, now)[0];
                let more = outcome.more.unwrap();
                let left = |after| store.one(charge(1, &limit, 0), now + after).remaining;
                let early = left(more.saturating_sub(Span::from_nanos(1)));
                assert_eq!(early, outcome.remaining, "{:?} {cost}", limit.algorithm);
                assert!(left(more) > outcome.remaining);
            }
        }
        // Of a limit of which nothing is used there will not be more.
        let mut peek = request(Stacking::Independent, &[charge(5, &limit, 0)]);
        peek.terms.tell_more = true;
        assert_eq!(roomy().decide(&peek, START)[0].more, None);
    }
}

#[test]
fn no_algorithm_reads_another_callers_counter() {
    for algorithm in algorithms() {
        let limit = limit(algorithm, 2, MINUTE);
        let store = roomy();
        for caller in 0..100 {
            assert!(store.one(charge(caller, &limit, 2), START).allowed);
        }
        for caller in 0..100 {
            assert!(!store.one(charge(caller, &limit, 1), START).allowed);
        }
        assert_eq!(store.len(), 100);
        assert!(store.reset(key(7)));
        assert!(!store.reset(key(7)));
        assert!(store.one(charge(7, &limit, 2), START).allowed);
        assert!(!store.one(charge(8, &limit, 1), START).allowed);
    }
}
