//! Properties of every algorithm over random limits and histories.

use proptest::{collection::vec, prelude::*, sample::select};

use super::*;

/// One request: how much later it comes, in 64ths of a window and nanoseconds, and its cost.
#[derive(Clone, Copy, Debug)]
struct Step {
    parts: u64,
    nanos: u64,
    cost: u64,
}

impl Step {
    fn gap(self, window: Span) -> Span {
        let parts = u128::from(window.as_nanos()) * u128::from(self.parts) / 64;
        Span::from_nanos(u64::try_from(parts).unwrap()).saturating_add(Span::from_nanos(self.nanos))
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let parts = prop_oneof![6 => 0..4_u64, 3 => 0..40_u64, 1 => 0..200_u64];
    let step = (parts, 0..3_u64, 1..5_u64);
    vec(
        step.prop_map(|(parts, nanos, cost)| Step { parts, nanos, cost }),
        1..60,
    )
}

fn periods() -> impl Strategy<Value = Span> {
    let nanos = vec![1, 7, 1_000, 999_999_937, 1_000_000_000, 30_000_000_000];
    prop_oneof![
        select(nanos).prop_map(Span::from_nanos),
        (1..100_000_u64).prop_map(Span::from_secs),
    ]
}

fn quotas() -> impl Strategy<Value = Quota> {
    (1..13_u64, periods(), 1..16_u64)
        .prop_map(|(units, period, burst)| Quota::new(units, period, burst).unwrap())
}

/// A fresh counter: any algorithm, any limit.
fn counters() -> impl Strategy<Value = Counter> {
    (select(all()), quotas(), any::<bool>()).prop_map(|(algorithm, quota, count_denied)| Counter {
        count_denied,
        ..Counter::new(algorithm, quota)
    })
}

/// This century, the year 2200, and the start of the line.
fn starts() -> impl Strategy<Value = Timestamp> {
    let seconds = vec![0, 1_700_000_040, 1_774_916_123, 7_258_118_400];
    (select(seconds), 0..2_000_000_000_u64)
        .prop_map(|(seconds, nanos)| Timestamp::from_secs(seconds) + Span::from_nanos(nanos))
}

impl Counter {
    /// The length of its windows; of the shortest where they differ.
    fn window(&self) -> Span {
        match &self.algorithm {
            Algorithm::FixedWindow(Anchor::Calendar(calendar)) => match calendar.unit {
                CalendarUnit::Minute => Span::from_secs(60),
                CalendarUnit::Day => Span::from_secs(23 * 3_600),
                other => panic!("{other:?} is not tested here"),
            },
            _ => self.quota.period(),
        }
    }

    /// The longest that a lone caller ever waits while the clock runs.
    fn longest_wait(&self) -> Span {
        let fill = u128::from(self.quota.burst()) * u128::from(self.quota.period().as_nanos());
        match self.algorithm {
            Algorithm::FixedWindow(Anchor::Calendar(_)) => {
                self.window().saturating_add(Span::from_secs(2 * 3_600))
            }
            Algorithm::FixedWindow(_) | Algorithm::SlidingLog => self.window(),
            Algorithm::SlidingWindow => self.window().saturating_mul(2),
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
                let nanos = fill.div_ceil(u128::from(self.quota.units()));
                Span::from_nanos(u64::try_from(nanos).unwrap())
            }
        }
    }

    /// Runs a history; returns the time after it and what was admitted when.
    fn run(&mut self, start: Timestamp, steps: &[Step]) -> (Timestamp, Vec<(Timestamp, u64)>) {
        let mut now = start;
        let mut admitted = Vec::new();
        for step in steps {
            now = now + step.gap(self.window());
            if self.take(now, step.cost).allowed {
                admitted.push((now, step.cost));
            }
        }
        (now, admitted)
    }

    /// Every promise about a hint, for every cost at once.
    fn hints_are_true(&self, now: Timestamp) {
        let capacity = self.capacity();
        for cost in 0..=capacity + 2 {
            let outcome = self.look(now, cost);
            match outcome.retry {
                Retry::Never => {
                    assert!(cost > capacity && !outcome.allowed);
                }
                Retry::After(Span::ZERO) => assert!(outcome.allowed && cost <= capacity),
                Retry::After(wait) => {
                    assert!(!outcome.allowed && cost <= capacity);
                    let then = now + wait;
                    assert!(self.look(then, cost).allowed, "{cost} after {wait:?}");
                    for part in 0..8 {
                        let early = Span::from_nanos(wait.as_nanos() / 8 * part);
                        assert!(!self.look(now + early, cost).allowed);
                    }
                    let tick = then - Span::from_nanos(1);
                    assert!(
                        !self.look(tick, cost).allowed,
                        "{cost} a tick before {wait:?}"
                    );
                }
            }
            if cost > 0 {
                let fits = cost <= self.look(now, 0).remaining;
                assert_eq!(outcome.allowed, fits, "{cost}");
            }
        }
    }

