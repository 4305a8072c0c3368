//! Waiting in the server: who is served when, and who is told to go.

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Cause, Criticality, Decision},
        time::Span,
    },
    rules::concurrency::Shedding,
    store::lease::{Ask, Event, Item, RateShort, Rates, Reply, Ticket},
};

use crate::leases::{Bench, KEY, holder, limit, millis, rule};

fn patient(items: &[Item], wait: u64) -> Ask<'_> {
    Ask {
        max_wait: Some(millis(wait)),
        ..Ask::new(items)
    }
}

/// Tickets that were granted, in order.
fn granted(bench: &mut Bench) -> Vec<Ticket> {
    let settled = bench.settled();
    let granted = settled.into_iter().filter(|(_, answer)| answer.is_go());
    granted.map(|(ticket, _)| ticket).collect()
}

#[test]
fn first_come_first_served_as_soon_as_a_permit_is_back() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let first = bench.wait(&patient(&items, 500));
    bench.pass(10);
    let second = bench.wait(&patient(&items, 500));
    // Who does not wait is told that two are in front.
    let refused = bench.ask(&Ask::new(&items));
    assert_eq!(
        (refused.decision, refused.items[0].waiters),
        (Decision::Refused, 2)
    );
    assert!(refused.retry_after.unwrap() >= Span::from_secs(3));
    bench.pass(10);
    bench.release(id);
    let settled = bench.settled();
    let [(ticket, answer)] = settled.as_slice() else {
        panic!("{settled:?}")
    };
    assert_eq!((*ticket, answer.waited), (first, millis(20)));
    bench.release(answer.leases[0]);
    assert_eq!(granted(&mut bench), [second]);
    bench.audit();
}

#[test]
fn a_wait_ends_to_the_nanosecond_with_a_hint() {
    let mut bench = Bench::new();
    let rule = limit(1);
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let ticket = bench.wait(&patient(&items, 50));
    assert_eq!(bench.book.next_due(), Some(bench.now + millis(50)));
    bench.now = bench.now + millis(50) - Span::from_nanos(1);
    assert_eq!(bench.settled(), []);
    bench.now = bench.now + Span::from_nanos(1);
    let settled = bench.settled();
    let [(told, answer)] = settled.as_slice() else {
        panic!("{settled:?}")
    };
    assert_eq!(
        (*told, answer.decision, answer.cause),
        (ticket, Decision::Refused, Some(Cause::Concurrency))
    );
    assert!(answer.retry_after.is_some());
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().waiters, 0);
    // It has a slot: whoever comes next is told a later one.
    assert!(bench.ask(&Ask::new(&items)).retry_after > answer.retry_after);
}

#[test]
fn who_left_frees_its_place() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let first = bench.wait(&patient(&items, 500));
    let second = bench.wait(&patient(&items, 500));
    assert!(bench.book.leave(first, bench.now));
    bench.release(id);
    assert_eq!(granted(&mut bench), [second]);
    // Too late: its answer was told.
    assert!(!bench.book.leave(second, bench.now));
}

#[test]
fn the_same_request_waits_once() {
    let mut bench = Bench::new();
    let rule = limit(2);
    let id = bench.ask(&Ask::new(&[Item::many(KEY, &rule, 2)])).leases[0];
    let items = [Item::one(KEY, &rule)];
    let ask = Ask {
        request_id: b"r",
        holder: holder("h"),
        ..patient(&items, 100)
    };
    let first = bench.wait(&ask);
    let second = bench.wait(&Ask {
        max_wait: Some(millis(300)),
        ..ask.clone()
    });
    let two = [Item::many(KEY, &rule, 2)];
    let conflict = bench.ask(&Ask {
        items: &two,
        ..ask.clone()
    });
    assert_eq!(conflict.decision, Decision::Conflict);
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().waiters, 1);
    // It waits as long as the most patient of its calls.
    bench.pass(200);
    bench.release(id);
    let settled = bench.settled();
    let decisions: Vec<_> = settled
        .iter()
        .map(|(ticket, a)| (*ticket, a.decision))
        .collect();
    assert_eq!(
        decisions,
        [(first, Decision::Granted), (second, Decision::Replayed)]
    );
    assert_eq!(settled[0].1.leases, settled[1].1.leases);
    assert_eq!(bench.in_flight(KEY), 1);
}

#[test]
fn a_raised_limit_serves_at_once() {
    let mut bench = Bench::new();
    let items = |permits| [Item::one(KEY, &limit(permits))];
    bench.take(&limit(1));
    let tickets = [0; 3].map(|_| bench.wait(&patient(&items(1), 500)));
    bench.book.set_rule(KEY, &limit(3), bench.now);
    assert_eq!(granted(&mut bench), tickets[..2]);
}

