//! What all algorithms promise, stated once for all of them.

mod burst;
mod defects;
mod promises;
mod vectors;

use std::sync::Arc;

use super::{
    sliding_log::{self, Log},
    *,
};
use crate::model::limit::{Anchor, Calendar, CalendarUnit};

/// An ordinary date, 2023-11-14T22:14:00Z: the start of a minute.
const START: Timestamp = Timestamp::from_secs(1_700_000_040);

/// One key under one limit, whatever its state looks like.
#[derive(Clone, Debug, PartialEq)]
struct Counter {
    algorithm: Algorithm,
    quota: Quota,
    count_denied: bool,
    state: State,
    log: Log,
}

impl Counter {
    fn new(algorithm: Algorithm, quota: Quota) -> Self {
        Self {
            algorithm,
            quota,
            count_denied: false,
            state: State::default(),
            log: Log::default(),
        }
    }

    fn is_log(&self) -> bool {
        self.algorithm == Algorithm::SlidingLog
    }

    fn look(&self, now: Timestamp, cost: u64) -> Outcome {
        if self.is_log() {
            sliding_log::look(self.quota, &self.log, now, cost)
        } else {
            look(&self.algorithm, self.quota, &self.state, now, cost)
        }
    }

    fn take(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let Self {
            algorithm,
            quota,
            count_denied,
            state,
            log,
        } = self;
        if *algorithm == Algorithm::SlidingLog {
            sliding_log::take(*quota, log, now, cost)
        } else {
            take(algorithm, *quota, state, now, cost, *count_denied)
        }
    }

    fn give_back(&mut self, now: Timestamp, cost: u64) -> u64 {
        if self.is_log() {
            sliding_log::give_back(self.quota, &mut self.log, now, cost)
        } else {
            give_back(&self.algorithm, self.quota, &mut self.state, now, cost)
        }
    }

    fn settle(&mut self, now: Timestamp) {
        if self.is_log() {
            sliding_log::settle(self.quota, &mut self.log, now);
        } else {
            settle(&self.algorithm, self.quota, &mut self.state, now);
        }
    }

    /// The same key after its limit was changed.
    fn carried(&self, algorithm: Algorithm, quota: Quota, now: Timestamp) -> Self {
        let old = (&self.algorithm, self.quota);
        let state = carry(old, (&algorithm, quota), &self.state, now);
        let log = if self.algorithm == algorithm {
            self.log.clone()
        } else {
            Log::default()
        };
        Self {
            algorithm,
            quota,
            state,
            log,
            ..*self
        }
    }

    fn until(&self) -> Timestamp {
        if self.is_log() {
            self.log.until(self.quota)
        } else {
            self.state.until
        }
    }

    /// Forgets the key if it may be forgotten.
    fn evict(&mut self, now: Timestamp) {
        if self.until() <= now {
            self.state = State::default();
            self.log = Log::default();
        }
    }

    /// The most that it can ever hold.
    fn capacity(&self) -> u64 {
        self.algorithm.capacity(self.quota)
    }
}

fn calendar(unit: CalendarUnit, zone: &str) -> Algorithm {
    Algorithm::FixedWindow(Anchor::Calendar(Calendar {
        unit,
        zone: jiff::tz::TimeZone::get(zone).unwrap(),
        zone_name: Arc::from(zone),
    }))
}

/// Every algorithm, with every anchor.
fn all() -> Vec<Algorithm> {
    vec![
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::LastHit),
        calendar(CalendarUnit::Minute, "UTC"),
        calendar(CalendarUnit::Day, "America/Sao_Paulo"),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ]
}

fn millis(millis: u64) -> Span {
    Span::from_millis(millis)
}

#[test]
fn clock_windows_count_and_reset_as_the_reference() {
    let quota = Quota::per(2, Span::from_secs(60)).unwrap();
    let mut counter = Counter::new(Algorithm::FixedWindow(Anchor::Clock), quota);
    counter.count_denied = true;
    let told = |outcome: Outcome| {
        let reset = outcome.reset.as_secs_up();
        (
            outcome.allowed,
            outcome.used_before,
            outcome.remaining,
            reset,
        )
    };
    let mut hit = |seconds: u64, cost| told(counter.take(Timestamp::from_secs(seconds), cost));
    assert_eq!(hit(3333, 1), (true, 0, 1, 27));
    assert_eq!(hit(3334, 1), (true, 1, 0, 26));
    assert_eq!(hit(3359, 3), (false, 2, 0, 1));
    assert_eq!(hit(3359, 1), (false, 5, 0, 1));
    assert_eq!(hit(3359, 0), (false, 6, 0, 1));
    assert_eq!(hit(3360, 1), (true, 0, 1, 60));
    let week = Quota::per(1, Span::from_secs(604_800)).unwrap();
    let mut counter = Counter::new(Algorithm::FixedWindow(Anchor::Clock), week);
    let now = Timestamp::from_secs(1_760_000_000);
    assert_eq!(told(counter.take(now, 1)), (true, 0, 0, 572_800));
    assert_eq!(
        told(counter.look(now + millis(1), 2)),
        (false, 1, 0, 572_800)
    );
}