    /// Nothing is used from `reset` on, and something is before.
    fn reset_is_true(&self, now: Timestamp) {
        let reset = self.look(now, 0).reset;
        let used = |at| self.look(at, 0).used_before;
        assert_eq!(used(now + reset), 0);
        if used(now) > 0 && self.algorithm != Algorithm::SlidingWindow {
            assert!(used(now + reset - Span::from_nanos(1)) > 0);
        }
    }
}

/// What was admitted within the window of `window` that ends with each admission.
fn within(window: Span, admitted: &[(Timestamp, u64)]) -> Vec<(Timestamp, u64)> {
    let sum = |end: Timestamp| -> u64 {
        let inside = |at: Timestamp| at <= end && end.since(at) < window;
        let costs = admitted.iter().filter(|(at, _)| inside(*at));
        costs.map(|(_, cost)| cost).sum()
    };
    admitted.iter().map(|(at, _)| (*at, sum(*at))).collect()
}

proptest! {
    #[test]
    fn never_more_than_the_worst_case(
        mut counter in counters(), start in starts(), steps in steps(),
    ) {
        let (_, admitted) = counter.run(start, &steps);
        let (units, period) = (counter.quota.units(), counter.quota.period());
        match &counter.algorithm {
            Algorithm::FixedWindow(_) => {
                for (_, sum) in within(counter.window(), &admitted) {
                    prop_assert!(sum <= 2 * units);
                }
            }
            Algorithm::SlidingLog => {
                for (_, sum) in within(period, &admitted) {
                    prop_assert!(sum <= units);
                }
            }
            Algorithm::SlidingWindow => {
                for (at, sum) in within(period, &admitted) {
                    let begin = at.floor(period);
                    let previous = |t: Timestamp| t < begin && t >= begin - period;
                    let prev = admitted.iter().filter(|(t, _)| previous(*t));
                    let prev: u64 = prev.map(|(_, cost)| cost).sum();
                    let elapsed = u128::from(at.since(begin).as_nanos());
                    let error = (u128::from(prev) * elapsed).div_ceil(period.as_nanos().into());
                    prop_assert!(u128::from(sum) <= u128::from(units) + error);
                    prop_assert!(sum <= 2 * units);
                }
            }
            Algorithm::TokenBucket | Algorithm::LeakyBucket | Algorithm::LeakyQueue => {
                for (first, (from, _)) in admitted.iter().enumerate() {
                    let mut sum = 0;
                    for (to, cost) in &admitted[first..] {
                        sum += u128::from(*cost);
                        let refilled = u128::from(units) * u128::from(to.since(*from).as_nanos());
                        let period = u128::from(period.as_nanos());
                        let burst = u128::from(counter.quota.burst());
                        prop_assert!(sum * period <= burst * period + refilled);
                    }
                }
            }
        }
    }

    #[test]
    fn shaper_lets_out_no_more_than_the_rate(
        quota in quotas(), start in starts(), steps in steps(),
    ) {
        let mut queue = Counter::new(Algorithm::LeakyQueue, quota);
        let mut now = start;
        let mut left = Vec::new();
        let mut waiting = Vec::new();
        for step in steps {
            now = now + step.gap(quota.period());
            // A slot is taken until the next one.
            waiting.retain(|ends: &Timestamp| *ends > now);
            let outcome = queue.take(now, 1);
            prop_assert_eq!(outcome.allowed, (waiting.len() as u64) < quota.burst());
            if outcome.allowed {
                prop_assert!(outcome.delay <= queue.longest_wait());
                let leaves = now + outcome.delay;
                prop_assert!(left.last().is_none_or(|(before, _)| *before <= leaves));
                left.push((leaves, 1));
                waiting.push(now + outcome.reset);
            }
        }
        for (_, sum) in within(quota.period(), &left) {
            prop_assert!(sum <= quota.units());
        }
    }

    #[test]
    fn hints_and_resets_are_true_to_the_tick(
        mut counter in counters(), start in starts(), steps in steps(), rest in 0..80_u64,
    ) {
        let (now, _) = counter.run(start, &steps);
        let idle = Step { parts: rest, nanos: rest % 3, cost: 0 };
        let now = now + idle.gap(counter.window());
        counter.hints_are_true(now);
        counter.reset_is_true(now);
    }

    #[test]
    fn eviction_changes_no_answer(
        mut counter in counters(), start in starts(), steps in steps(),
    ) {
        let mut forgetful = counter.clone();
        let mut now = start;
        for step in steps {
            now = now + step.gap(counter.window());
            forgetful.evict(now);
            prop_assert_eq!(counter.look(now, 0), forgetful.look(now, 0));
            prop_assert_eq!(counter.take(now, step.cost), forgetful.take(now, step.cost));
        }
        let over = counter.until().max(now);
        let fresh = Counter { count_denied: counter.count_denied, ..Counter::new(
            counter.algorithm.clone(), counter.quota,
        ) };
        for cost in 0..counter.capacity() + 2 {
            prop_assert_eq!(counter.look(over, cost), fresh.look(over, cost));
        }
    }

    #[test]
    fn peeks_and_refusals_change_nothing(
        mut counter in counters(), start in starts(), steps in steps(),
    ) {
        let mut now = start;
        let mut twin = counter.clone();
        for step in steps {
            now = now + step.gap(counter.window());
            let before = counter.clone();
            let peek = counter.take(now, 0);
            prop_assert_eq!(&counter, &before);
            prop_assert_eq!(peek, counter.look(now, 0));
            let look = counter.look(now, step.cost);
            let outcome = counter.take(now, step.cost);
            prop_assert_eq!(look.allowed, outcome.allowed);
            prop_assert_eq!(look.retry, outcome.retry);
            if outcome.allowed {
                prop_assert_eq!(look, outcome);
            }
            // The twin sees only what was admitted.
            if outcome.allowed || counter.count_denied {
                prop_assert_eq!(twin.take(now, step.cost), outcome);
            }
            prop_assert_eq!(twin.look(now, step.cost), counter.look(now, step.cost));
        }
    }

    #[test]
    fn refunds_never_free_more_than_was_taken(
        mut counter in counters(), start in starts(), steps in steps(), back in vec(0..6_u64, 60),
    ) {
        counter.count_denied = false;
        let (mut now, mut taken, mut freed) = (start, 0, 0);
        for (step, back) in steps.iter().zip(back) {
            now = now + step.gap(counter.window());
            let full = counter.look(now, 0).remaining;
            if counter.take(now, step.cost).allowed {
                taken += step.cost;
                let mut undone = counter.clone();
                prop_assert_eq!(undone.give_back(now, step.cost), step.cost);
                prop_assert_eq!(undone.look(now, 0).remaining, full);
            }
            let before = counter.look(now, 0);
            let returned = counter.give_back(now, back);
            let after = counter.look(now, 0);
            freed += returned;
            prop_assert!(returned <= back);
            if counter.algorithm != Algorithm::SlidingWindow {
                prop_assert!(returned <= before.used_before);
            }
            prop_assert!(freed <= taken);
            prop_assert!(after.remaining <= before.remaining + back);
            prop_assert!(after.remaining >= before.remaining);
            prop_assert!(after.remaining <= counter.capacity());
            counter.hints_are_true(now);
        }
        counter.give_back(now, u64::MAX);
        let all = counter.look(now, 0);
        prop_assert_eq!((all.used_before, all.remaining), (0, counter.capacity()));
        prop_assert!(counter.until() <= now);
    }

    #[test]
    fn a_clock_that_steps_back_frees_and_charges_nobody(
        mut counter in counters(), steps in steps(), back in vec(0..400_u64, 60),
    ) {
        let mut now = START;
        // What was used when something was last written.
        let mut most = 0;
        for (step, back) in steps.iter().zip(back) {
            now = now + step.gap(counter.window());
            let counts = matches!(counter.algorithm, Algorithm::FixedWindow(_));
            let written = counts && counter.count_denied;
            if counter.take(now, step.cost).allowed || written {
                most = counter.look(now, 0).used_before;
            }
            let used = counter.look(now, 0).used_before;
            now = now - Step { parts: back, ..*step }.gap(counter.window());
            let looked = counter.look(now, 0);
            prop_assert!(looked.used_before >= used);
            let unsettled = counter.clone();
            // The sliding window knows only in which window it was written, not when: before that
            // window began all of the previous one counts.
            if counter.algorithm != Algorithm::SlidingWindow {
                prop_assert!(looked.used_before <= most);
            }
            counter.settle(now);
            for cost in 0..counter.capacity() + 2 {
                prop_assert_eq!(counter.look(now, cost), unsettled.look(now, cost));
            }
            counter.hints_are_true(now);
            if let Retry::After(wait) = counter.look(now, 1).retry {
                let bound = counter.longest_wait().saturating_add(counter.longest_wait());
                prop_assert!(wait <= bound.max(counter.window().saturating_mul(3)));
            }
            most = most.max(looked.used_before);
        }
    }

    /// Threads that read the clock one after the other and come to the counter in another order.
    #[test]
    fn overtaking_threads_share_one_limit(
        mut counter in counters(), start in starts(), steps in steps(), behind in 0..65_u64,
    ) {
        let (now, _) = counter.run(start, &steps);
        let late = now - Step { parts: behind, nanos: 0, cost: 0 }.gap(counter.window());
        let left = counter.look(now, 0).remaining;
        let (mut passed, mut until) = (0, counter.until());
        for turn in 0..40 {
            let now = if turn % 2 == 0 { now } else { late };
            passed += u64::from(counter.take(now, 1).allowed);
            prop_assert!(counter.until() >= until);
            until = counter.until();
        }
        prop_assert!(passed <= left);
    }

    #[test]
    fn a_changed_limit_keeps_what_was_used(
        mut counter in counters(), other in quotas(), steps in steps(), start in starts(),
    ) {
        let (now, _) = counter.run(start, &steps);
        let used = counter.look(now, 0).used_before;
        let resized = Quota::new(other.units(), counter.quota.period(), other.burst()).unwrap();
        for quota in [resized, other] {
            if counter.is_log() && quota == other {
                continue; // Another period is another window on the same log.
            }
            let carried = counter.carried(counter.algorithm.clone(), quota, now);
            let outcome = carried.look(now, 0);
            let hits_open = matches!(
                counter.algorithm,
                Algorithm::FixedWindow(Anchor::Clock | Anchor::FirstHit | Anchor::LastHit),
            );
            let began = Timestamp::from_nanos(counter.state.b);
            let passed = hits_open && now.since(began) >= quota.period();
            let kept = if passed { 0 } else { used };
            prop_assert_eq!(outcome.used_before, kept);
            prop_assert_eq!(outcome.remaining, carried.capacity().saturating_sub(kept));
            carried.hints_are_true(now);
            let again = carried.carried(counter.algorithm.clone(), counter.quota, now);
            // A window of the clock that was widened no longer tells when its count began.
            let clock = counter.algorithm == Algorithm::FixedWindow(Anchor::Clock);
            let told = !clock || quota.period() == counter.quota.period();
            if told && !passed {
                prop_assert_eq!(again.look(now, 0).used_before, used);
            }
            for algorithm in all() {
                let same = std::mem::discriminant(&algorithm)
                    == std::mem::discriminant(&counter.algorithm);
                if !same {
                    let fresh = counter.carried(algorithm, quota, now);
                    prop_assert_eq!(fresh.look(now, 0).used_before, 0);
                }
            }
        }
    }

    #[test]
    fn a_closed_limit_keeps_what_was_used(mut counter in counters(), steps in steps()) {
        let (now, _) = counter.run(START, &steps);
        let used = counter.look(now, 0).used_before;
        let closed = Quota::new(0, counter.quota.period(), counter.quota.burst()).unwrap();
        let mut carried = counter.carried(counter.algorithm.clone(), closed, now);
        for cost in 0..3 {
            let outcome = carried.take(now, cost);
            prop_assert!(!outcome.allowed);
            prop_assert_eq!((outcome.remaining, outcome.retry), (0, Retry::Never));
        }
        carried.state = counter.carried(counter.algorithm.clone(), closed, now).state;
        let open = carried.carried(counter.algorithm.clone(), counter.quota, now);
        prop_assert_eq!(open.look(now, 0).used_before, used);
    }

    /// The textbook form: a number of tokens and the time of the last refill.
    #[test]
    fn token_bucket_is_the_textbook_bucket(
        quota in quotas(), start in starts(), steps in steps(),
    ) {
        let mut counter = Counter::new(Algorithm::TokenBucket, quota);
        let period = u128::from(quota.period().as_nanos());
        let full = u128::from(quota.burst()) * period;
        let (mut tokens, mut last, mut now) = (full, start, start);
        for step in steps {
            now = now + step.gap(quota.period());
            let elapsed = u128::from(now.since(last).as_nanos());
            tokens = full.min(tokens + elapsed * u128::from(quota.units()));
            last = now;
            let price = u128::from(step.cost) * period;
            let allowed = price <= tokens;
            if allowed {
                tokens -= price;
            }
            let outcome = counter.take(now, step.cost);
            prop_assert_eq!(outcome.allowed, allowed);
            prop_assert_eq!(u128::from(outcome.remaining), tokens / period);
            let refill = (full - tokens).div_ceil(u128::from(quota.units()));
            prop_assert_eq!(u128::from(outcome.reset.as_nanos()), refill);
        }
    }

    /// Each window's count in a table.
    #[test]
    fn windows_of_the_clock_are_a_table_of_counts(
        quota in quotas(), start in starts(), steps in steps(), sliding in any::<bool>(),
    ) {
        let mut counter = Counter::new(
            if sliding { Algorithm::SlidingWindow } else { Algorithm::FixedWindow(Anchor::Clock) },
            quota,
        );
        let mut counts = std::collections::HashMap::<Timestamp, u64>::new();
        let (period, mut now) = (quota.period(), start);
        for step in steps {
            now = now + step.gap(period);
            let begin = now.floor(period);
            let count = |begin: Timestamp| counts.get(&begin).copied().unwrap_or(0);
            let mut used = count(begin);
            if sliding && begin > Timestamp::ZERO {
                let left = u128::from((begin + period).since(now).as_nanos());
                let prev = u128::from(count(begin - period)) * left;
                used += u64::try_from(prev / u128::from(period.as_nanos())).unwrap();
            }
            let allowed = used + step.cost <= quota.units();
            let outcome = counter.take(now, step.cost);
            prop_assert_eq!(outcome.allowed, allowed);
            prop_assert_eq!(outcome.used_before, used);
            if allowed {
                *counts.entry(begin).or_default() += step.cost;
            }
        }
    }

    /// A list of all that was admitted.
    #[test]
    fn log_is_a_list_of_admissions(quota in quotas(), start in starts(), steps in steps()) {
        let mut counter = Counter::new(Algorithm::SlidingLog, quota);
        let mut admitted: Vec<(Timestamp, u64)> = Vec::new();
        let mut now = start;
        for step in steps {
            now = now + step.gap(quota.period());
            admitted.retain(|(at, _)| *at + quota.period() > now);
            let used: u64 = admitted.iter().map(|(_, cost)| cost).sum();
            let outcome = counter.take(now, step.cost);
            prop_assert_eq!(outcome.used_before, used);
            prop_assert_eq!(outcome.allowed, used + step.cost <= quota.units());
            if outcome.allowed {
                admitted.push((now, step.cost));
            }
        }
    }

    /// Whatever numbers come: no panic, and the answers do not contradict themselves.
    #[test]
    fn extreme_values(
        algorithm in select(all()),
        quotas in vec((extremes(), extremes(), extremes()), 2),
        ops in vec((0..5_u8, extremes(), extremes()), 1..40),
        count_denied in any::<bool>(),
    ) {
        let quotas: Vec<Quota> = quotas
            .into_iter()
            .filter_map(|(units, period, burst)| {
                Quota::new(units, Span::from_nanos(period), burst).ok()
            })
            .collect();
        let Some(quota) = quotas.first() else { return Ok(()) };
        let mut counter = Counter { count_denied, ..Counter::new(algorithm, *quota) };
        for (op, now, cost) in ops {
            let now = Timestamp::from_nanos(now);
            let outcome = match op {
                0 => counter.look(now, cost),
                1 => counter.take(now, cost),
                2 => {
                    prop_assert!(counter.give_back(now, cost) <= cost);
                    counter.look(now, cost)
                }
                3 => {
                    let quota = *quotas.last().unwrap();
                    counter = counter.carried(counter.algorithm.clone(), quota, now);
                    counter.look(now, cost)
                }
                _ => {
                    counter.settle(now);
                    counter.look(now, cost)
                }
            };
            prop_assert!(outcome.remaining <= counter.capacity());
            prop_assert!(outcome.allowed || outcome.retry != Retry::After(Span::ZERO));
            prop_assert!(!outcome.allowed || outcome.retry == Retry::After(Span::ZERO));
            let never = cost.max(1) > counter.capacity() || counter.quota.units() == 0;
            prop_assert_eq!(outcome.retry == Retry::Never, never);
        }
    }
}

/// Any number, and often one at an edge.
fn extremes() -> impl Strategy<Value = u64> {
    let edges = vec![
        0,
        1,
        2,
        1_000_000_000,
        7_258_118_400_000_000_000,
        u64::MAX / 4,
        u64::MAX / 2,
        u64::MAX - 1,
        u64::MAX,
    ];
    prop_oneof![2 => select(edges), 1 => any::<u64>(), 1 => 0..100_u64]
}
