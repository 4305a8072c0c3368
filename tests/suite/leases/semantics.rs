//! The semantics table: what each call answers and what it changes.

use std::sync::Arc;

use porteiro::{
    algorithm::concurrency::law::{AimdSettings, LawSettings, TargetSettings},
    model::{
        key::CounterKey,
        lease::{
            Cause, Criticality, Decision, EndedBy, LeaseId, Outcome, ReleaseStatus, RenewStatus,
        },
        time::{Span, Timestamp},
    },
    rules::concurrency::OnRestart,
    store::lease::{
        Answer, Ask, AskError, Bounds, Checked, Event, Identity, Item, LeaseBook, MAX_PERMITS,
        RateShort, Release, Reply, Saved, Undo,
    },
};

use crate::leases::{Bench, KEY, holder, limit, millis, rule};

const OTHER: CounterKey = CounterKey::from_bits(2);

/// A hint in whole milliseconds, rounded.
fn told(wait: Option<Span>) -> u64 {
    let half = Span::from_micros(500);
    wait.unwrap().saturating_add(half).as_nanos() / 1_000_000
}

#[test]
fn a_lease_lives_to_the_nanosecond() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.lease_ttl = millis(1_500));
    let id = bench.take(&rule);
    bench.now = bench.now + millis(1_500);
    bench.now = bench.now - Span::from_nanos(1);
    assert_eq!(bench.in_flight(KEY), 1);
    assert!(!bench.ask(&Ask::new(&[Item::one(KEY, &rule)])).is_go());
    bench.now = bench.now + Span::from_nanos(1);
    assert_eq!(bench.in_flight(KEY), 0);
    bench.take(&rule);
    bench.now = bench.now + millis(40);
    assert_eq!(bench.release(id), ReleaseStatus::Late { by: millis(40) });
    bench.audit();
}

#[test]
fn the_same_request_has_the_same_lease_while_it_lives() {
    let mut bench = Bench::new();
    let rule = limit(5);
    let items = [Item::many(KEY, &rule, 2)];
    let ask = Ask {
        request_id: b"r",
        holder: holder("h"),
        ..Ask::new(&items)
    };
    let first = bench.ask(&ask);
    bench.pass(10_000);
    let again = bench.ask(&ask);
    assert_eq!(
        (again.decision, &again.leases),
        (Decision::Replayed, &first.leases)
    );
    assert_eq!(
        (again.expires_in, again.fence),
        (Span::from_secs(20), first.fence)
    );
    assert_eq!((bench.in_flight(KEY), again.items[0].granted), (2, 2));
    let other = [Item::many(KEY, &rule, 1)];
    let conflict = bench.ask(&Ask {
        items: &other,
        ..ask.clone()
    });
    assert_eq!(conflict.decision, Decision::Conflict);
    // Another holder's request of the same id is another request.
    let foreign = bench.ask(&Ask {
        holder: holder("g"),
        ..ask.clone()
    });
    assert_eq!(foreign.decision, Decision::Granted);
    bench.release(first.leases[0]);
    let late = bench.ask(&ask);
    assert_eq!(late.decision, Decision::Ended(EndedBy::Released));
    assert_eq!(late.leases, first.leases);
    // After a minute nobody remembers, and it is decided anew.
    bench.pass(59_999);
    assert_eq!(bench.ask(&ask).decision, Decision::Ended(EndedBy::Released));
    bench.pass(1);
    assert_eq!(bench.ask(&ask).decision, Decision::Granted);
}

#[test]
fn only_the_holder_renews_and_releases() {
    let mut bench = Bench::new();
    let rule = limit(5);
    let items = [Item::one(KEY, &rule)];
    let id = bench
        .ask(&Ask {
            holder: holder("h"),
            ..Ask::new(&items)
        })
        .leases[0];
    let release = |holder| Release {
        id,
        holder,
        outcome: Outcome::Success,
        held: None,
        service_time: None,
        actual_permits: None,
    };
    let now = bench.now;
    assert_eq!(
        bench.book.release(&release(Some("g")), now),
        ReleaseStatus::NotHolder
    );
    assert_eq!(
        bench.book.renew(&id, Some("g"), None, now),
        RenewStatus::NotHolder
    );
    assert_eq!(bench.in_flight(KEY), 1);
    assert_eq!(
        bench.book.renew(&id, Some("h"), None, now),
        RenewStatus::Renewed {
            expires_in: Span::from_secs(30),
            capped: false
        }
    );
    let released = bench.book.release(&release(Some("h")), now);
    assert_eq!(released, ReleaseStatus::Released { held: Span::ZERO });
    assert_eq!(
        bench.book.release(&release(Some("g")), now),
        ReleaseStatus::NotHolder
    );
    assert_eq!(
        bench.book.release(&release(None), now),
        ReleaseStatus::AlreadyReleased
    );
}