#[test]
fn who_cannot_finish_in_time_does_not_wait() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let until = |bench: &Bench, millis_: u64| Some(bench.now + millis(millis_));
    // A second until its turn, and a second of work.
    let ask = Ask {
        deadline: until(&bench, 1_900),
        ..patient(&items, 1_000)
    };
    let refused = bench.ask(&ask);
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::Deadline))
    );
    let ask = Ask {
        deadline: until(&bench, 2_100),
        ..patient(&items, 2_000)
    };
    let ticket = bench.wait(&ask);
    // Its turn comes with less time left than the work takes.
    bench.pass(1_500);
    bench.release(id);
    let settled = bench.settled();
    let [(told, answer)] = settled.as_slice() else {
        panic!("{settled:?}")
    };
    assert_eq!((*told, answer.cause), (ticket, Some(Cause::Deadline)));
    assert_eq!(bench.in_flight(KEY), 0);
}

#[test]
fn a_queue_has_a_bound_and_the_least_critical_gives_way() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.waiting.max_waiters = 2);
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let class = |criticality| Ask {
        criticality,
        ..patient(&items, 500)
    };
    let first = bench.wait(&class(Criticality::Critical));
    let second = bench.wait(&class(Criticality::Sheddable));
    let refused = bench.ask(&class(Criticality::Sheddable));
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::QueueFull))
    );
    let third = bench.wait(&class(Criticality::CriticalPlus));
    let settled = bench.settled();
    let [(told, answer)] = settled.as_slice() else {
        panic!("{settled:?}")
    };
    assert_eq!((*told, answer.cause), (second, Some(Cause::QueueFull)));
    bench.release(id);
    assert_eq!(granted(&mut bench), [third]);
    let _ = first;
}

#[test]
fn a_target_for_the_sojourn_bounds_the_queue() {
    let mut bench = Bench::new();
    // 2 permits · (2 s / 0.5 s − 1) = 6 waiters.
    let rule = rule(2, |rule| {
        rule.estimates.prior_hold = millis(500);
        rule.waiting.queue_target = Some(Span::from_secs(2));
    });
    bench.take(&rule);
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    for _ in 0..6 {
        bench.wait(&patient(&items, 5_000));
    }
    assert_eq!(
        bench.ask(&patient(&items, 5_000)).cause,
        Some(Cause::QueueFull)
    );
}

#[test]
fn newest_first_once_the_queue_stands() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.waiting.newest_first = true);
    let mut id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let tickets: Vec<Ticket> = (0..4)
        .map(|_| {
            let ticket = bench.wait(&patient(&items, 5_000));
            bench.pass(20);
            ticket
        })
        .collect();
    let mut order = Vec::new();
    for step in 0..4 {
        if step == 1 {
            bench.pass(100);
        }
        bench.release(id);
        let settled = bench.settled();
        order.push(settled[0].0);
        id = settled[0].1.leases[0];
    }
    assert_eq!(order, [tickets[0], tickets[3], tickets[2], tickets[1]]);
}

#[test]
fn light_ones_overtake_a_heavy_one_until_its_patience_ends() {
    let mut bench = Bench::new();
    let rule = rule(10, |rule| rule.waiting.heavy_patience = Some(millis(100)));
    let mut ids: Vec<_> = (0..8).map(|_| bench.take(&rule)).collect();
    let heavy = [Item::many(KEY, &rule, 5)];
    let light = [Item::one(KEY, &rule)];
    let ticket = bench.wait(&patient(&heavy, 5_000));
    ids.push(bench.take(&rule));
    bench.pass(100);
    let refused = bench.ask(&Ask::new(&light));
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::Concurrency))
    );
    assert_eq!(refused.items[0].remaining, 1);
    // A light one that waits stands behind it.
    let behind = bench.wait(&patient(&light, 5_000));
    for id in ids.drain(..3) {
        bench.release(id);
        assert_eq!(granted(&mut bench), []);
    }
    bench.release(ids[0]);
    assert_eq!(granted(&mut bench), [ticket]);
    bench.release(ids[1]);
    assert_eq!(granted(&mut bench), [behind]);
}

#[test]
fn without_patience_light_ones_overtake_for_ever() {
    let mut bench = Bench::new();
    let rule = limit(10);
    let ids: Vec<_> = (0..9).map(|_| bench.take(&rule)).collect();
    let heavy = bench.wait(&patient(&[Item::many(KEY, &rule, 5)], 5_000));
    bench.pass(4_000);
    let last = bench.take(&rule);
    let light = bench.wait(&patient(&[Item::one(KEY, &rule)], 5_000));
    bench.release(last);
    assert_eq!(granted(&mut bench), [light]);
    for id in &ids[..4] {
        bench.release(*id);
    }
    assert_eq!(granted(&mut bench), []);
    bench.release(ids[4]);
    assert_eq!(granted(&mut bench), [heavy]);
}