#[test]
fn clock_windows_reset_within_a_window_when_the_clock_steps_back() {
    let quota = Quota::per(2, Span::from_secs(60)).unwrap();
    let mut counter = Counter::new(Algorithm::FixedWindow(Anchor::Clock), quota);
    assert!(counter.take(START, 1).allowed);
    let before = counter.take(START - millis(1), 1);
    assert_eq!((before.allowed, before.used_before), (true, 1));
    assert_eq!(before.reset, millis(1));
    let refused = counter.take(START - millis(1), 1);
    assert_eq!(refused.retry, Retry::After(millis(60_001)));
}

#[test]
fn shortened_clock_windows_forget_what_began_a_window_ago() {
    let quota = |seconds| Quota::per(5, Span::from_secs(seconds)).unwrap();
    let clock = Algorithm::FixedWindow(Anchor::Clock);
    let mut counter = Counter::new(clock.clone(), quota(60));
    assert!(counter.take(START, 3).allowed);
    let used = |later| {
        let now = START + millis(later);
        let carried = counter.carried(clock.clone(), quota(10), now);
        carried.look(now, 0).used_before
    };
    assert_eq!([used(9_999), used(10_000)], [3, 0]);
}

#[test]
fn sliding_windows_are_unused_when_the_previous_one_has_left() {
    let quota = Quota::per(9, Span::from_secs(60)).unwrap();
    let mut counter = Counter::new(Algorithm::SlidingWindow, quota);
    assert_eq!(counter.take(START, 9).reset, Span::from_secs(120));
    let later = START + Span::from_secs(90);
    assert_eq!(counter.look(later, 0).used_before, 4);
    assert_eq!(counter.look(later, 0).reset, Span::from_secs(30));
    assert_eq!(counter.take(later, 1).reset, Span::from_secs(90));
}

#[test]
fn last_hit_blocks_from_the_latest_admitted_hit() {
    let quota = Quota::per(5, Span::from_secs(900)).unwrap();
    for count_denied in [false, true] {
        let mut counter = Counter::new(Algorithm::FixedWindow(Anchor::LastHit), quota);
        counter.count_denied = count_denied;
        for minute in 0..5 {
            assert!(
                counter
                    .take(START + Span::from_secs(60 * minute), 1)
                    .allowed
            );
        }
        let fifth = START + Span::from_secs(240);
        let refused = counter.take(fifth + Span::from_secs(300), 1);
        assert_eq!(refused.retry, Retry::After(Span::from_secs(600)));
        assert_eq!(refused.reset, Span::from_secs(600));
        assert!(!counter.take(fifth + Span::from_secs(899), 1).allowed);
        assert_eq!(counter.take(fifth + Span::from_secs(900), 1).used_before, 0);
    }
}

#[test]
fn shaper_tells_each_its_turn() {
    // Two leave per second, six places, nine come at once.
    let quota = Quota::new(2, Span::from_secs(1), 6).unwrap();
    let mut queue = Counter::new(Algorithm::LeakyQueue, quota);
    let peeked = queue.look(START, 0);
    let arrivals: Vec<Outcome> = (0..9).map(|_| queue.take(START, 1)).collect();
    let admitted = arrivals.iter().filter(|outcome| outcome.allowed);
    let delays: Vec<Span> = admitted.map(|outcome| outcome.delay).collect();
    assert_eq!(delays, [0, 500, 1000, 1500, 2000, 2500].map(millis));
    assert_eq!(peeked.delay, delays[0]);
    assert_eq!(arrivals[8].retry, Retry::After(millis(500)));
    assert_eq!(arrivals[8].delay, Span::ZERO);
    assert_eq!(queue.give_back(START, 2), 2);
    // Two leave together at the first of their slots.
    assert_eq!(queue.take(START, 2).delay, millis(2000));
}