#[test]
fn an_id_that_was_guessed_is_unknown() {
    let mut bench = Bench::new();
    let id = bench.take(&limit(5));
    let guess = LeaseId {
        secret: id.secret ^ 1,
        ..id
    };
    assert_eq!(bench.release(guess), ReleaseStatus::Unknown);
    let elsewhere = LeaseId { book: 9, ..id };
    assert_eq!(bench.release(elsewhere), ReleaseStatus::Unknown);
    let before = LeaseId { boot: 0, ..id };
    assert_eq!(bench.release(before), ReleaseStatus::OtherBoot);
    assert_eq!(
        bench.book.renew(&before, None, None, bench.now),
        RenewStatus::OtherBoot
    );
    assert_eq!(bench.in_flight(KEY), 1);
}

#[test]
fn renewal_never_shortens_and_ends_with_the_lifetime() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.max_lifetime = Span::from_secs(60));
    let id = bench.take(&rule);
    let renew = |bench: &mut Bench, ttl: u64| {
        bench
            .book
            .renew(&id, None, Some(Span::from_secs(ttl)), bench.now)
    };
    let renewed = |expires_in, capped| RenewStatus::Renewed {
        expires_in: Span::from_secs(expires_in),
        capped,
    };
    assert_eq!(renew(&mut bench, 1), renewed(30, false));
    bench.pass(20_000);
    assert_eq!(renew(&mut bench, 35), renewed(35, false));
    assert_eq!(renew(&mut bench, 50), renewed(40, true));
    bench.pass(40_000);
    assert_eq!(renew(&mut bench, 50), RenewStatus::Gone(EndedBy::Expired));
}

#[test]
fn a_ttl_stays_within_its_bounds() {
    let mut bench = Bench::new();
    let rule = limit(5);
    let items = [Item::one(KEY, &rule)];
    let mut life = |ttl| {
        bench
            .ask(&Ask {
                ttl,
                ..Ask::new(&items)
            })
            .expires_in
    };
    assert_eq!(life(None), Span::from_secs(30));
    assert_eq!(life(Some(millis(5))), Span::from_secs(1));
    assert_eq!(life(Some(Span::from_secs(9_999))), Span::from_secs(600));
}

#[test]
fn a_refusal_takes_nothing_anywhere_and_names_every_short_item() {
    let mut bench = Bench::new();
    let (one, two) = (limit(1), limit(2));
    bench.take(&one);
    let items = [
        Item::one(OTHER, &two),
        Item::one(KEY, &one),
        Item::one(KEY, &one),
    ];
    let never = bench.ask(&Ask::new(&items));
    assert_eq!((never.decision, never.offender), (Decision::Never, Some(1)));
    assert_eq!(never.retry_after, None);
    let items = [Item::one(OTHER, &two), Item::one(KEY, &one)];
    let refused = bench.ask(&Ask::new(&items));
    assert_eq!(refused.decision, Decision::Refused);
    assert_eq!(refused.limiting.as_slice(), [1]);
    assert_eq!(
        (refused.cause, refused.shared),
        (Some(Cause::Concurrency), false)
    );
    assert_eq!((bench.in_flight(KEY), bench.in_flight(OTHER)), (1, 0));
    bench.ask(&Ask::new(&[Item::many(OTHER, &two, 2)]));
    let refused = bench.ask(&Ask::new(&items));
    assert_eq!(refused.limiting.as_slice(), [0, 1]);
}

#[test]
fn a_rate_limit_of_the_same_request_refuses_for_all() {
    let mut bench = Bench::new();
    let shared = rule(1, |rule| rule.shared = true);
    let items = [Item::one(KEY, &shared)];
    let ask = Ask::new(&items);
    let check = |bench: &mut Bench| match bench.book.check(&ask, bench.now).unwrap() {
        Checked::Open(plan) => *plan,
        Checked::Decided(reply) => panic!("{reply:?}"),
    };
    let rate = |millis| {
        Some(RateShort {
            retry_after: millis,
            shared: false,
        })
    };
    let refuse = |bench: &mut Bench, plan, rate| match bench.book.refuse(plan, rate) {
        Reply::Now(answer) => *answer,
        Reply::Waits(_) => panic!("waits"),
    };
    let plan = check(&mut bench);
    assert!(plan.fits());
    let refused = refuse(&mut bench, plan, rate(Some(millis(250))));
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::Rate))
    );
    assert_eq!(
        (refused.retry_after, refused.shared),
        (Some(millis(250)), false)
    );
    assert!(refused.limiting.is_empty());
    assert_eq!(bench.in_flight(KEY), 0);
    // Both short: the longer wait decides about the cause.
    bench.take(&shared);
    let plan = check(&mut bench);
    let refused = refuse(&mut bench, plan, rate(Some(millis(250))));
    assert_eq!(
        (refused.cause, refused.shared),
        (Some(Cause::Concurrency), true)
    );
    assert_eq!(refused.retry_after, Some(Span::from_secs(1)));
    let plan = check(&mut bench);
    let refused = refuse(&mut bench, plan, rate(Some(Span::from_secs(60))));
    assert_eq!(refused.retry_after, Some(Span::from_secs(60)));
    let plan = check(&mut bench);
    let refused = refuse(&mut bench, plan, rate(None));
    assert_eq!(
        (refused.cause, refused.retry_after),
        (Some(Cause::Rate), None)
    );
}