#[test]
fn everybody_waits_by_priority() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| {
        rule.shedding = Shedding::PriorityWait(millis(100));
    });
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let class = |criticality| Ask {
        criticality,
        ..Ask::new(&items)
    };
    let low = bench.wait(&class(Criticality::Sheddable));
    let high = bench.wait(&class(Criticality::CriticalPlus));
    bench.release(id);
    let settled = bench.settled();
    assert_eq!(settled[0].0, high);
    let events = bench.pass(100);
    let [Event::Settled { ticket, answer }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert_eq!((*ticket, answer.decision), (low, Decision::Refused));
}

#[test]
fn tenants_below_their_share_wait_and_go_first() {
    let mut bench = Bench::new();
    let rule = rule(4, |rule| {
        rule.estimates.prior_hold = millis(500);
        rule.waiting.under_share_wait = Some(millis(100));
        rule.shared = true;
    });
    let items = [Item::one(KEY, &rule)];
    let tenant = |n| Ask {
        tenant: Some(CounterKey::from_bits(n)),
        ..Ask::new(&items)
    };
    // The loud one wants fifty permits, and has all four.
    for _ in 0..500 {
        let _ = bench.reply(&tenant(1));
    }
    bench.settled();
    bench.pass(200);
    let held = bench.book.leases(KEY, 10, bench.now);
    assert_eq!(held.len(), 4);
    let refused = bench.ask(&tenant(1));
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::FairShare))
    );
    // Its own demand is the cause, although the limit is everybody's.
    assert!(!refused.shared);
    let small = bench.wait(&tenant(2));
    bench.release(held[0].id);
    assert_eq!(granted(&mut bench), [small]);
}

#[test]
fn a_request_over_two_keys_waits_for_both() {
    let mut bench = Bench::new();
    let other = CounterKey::from_bits(2);
    let rule = limit(1);
    let a = bench.take(&rule);
    let b = bench.ask(&Ask::new(&[Item::one(other, &rule)])).leases[0];
    let both = [Item::one(KEY, &rule), Item::one(other, &rule)];
    let ticket = bench.wait(&patient(&both, 5_000));
    let single = bench.wait(&patient(&both[1..], 5_000));
    bench.release(a);
    // The first key is free now, but the second is not: it waits there, in its place of old, and
    // whoever needs only the first key passes.
    assert_eq!(granted(&mut bench), []);
    let quick = bench.take(&rule);
    bench.release(quick);
    bench.turn();
    bench.release(b);
    assert_eq!(granted(&mut bench), [ticket]);
    assert_eq!((bench.in_flight(KEY), bench.in_flight(other)), (1, 1));
    let _ = single;
    bench.audit();
}

#[test]
fn rate_limits_are_decided_when_the_permits_are_there() {
    struct Once(bool);
    impl Rates for Once {
        fn take(&mut self, _: Ticket) -> Option<RateShort> {
            let short = RateShort {
                retry_after: Some(Span::from_secs(7)),
                shared: false,
            };
            (!std::mem::take(&mut self.0)).then_some(short)
        }
    }
    let mut bench = Bench::new();
    let rule = limit(2);
    let ids = [bench.take(&rule), bench.take(&rule)];
    let items = [Item::one(KEY, &rule)];
    let tickets = [0; 2].map(|_| bench.wait(&patient(&items, 5_000)));
    for id in ids {
        bench.release(id);
    }
    bench.book.turn(bench.now, &mut Once(true));
    let settled: Vec<_> = bench
        .book
        .take_events()
        .into_iter()
        .filter_map(crate::leases::settled)
        .collect();
    assert_eq!(
        (settled[0].0, settled[0].1.decision),
        (tickets[0], Decision::Granted)
    );
    let (ticket, refused) = &settled[1];
    assert_eq!((*ticket, refused.cause), (tickets[1], Some(Cause::Rate)));
    assert_eq!(refused.retry_after, Some(Span::from_secs(7)));
    assert_eq!(bench.in_flight(KEY), 1);
}

#[test]
fn the_cap_is_above_every_wish() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.waiting.max_wait = Span::from_secs(9));
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let ask = Ask {
        wait_cap: millis(10),
        ..Ask::new(&items)
    };
    bench.wait(&ask);
    assert_eq!(bench.book.next_due(), Some(bench.now + millis(10)));
    let none = Ask {
        wait_cap: Span::ZERO,
        ..Ask::new(&items)
    };
    assert!(matches!(bench.reply(&none), Reply::Now(_)));
}
