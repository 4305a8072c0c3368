//! Leases that the caller names, or does not name at all: what a stock Envoy sends.

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Decision, LeaseId, Outcome, ReleaseStatus},
    },
    rules::concurrency::Marks,
    store::lease::{Answer, Ask, Item, Naming, Undo},
};

use crate::leases::{Bench, KEY, limit, millis, rule};

const OTHER: CounterKey = CounterKey::from_bits(2);

impl Bench {
    fn named(&mut self, permits: u64, name: u128) -> Answer {
        let items = [Item::one(KEY, &limit(permits))];
        let naming = Naming::Named(CounterKey::from_bits(name));
        self.ask(&Ask {
            naming,
            ..Ask::new(&items)
        })
    }

    fn anonymous(&mut self, permits: u64) -> Answer {
        let items = [Item::one(KEY, &limit(permits))];
        self.ask(&Ask {
            naming: Naming::Anonymous,
            ..Ask::new(&items)
        })
    }

    fn end_named(&mut self, name: u128) -> ReleaseStatus {
        let name = CounterKey::from_bits(name);
        self.book
            .release_named(KEY, name, Outcome::Ignored, None, self.now)
    }

    fn end_anonymous(&mut self) -> ReleaseStatus {
        self.book
            .release_anonymous(KEY, Outcome::Ignored, None, self.now)
    }
}

#[test]
fn a_name_finds_its_lease_once() {
    let mut bench = Bench::new();
    let granted = bench.named(1, 7);
    assert_eq!(granted.decision, Decision::Granted);
    // The same name again is the same lease.
    assert_eq!(bench.named(1, 7).decision, Decision::Replayed);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.pass(100);
    assert_eq!(
        bench.end_named(7),
        ReleaseStatus::Released { held: millis(100) }
    );
    assert_eq!(bench.end_named(7), ReleaseStatus::AlreadyReleased);
    // A name is not used up: a mesh passes x-request-id on.
    assert_eq!(bench.named(1, 7).decision, Decision::Granted);
    bench.pass(30_010);
    assert_eq!(bench.end_named(7), ReleaseStatus::Late { by: millis(10) });
    bench.audit();
}

#[test]
fn a_name_is_nothing_to_the_lease_service() {
    let mut bench = Bench::new();
    let id = bench.named(1, 7).leases[0];
    assert_eq!(bench.release(id), ReleaseStatus::Unknown);
    assert_eq!(bench.in_flight(KEY), 1);
}

#[test]
fn names_are_valid_within_their_key() {
    let mut bench = Bench::new();
    let rule = limit(1);
    let items = [Item::one(KEY, &rule), Item::one(OTHER, &rule)];
    let naming = Naming::Named(CounterKey::from_bits(7));
    let both = bench.ask(&Ask {
        naming,
        ..Ask::new(&items)
    });
    assert_eq!((both.decision, both.leases.len()), (Decision::Granted, 2));
    assert!(matches!(bench.end_named(7), ReleaseStatus::Released { .. }));
    assert_eq!((bench.in_flight(KEY), bench.in_flight(OTHER)), (0, 1));
    // Half of it is there: only the other half is taken.
    let again = bench.ask(&Ask {
        naming,
        ..Ask::new(&items)
    });
    assert_eq!((again.decision, again.leases.len()), (Decision::Granted, 1));
    assert_eq!((bench.in_flight(KEY), bench.in_flight(OTHER)), (1, 1));
}

#[test]
fn a_release_that_overtakes_its_acquire_settles_it() {
    let mut bench = Bench::new();
    assert_eq!(bench.end_named(7), ReleaseStatus::Unknown);
    bench.pass(1_999);
    let answer = bench.named(1, 7);
    assert_eq!(
        (answer.decision, answer.leases.len()),
        (Decision::Granted, 0)
    );
    assert_eq!(bench.in_flight(KEY), 0);
    // The mark is used up.
    assert_eq!(bench.named(1, 7).leases.len(), 1);
    bench.end_named(7);
    bench.end_named(8);
    bench.pass(2_000);
    assert_eq!(bench.named(1, 8).leases.len(), 1);
    assert_eq!(bench.book.totals().early_releases, 2);
}