#[test]
fn limit_zero_is_a_drain_switch_and_raising_it_opens() {
    let mut bench = Bench::new();
    let mut check = |permits: u64, asked: u64| {
        let rule = limit(permits);
        bench.ask(&Ask::new(&[Item::many(KEY, &rule, asked)]))
    };
    let drained = check(0, 3);
    assert_eq!(
        (drained.decision, told(drained.retry_after)),
        (Decision::Refused, 1_000)
    );
    assert_eq!(check(2, 3).decision, Decision::Never);
    assert_eq!(check(3, 3).decision, Decision::Granted);
    // Below what is in flight: nothing is revoked, the hint counts the excess.
    let refused = check(1, 1);
    assert_eq!(
        (refused.items[0].in_flight, refused.items[0].remaining),
        (3, 0)
    );
    assert_eq!(told(refused.retry_after), 3_000);
    assert_eq!(check(4, 1).decision, Decision::Granted);
}

#[test]
fn an_adaptive_limit_is_held_against_what_it_can_become() {
    let mut bench = Bench::new();
    let rule = rule(0, |rule| {
        let settings = TargetSettings {
            max: 30,
            ..TargetSettings::new(millis(350))
        };
        rule.limit = LawSettings::Target(settings);
    });
    let mut ask = |permits| bench.ask(&Ask::new(&[Item::many(KEY, &rule, permits)]));
    let refused = ask(21);
    assert_eq!(
        (refused.decision, refused.cause),
        (Decision::Refused, Some(Cause::ShedAdaptive))
    );
    assert!(refused.shared);
    assert_eq!(ask(31).decision, Decision::Never);
    assert_eq!(ask(20).decision, Decision::Granted);
}

#[test]
fn outcomes_teach_an_adaptive_limit() {
    let mut bench = Bench::new();
    let rule = rule(0, |rule| {
        rule.limit = LawSettings::Aimd(AimdSettings::default());
        rule.window = None;
    });
    let work = |bench: &mut Bench, outcome, service_time| {
        let ids: Vec<LeaseId> = (0..20).map(|_| bench.take(&rule)).collect();
        for id in ids {
            let release = Release {
                id,
                holder: None,
                outcome,
                held: None,
                service_time,
                actual_permits: None,
            };
            bench.book.release(&release, bench.now);
        }
        bench.book.take_events()
    };
    assert_eq!(work(&mut bench, Outcome::Ignored, None), []);
    let events = work(&mut bench, Outcome::Success, None);
    // Those who found at least half of the limit in use make it grow.
    let Some(Event::LimitChanged { path, key, change }) = events.last() else {
        panic!("{events:?}")
    };
    assert_eq!((path.as_ref(), *key, change.to), ("work", KEY, 31));
    let slow = work(&mut bench, Outcome::Success, Some(Span::from_secs(6)));
    assert!(slow.len() > 1);
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().limit, 20);
    let counts = &bench.book.totals().changes;
    assert!(
        counts.get("grow") > 5 && counts.get("slow") > 1,
        "{counts:?}"
    );
}

#[test]
fn fewer_permits_will_do() {
    let mut bench = Bench::new();
    let rule = limit(10);
    let ask = |bench: &mut Bench, permits, least| {
        let items = [Item {
            least,
            ..Item::many(KEY, &rule, permits)
        }];
        bench.ask(&Ask {
            partial: true,
            ..Ask::new(&items)
        })
    };
    assert_eq!(ask(&mut bench, 7, 1).items[0].granted, 7);
    let rest = ask(&mut bench, 7, 2);
    assert_eq!(
        (rest.decision, rest.items[0].granted),
        (Decision::Granted, 3)
    );
    assert_eq!(ask(&mut bench, 7, 1).decision, Decision::Refused);
    assert_eq!(ask(&mut bench, 20, 11).decision, Decision::Never);
    bench.release(rest.leases[0]);
    assert_eq!(ask(&mut bench, 20, 4).decision, Decision::Refused);
    assert_eq!(ask(&mut bench, 20, 3).items[0].granted, 3);
}

#[test]
fn a_dry_run_changes_nothing() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let items = [Item::one(KEY, &rule)];
    let nothing = [Item::many(KEY, &rule, 0)];
    let dry = Ask {
        dry_run: true,
        request_id: b"r",
        ..Ask::new(&items)
    };
    assert_eq!(bench.ask(&dry).decision, Decision::WouldGrant);
    assert_eq!(
        bench
            .ask(&Ask {
                items: &nothing,
                ..dry.clone()
            })
            .decision,
        Decision::WouldGrant
    );
    assert_eq!(bench.in_flight(KEY), 0);
    bench.take(&rule);
    for _ in 0..3 {
        // No booking: everybody is told the same.
        let refused = bench.ask(&dry);
        assert_eq!(
            (refused.decision, told(refused.retry_after)),
            (Decision::Refused, 1_000)
        );
    }
    // Nothing asked for: is there one left?
    assert_eq!(
        bench
            .ask(&Ask {
                items: &nothing,
                ..dry.clone()
            })
            .decision,
        Decision::Refused
    );
    assert!(bench.book.peek(KEY, bench.now).unwrap().reserved < 1e-9);
}

#[test]
fn what_has_no_rule_passes_unless_told_otherwise() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let unknown = Item {
        key: OTHER,
        rule: None,
        permits: 1,
        least: 1,
    };
    let items = [unknown.clone()];
    let passed = bench.ask(&Ask::new(&items));
    assert_eq!(
        (passed.decision, passed.leases.len()),
        (Decision::Granted, 0)
    );
    let items = [unknown, Item::one(KEY, &rule)];
    let passed = bench.ask(&Ask::new(&items));
    assert_eq!(
        (passed.decision, passed.leases.len()),
        (Decision::Granted, 1)
    );
    assert_eq!((passed.items[0].limit, passed.items[1].limit), (0, 1));
    let refused = bench.ask(&Ask {
        refuse_unknown: true,
        ..Ask::new(&items)
    });
    assert_eq!(
        (refused.decision, refused.offender),
        (Decision::UnknownKey, Some(0))
    );
}

#[test]
fn a_shadow_limit_looks_on() {
    let mut bench = Bench::new();
    let shadow = rule(1, |rule| rule.shadow = true);
    for permits in 1..=3 {
        let answer = bench.ask(&Ask::new(&[Item::one(KEY, &shadow)]));
        assert_eq!(answer.decision, Decision::Granted);
        assert_eq!(answer.items[0].shadow_short, permits > 1);
        assert_eq!(answer.items[0].in_flight, permits);
    }
    assert_eq!(bench.book.limits(bench.now)[0].counts.shadow_refused, 2);
    let many = bench.ask(&Ask::new(&[Item::many(KEY, &shadow, 9)]));
    assert_eq!(many.decision, Decision::Granted);
    bench.audit();
}

#[test]
fn classes_fill_their_part_of_the_limit() {
    let mut bench = Bench::new();
    let rule = limit(100);
    let items = [Item::one(KEY, &rule)];
    bench.ask(&Ask::new(&[Item::many(KEY, &rule, 79)]));
    let mut ask = |criticality, cohort| {
        let ask = Ask {
            criticality,
            cohort,
            ..Ask::new(&items)
        };
        let answer = bench.ask(&ask);
        (answer.is_go(), answer.cause, answer.shared)
    };
    let passed = (true, None, false);
    let shed = (false, Some(Cause::ShedCriticality), true);
    assert_eq!(ask(Criticality::Sheddable, None), passed);
    assert_eq!(ask(Criticality::Sheddable, None), shed);
    // Within a class the cohort decides: the last one may fill 80.08 %, the middle one 85 %.
    assert_eq!(ask(Criticality::SheddablePlus, Some(127)), passed);
    assert_eq!(ask(Criticality::SheddablePlus, Some(127)), shed);
    for _ in 81..85 {
        assert_eq!(ask(Criticality::SheddablePlus, Some(64)), passed);
    }
    assert_eq!(ask(Criticality::SheddablePlus, Some(64)), shed);
    for _ in 85..90 {
        assert_eq!(ask(Criticality::SheddablePlus, None), passed);
    }
    assert_eq!(ask(Criticality::SheddablePlus, Some(0)), shed);
    for _ in 90..100 {
        assert_eq!(ask(Criticality::Critical, None), passed);
    }
    // Full for everybody: nobody is shed.
    let full = (false, Some(Cause::Concurrency), false);
    assert_eq!(ask(Criticality::CriticalPlus, None), full);
    assert_eq!(ask(Criticality::Sheddable, None), full);
}