#[test]
fn a_release_that_overtakes_a_waiting_acquire_settles_it_too() {
    let mut bench = Bench::new();
    bench.named(1, 1);
    let rule = limit(1);
    let items = [Item::one(KEY, &rule)];
    let naming = Naming::Named(CounterKey::from_bits(2));
    bench.wait(&Ask {
        naming,
        max_wait: Some(millis(50)),
        ..Ask::new(&items)
    });
    bench.end_named(2);
    bench.end_named(1);
    let settled = bench.settled();
    assert_eq!(
        (settled[0].1.decision, settled[0].1.leases.len()),
        (Decision::Granted, 0)
    );
    assert_eq!(bench.in_flight(KEY), 0);
}

#[test]
fn two_waiting_requests_of_one_name_share_a_lease() {
    let mut bench = Bench::new();
    bench.named(2, 1);
    bench.named(2, 2);
    let rule = limit(2);
    let items = [Item::one(KEY, &rule)];
    let naming = Naming::Named(CounterKey::from_bits(3));
    for _ in 0..2 {
        bench.wait(&Ask {
            naming,
            max_wait: Some(millis(50)),
            ..Ask::new(&items)
        });
    }
    bench.end_named(1);
    bench.end_named(2);
    let settled = bench.settled();
    assert_eq!(settled[0].1.leases, settled[1].1.leases);
    assert_eq!(bench.in_flight(KEY), 1);
    bench.end_named(3);
    assert_eq!(bench.in_flight(KEY), 0);
    bench.audit();
}

#[test]
fn the_release_of_a_refused_request_is_no_early_release() {
    let mut bench = Bench::new();
    bench.named(1, 1);
    assert_eq!(bench.named(1, 2).decision, Decision::Refused);
    assert_eq!(bench.end_named(2), ReleaseStatus::Unknown);
    bench.end_named(1);
    // The retry under the same id is counted.
    assert_eq!(bench.named(1, 2).leases.len(), 1);
    assert_eq!(bench.book.totals().refused_releases, 1);
    assert_eq!(bench.book.totals().early_releases, 0);
}

#[test]
fn anonymous_leases_end_oldest_first() {
    let mut bench = Bench::new();
    let ids: Vec<LeaseId> = (0..3).map(|_| bench.anonymous(3).leases[0]).collect();
    bench.pass(10);
    assert_eq!(
        bench.end_anonymous(),
        ReleaseStatus::Released { held: millis(10) }
    );
    let left: Vec<LeaseId> = bench
        .book
        .leases(KEY, 9, bench.now)
        .into_iter()
        .map(|lease| lease.id)
        .collect();
    assert_eq!(left, ids[1..]);
}

#[test]
fn a_refused_anonymous_request_leaves_a_ghost_for_its_release() {
    let mut bench = Bench::new();
    bench.anonymous(1);
    for _ in 0..3 {
        assert_eq!(bench.anonymous(1).decision, Decision::Refused);
    }
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().ghosts, 3);
    for _ in 0..3 {
        assert_eq!(bench.end_anonymous(), ReleaseStatus::Unknown);
        assert_eq!(bench.in_flight(KEY), 1);
    }
    assert!(matches!(
        bench.end_anonymous(),
        ReleaseStatus::Released { .. }
    ));
    // One that Envoy never sends does not stay for ever.
    bench.anonymous(1);
    assert_eq!(bench.anonymous(1).decision, Decision::Refused);
    bench.pass(5_000);
    assert!(matches!(
        bench.end_anonymous(),
        ReleaseStatus::Released { .. }
    ));
    assert_eq!(bench.end_anonymous(), ReleaseStatus::Unknown);
}