#[test]
fn refused_callers_get_different_slots() {
    let mut bench = Bench::new();
    let rule = rule(2, |rule| rule.estimates.exposure = false);
    bench.take(&rule);
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let ask = |bench: &mut Bench, id: &str| {
        let ask = Ask {
            request_id: id.as_bytes(),
            ..Ask::new(&items)
        };
        told(bench.ask(&ask).retry_after)
    };
    // Mean hold 1 s, two permits: one comes back every half second.
    assert_eq!(
        [
            ask(&mut bench, "a"),
            ask(&mut bench, "b"),
            ask(&mut bench, "")
        ],
        [500, 1_000, 1_500]
    );
    bench.pass(100);
    // Too early: the same slot again, and no second booking.
    assert_eq!(ask(&mut bench, "b"), 900);
    assert_eq!(ask(&mut bench, "c"), 1_900);
    // At its slot the booking is used up.
    bench.pass(900);
    assert_eq!(ask(&mut bench, "b"), 1_500);
    let counts = bench.book.totals();
    assert_eq!(counts.returned, 2);
}

#[test]
fn an_early_grant_gives_its_slot_back() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.estimates.exposure = false);
    let id = bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let first = Ask {
        request_id: b"a",
        ..Ask::new(&items)
    };
    assert_eq!(told(bench.ask(&first).retry_after), 1_000);
    bench.release(id);
    let granted = bench.ask(&first);
    assert_eq!(
        (granted.decision, granted.hint_error),
        (Decision::Granted, Some(-1.0))
    );
    let second = bench.ask(&Ask {
        request_id: b"b",
        ..Ask::new(&items)
    });
    // The hold of the first release (0 s) counts already: 0.8 s.
    assert_eq!(told(second.retry_after), 800);
}

#[test]
fn a_hint_is_bounded_by_expiry_and_may_be_hopeless() {
    let mut bench = Bench::new();
    let rule = rule(2, |rule| {
        rule.estimates.prior_hold = Span::from_secs(600);
        rule.lease_ttl = Span::from_secs(4);
    });
    bench.take(&rule);
    bench.pass(1_000);
    bench.take(&rule);
    let items = [Item::one(KEY, &rule)];
    let ask = Ask {
        deadline: Some(bench.now + Span::from_secs(3)),
        ..Ask::new(&items)
    };
    // 300 s by the law, but one permit is back after 3 s, and the next a second later.
    let refused = bench.ask(&ask);
    assert_eq!(
        (told(refused.retry_after), refused.hopeless),
        (3_000, false)
    );
    let refused = bench.ask(&ask);
    assert_eq!((told(refused.retry_after), refused.hopeless), (4_000, true));
}

#[test]
fn what_a_caller_expects_counts_until_something_is_seen() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| rule.estimates.exposure = false);
    let items = [Item::one(KEY, &rule)];
    let expected = |millis| Some(Span::from_millis(millis));
    let granted = bench.ask(&Ask {
        expected_hold: expected(200),
        ..Ask::new(&items)
    });
    let refused = bench.ask(&Ask {
        dry_run: true,
        ..Ask::new(&items)
    });
    assert_eq!(told(refused.retry_after), 200);
    bench.pass(100);
    bench.release(granted.leases[0]);
    bench.take(&rule);
    let ask = Ask {
        expected_hold: expected(9_000),
        dry_run: true,
        ..Ask::new(&items)
    };
    assert_eq!(told(bench.ask(&ask).retry_after), 180);
}

#[test]
fn the_hold_that_is_told_is_at_most_the_one_that_was_seen() {
    let mut bench = Bench::new();
    let rule = limit(2);
    let mut release = |held| {
        let id = bench.take(&rule);
        bench.pass(100);
        let release = Release {
            id,
            holder: None,
            outcome: Outcome::Success,
            held: Some(held),
            service_time: None,
            actual_permits: None,
        };
        bench.book.release(&release, bench.now)
    };
    assert_eq!(
        release(millis(40)),
        ReleaseStatus::Released { held: millis(40) }
    );
    assert_eq!(
        release(millis(900)),
        ReleaseStatus::Released { held: millis(100) }
    );
}

#[test]
fn a_grant_is_undone_when_nobody_heard_of_it() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let items = [Item::one(KEY, &rule)];
    let ask = Ask {
        request_id: b"r",
        ..Ask::new(&items)
    };
    let first = bench.ask(&ask);
    bench.pass(20);
    bench.book.undo(&first.leases, Undo::Left, bench.now);
    assert_eq!(bench.in_flight(KEY), 0);
    // As if it had never been: no replay, no end that is remembered.
    assert_eq!(bench.release(first.leases[0]), ReleaseStatus::Unknown);
    let second = bench.ask(&ask);
    assert_eq!(second.decision, Decision::Granted);
    // A repeated call got the answer: the lease stays although the first one was cancelled.
    assert_eq!(bench.ask(&ask).decision, Decision::Replayed);
    bench.book.undo(&second.leases, Undo::Left, bench.now);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.book.undo(&second.leases, Undo::Left, bench.now);
    assert_eq!(bench.in_flight(KEY), 0);
    assert_eq!(bench.book.totals().cancelled, 2);
    bench.audit();
}

#[test]
fn bounds_are_errors_of_the_caller() {
    let mut bench = Bench::with(Bounds {
        leases_per_holder: 2,
        keys: 3,
        ..Bounds::default()
    });
    let rule = limit(50);
    let item = Item::one(KEY, &rule);
    let error = |bench: &mut Bench, ask: &Ask<'_>| bench.book.acquire(ask, bench.now).unwrap_err();
    assert_eq!(error(&mut bench, &Ask::new(&[])), AskError::NoItems);
    let many = vec![item.clone(); 33];
    assert_eq!(error(&mut bench, &Ask::new(&many)), AskError::TooManyItems);
    let nothing = [Item::many(KEY, &rule, 0)];
    assert_eq!(error(&mut bench, &Ask::new(&nothing)), AskError::NoPermits);
    let items = [item];
    let long = Ask {
        request_id: &[0; 65],
        ..Ask::new(&items)
    };
    assert_eq!(error(&mut bench, &long), AskError::RequestIdTooLong);
    let of_holder = Ask {
        holder: holder("h"),
        ..Ask::new(&items)
    };
    assert!(bench.ask(&of_holder).is_go() && bench.ask(&of_holder).is_go());
    assert_eq!(error(&mut bench, &of_holder), AskError::HolderFull);
    assert!(bench.ask(&Ask::new(&items)).is_go());
    let opened = bench.book.open_session(Span::ZERO, bench.now);
    bench.book.close_session(opened.stream, bench.now);
    let over = Ask {
        session: Some(opened.stream.session),
        ..Ask::new(&items)
    };
    assert_eq!(error(&mut bench, &over), AskError::NoSession);
    // Keys with leases are not forgotten for new ones.
    for key in 10..12 {
        assert!(
            bench
                .ask(&Ask::new(&[Item::one(CounterKey::from_bits(key), &rule)]))
                .is_go()
        );
    }
    let fourth = [Item::one(CounterKey::from_bits(12), &rule)];
    assert_eq!(error(&mut bench, &Ask::new(&fourth)), AskError::BookFull);
    bench.pass(30_000);
    assert!(bench.ask(&Ask::new(&fourth)).is_go());
}

#[test]
fn huge_numbers_do_no_harm() {
    let mut bench = Bench::new();
    let huge = rule(u64::MAX, |rule| rule.shadow = true);
    let ask = |bench: &mut Bench, permits| {
        let items = [Item::many(KEY, &huge, permits)];
        let ask = Ask {
            ttl: Some(Span::MAX),
            ..Ask::new(&items)
        };
        bench
            .book
            .acquire(&ask, bench.now)
            .map(|reply| matches!(reply, Reply::Now(answer) if answer.is_go()))
    };
    assert_eq!(ask(&mut bench, u64::MAX), Err(AskError::TooManyPermits));
    for _ in 0..1_000 {
        assert_eq!(ask(&mut bench, MAX_PERMITS), Ok(true));
    }
    bench.book.limits(bench.now);
    bench.now = Timestamp::MAX;
    bench.turn();
    assert_eq!(ask(&mut bench, MAX_PERMITS), Ok(true));
    bench.audit();
}

#[test]
fn ended_leases_are_remembered_within_bounds() {
    let mut bench = Bench::new();
    let rule = limit(10);
    let ids: Vec<LeaseId> = (0..50)
        .map(|_| {
            let id = bench.take(&rule);
            bench.release(id);
            id
        })
        .collect();
    let known = ids
        .iter()
        .filter(|id| bench.release(**id) == ReleaseStatus::AlreadyReleased);
    assert_eq!(known.count(), 40);
    bench.pass(60_000);
    assert_eq!(bench.release(ids[49]), ReleaseStatus::Unknown);
}