#[test]
fn an_undone_grant_swallows_the_release_that_follows() {
    let mut bench = Bench::new();
    let (named, kept) = (bench.named(3, 1), bench.anonymous(3));
    let anonymous = bench.anonymous(3);
    let leases: Vec<LeaseId> = named
        .leases
        .iter()
        .chain(&anonymous.leases)
        .copied()
        .collect();
    bench.book.undo(&leases, Undo::TimedOut, bench.now);
    assert_eq!(bench.in_flight(KEY), 1);
    // Envoy went on without an answer and tells the end of both requests.
    assert_eq!(bench.end_named(1), ReleaseStatus::Unknown);
    assert_eq!(bench.end_anonymous(), ReleaseStatus::Unknown);
    assert_eq!(bench.in_flight(KEY), 1);
    assert_eq!(bench.named(3, 1).leases.len(), 1);
    assert_eq!(bench.book.totals().early_releases, 0);
    // A client that left during the acquire: no release follows, so there is no ghost.
    let gone = bench.anonymous(3);
    bench.book.undo(&gone.leases, Undo::Left, bench.now);
    assert!(matches!(
        bench.end_anonymous(),
        ReleaseStatus::Released { .. }
    ));
    let _ = kept;
    bench.audit();
}

/// Envoy's own traffic: every request sends a release, refused or not, and some overtake.
#[test]
fn a_crowd_behind_envoy_never_exceeds_the_limit() {
    let mut bench = Bench::new();
    let (mut granted, mut refused, mut most) = (0, 0, 0);
    let mut ends: Vec<(u64, u128)> = Vec::new();
    for step in 0..20_000_u64 {
        bench.pass(1);
        let name = u128::from(step) + 100;
        let due: Vec<_> = ends
            .iter()
            .filter(|(at, _)| *at <= step)
            .map(|(_, n)| *n)
            .collect();
        ends.retain(|(at, _)| *at > step);
        for name in due {
            bench.end_named(name);
        }
        // Every twentieth release comes first.
        if step % 20 == 0 {
            bench.end_named(name);
        }
        let answer = bench.named(5, name);
        if answer.is_go() {
            granted += 1;
            if step % 20 != 0 {
                ends.push((step + 300, name));
            }
        } else {
            refused += 1;
            ends.push((step + 1, name));
        }
        most = most.max(bench.in_flight(KEY));
    }
    bench.pass(400);
    for (_, name) in ends {
        bench.end_named(name);
    }
    assert_eq!((most, bench.in_flight(KEY)), (5, 0));
    // 5 permits ÷ 0.3 s over 20 s, and those whose end came first.
    assert!(
        (1_300..1_345).contains(&granted),
        "{granted} granted, {refused} refused"
    );
    bench.audit();
}

#[test]
fn marks_last_as_long_as_the_rule_says() {
    let mut bench = Bench::new();
    let rule = rule(1, |rule| {
        rule.marks = Marks {
            early_release: millis(100),
            ghost: millis(200),
        };
    });
    let items = [Item::one(KEY, &rule)];
    let asking = |naming| Ask {
        naming,
        ..Ask::new(&items)
    };
    let named = |name| asking(Naming::Named(CounterKey::from_bits(name)));
    bench.ask(&named(1));
    // A refusal, named and not: their releases are expected for 200 ms.
    assert_eq!(bench.ask(&named(2)).decision, Decision::Refused);
    assert_eq!(
        bench.ask(&asking(Naming::Anonymous)).decision,
        Decision::Refused
    );
    bench.pass(199);
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().ghosts, 1);
    assert_eq!(bench.ask(&named(3)).decision, Decision::Refused);
    bench.end_named(3);
    assert_eq!(bench.book.totals().early_releases, 0);
    bench.pass(1);
    assert_eq!(bench.book.peek(KEY, bench.now).unwrap().ghosts, 0);
    bench.end_named(2);
    assert_eq!(bench.book.totals().early_releases, 1);
    bench.end_named(1);
    // That release waits for its acquire for 100 ms.
    bench.pass(99);
    bench.end_named(4);
    assert_eq!(bench.ask(&named(2)).leases.len(), 0);
    bench.pass(100);
    assert_eq!(bench.ask(&named(4)).leases.len(), 1);
}