#[test]
fn a_key_that_nobody_uses_is_forgotten() {
    let mut bench = Bench::new();
    let rule = limit(1);
    bench.take(&rule);
    bench.pass(599_000);
    bench.book.sweep(10, bench.now);
    assert!(bench.book.peek(KEY, bench.now).is_some());
    bench.pass(1_000);
    bench.book.sweep(10, bench.now);
    assert_eq!(bench.book.peek(KEY, bench.now), None);
    bench.take(&rule);
    bench.audit();
}

#[test]
fn a_draining_server_grants_nothing_and_lets_leases_end() {
    let mut bench = Bench::new();
    let rule = limit(5);
    let id = bench.take(&rule);
    bench.book.set_draining(true);
    let answer = bench.ask(&Ask::new(&[Item::one(KEY, &rule)]));
    assert_eq!((answer.decision, answer.shared), (Decision::Draining, true));
    assert!(matches!(bench.release(id), ReleaseStatus::Released { .. }));
}

#[test]
fn an_operator_resets_and_revokes() {
    let mut bench = Bench::new();
    let rule = limit(5);
    let (one, two) = (bench.take(&rule), bench.take(&rule));
    bench.pass(200);
    bench.release(one);
    assert!(bench.book.finished_hold(KEY).unwrap() < 1.0);
    assert!(bench.book.reset(KEY, false, bench.now));
    assert!((bench.book.finished_hold(KEY).unwrap() - 1.0).abs() < 1e-12);
    assert_eq!(bench.in_flight(KEY), 1);
    assert!(bench.book.reset(KEY, true, bench.now));
    assert_eq!(bench.in_flight(KEY), 0);
    assert_eq!(bench.release(two), ReleaseStatus::Revoked);
    let three = bench.take(&rule);
    assert!(bench.book.revoke(&three, bench.now) && !bench.book.revoke(&three, bench.now));
    assert!(!bench.book.reset(OTHER, true, bench.now));
    bench.audit();
}

#[test]
fn a_view_tells_lambda_w_l_and_what_leaks() {
    let mut bench = Bench::new();
    let rule = rule(4, |rule| rule.lease_ttl = millis(2_000));
    let items = [Item::one(KEY, &rule)];
    let ask = |bench: &mut Bench| {
        bench
            .ask(&Ask {
                holder: holder("leaky"),
                ..Ask::new(&items)
            })
            .leases[0]
    };
    // Ten a second, each held for 0.1 s; one in ten is never given back.
    for n in 0..200 {
        let id = ask(&mut bench);
        bench.pass(100);
        if n % 10 > 0 {
            bench.release(id);
        }
    }
    bench.pass(2_000);
    for _ in 0..200 {
        let id = ask(&mut bench);
        bench.pass(100);
        bench.release(id);
    }
    let view = bench.book.limits(bench.now).remove(0);
    let close = |got: f64, expected: f64| (got - expected).abs() < 0.1 * expected;
    assert!(close(view.arrival_rate, 10.0), "{view:?}");
    assert!(
        close(view.mean_hold, 0.1) && close(view.mean_in_flight, 1.0),
        "{view:?}"
    );
    assert!(
        close(view.saturation, 0.25) && close(view.leak_share, 20.0 / 400.0),
        "{view:?}"
    );
    assert!(
        close(view.ttl_advice.unwrap(), 0.05 / 0.95 * 0.1 * 20.0),
        "{view:?}"
    );
    assert!(
        view.refused_forecast > 0.014 && view.refused_forecast < 0.017,
        "{view:?}"
    );
    assert_eq!((view.conservation_error, view.keys), (0.0, 1));
    let leaking = bench.book.leaking_holders(5);
    assert_eq!((leaking[0].0.as_ref(), leaking[0].1.expired), ("leaky", 20));
}

fn reopen(
    bench: &mut Bench,
    saved: &Saved,
    down: Span,
    rule: &Arc<porteiro::rules::concurrency::ConcurrencyRule>,
) {
    let identity = Identity { boot: 2, book: 0 };
    let rule = Arc::clone(rule);
    bench.book = LeaseBook::reopen(
        identity,
        Bounds::default(),
        [9; 32],
        bench.now,
        saved,
        down,
        |path| (path == "work").then(|| Arc::clone(&rule)),
    );
}

#[test]
fn a_snapshot_keeps_leases_with_what_is_left_of_them() {
    let mut bench = Bench::new();
    let rule = rule(3, |rule| rule.on_restart = OnRestart::Snapshot);
    let items = [Item::many(KEY, &rule, 2)];
    let ask = Ask {
        request_id: b"r",
        holder: holder("h"),
        ..Ask::new(&items)
    };
    let first = bench.ask(&ask);
    let short = Ask {
        ttl: Some(Span::from_secs(2)),
        ..Ask::new(&[])
    };
    let one = [Item::one(KEY, &rule)];
    bench.ask(&Ask {
        items: &one,
        ..short
    });
    bench.pass(1_000);
    let saved = bench.book.save(bench.now);
    // Another clock, and a second of darkness in which the short one ended.
    bench.now = Timestamp::from_secs(5);
    reopen(&mut bench, &saved, Span::from_secs(1), &rule);
    assert_eq!(bench.in_flight(KEY), 2);
    let again = bench.ask(&ask);
    assert_eq!(
        (again.decision, &again.leases),
        (Decision::Replayed, &first.leases)
    );
    assert_eq!(again.expires_in, Span::from_secs(28));
    let next = bench.ask(&Ask::new(&one));
    assert!(next.fence > first.fence + 1);
    assert_eq!(next.leases[0].boot, 2);
    // Held for a second before and a second in the dark.
    let held = Span::from_secs(2);
    assert_eq!(
        bench.release(first.leases[0]),
        ReleaseStatus::Released { held }
    );
    bench.audit();
}

#[test]
fn a_quarantine_is_open_to_those_who_come_back() {
    let mut bench = Bench::new();
    let rule = rule(2, |rule| rule.on_restart = OnRestart::Quarantine);
    let old = bench.take(&rule);
    let forgotten = Saved {
        leases: Vec::new(),
        ..bench.book.save(bench.now)
    };
    reopen(&mut bench, &forgotten, Span::ZERO, &rule);
    let items = [Item::one(KEY, &rule)];
    let refused = bench.ask(&Ask::new(&items));
    assert_eq!(
        (refused.cause, told(refused.retry_after)),
        (Some(Cause::Restart), 30_000)
    );
    assert!(refused.shared);
    let back = [old];
    let adopted = bench.ask(&Ask {
        adopt: &back,
        ..Ask::new(&items)
    });
    assert_eq!(adopted.decision, Decision::Granted);
    bench.pass(29_999);
    assert!(!bench.ask(&Ask::new(&items)).is_go());
    bench.pass(1);
    // Its adopted lease has just ended too.
    assert!(bench.ask(&Ask::new(&[Item::many(KEY, &rule, 2)])).is_go());
}

#[test]
fn nobody_waits_for_the_end_of_a_quarantine() {
    let mut bench = Bench::new();
    let rule = rule(2, |rule| rule.on_restart = OnRestart::Snapshot);
    bench.book.follow_known_since(bench.now, Span::ZERO);
    let items = [Item::one(KEY, &rule)];
    // Not even for longer than it lasts: its end is told, and nobody would be woken by it.
    let patient = Ask {
        max_wait: Some(Span::from_secs(60)),
        ..Ask::new(&items)
    };
    let refused = bench.ask(&patient);
    assert_eq!(
        (refused.cause, told(refused.retry_after)),
        (Some(Cause::Restart), 30_000)
    );
    bench.pass(30_000);
    assert!(bench.ask(&patient).is_go());
}

#[test]
fn what_is_known_since_a_while_shortens_the_wait_for_what_is_not() {
    for (known_for, wait) in [(0, 30), (12, 18), (30, 0), (1_000, 0)] {
        let mut bench = Bench::new();
        let rule = rule(2, |rule| rule.on_restart = OnRestart::Snapshot);
        bench
            .book
            .follow_known_since(bench.now, Span::from_secs(known_for));
        let closed = bench.book.closed_for(&rule, bench.now);
        assert_eq!(closed, Span::from_secs(wait), "{known_for}");
        assert_eq!(
            bench.ask(&Ask::new(&[Item::one(KEY, &rule)])).is_go(),
            wait == 0
        );
    }
}

#[test]
fn a_turn_without_waiters_is_never_due() {
    let mut bench = Bench::new();
    let rule = limit(1);
    bench.take(&rule);
    assert_eq!(bench.book.next_due(), None);
    let items = [Item::one(KEY, &rule)];
    let ask = Ask {
        max_wait: Some(Span::from_secs(60)),
        ..Ask::new(&items)
    };
    bench.wait(&ask);
    // Its lease ends before the wait does: somebody has to look then.
    assert_eq!(bench.book.next_due(), Some(bench.now + Span::from_secs(30)));
    let events = bench.pass(30_000);
    let [Event::Settled { answer, .. }] = events.as_slice() else {
        panic!("{events:?}")
    };
    assert!(answer.is_go());
    let expected: Answer = (**answer).clone();
    assert_eq!(expected.waited, Span::from_secs(30));
}
