//! Whole decisions, rules by hand, time by hand.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use super::*;
use crate::{
    algorithm::Retry,
    engine::{
        standing::{Reason, Standing},
        verdict::Status,
    },
    model::{
        limit::{Algorithm, Anchor, Quota},
        request::{Entry, Override, Unit},
        time::{ManualClock, Span, Timestamp},
    },
    rules::{
        Stacking,
        limit::Limit,
        testing::{limit, rule, rules},
        tree::Rule,
    },
    store::memory::{MemoryOptions, MemoryStore},
    telemetry::rule::RuleStat,
};

/// The start of an hour.
const START: Timestamp = Timestamp::from_secs(1_700_002_800);
const SECOND: Span = Span::from_secs(1);
const MINUTE: Span = Span::from_secs(60);
const HOUR: Span = Span::from_secs(3_600);
const TICK: Span = Span::from_nanos(1);

const CLOCK: Algorithm = Algorithm::FixedWindow(Anchor::Clock);

struct Limiter {
    clock: ManualClock,
    engine: Engine,
}

/// What a caller sees of a verdict.
#[derive(Clone, Debug, PartialEq)]
struct Answer {
    code: Code,
    retry: Option<Retry>,
    remaining: Vec<u64>,
}

impl Limiter {
    fn new(stacking: Stacking, list: Vec<Rule>) -> Self {
        Self::with(EngineOptions::default(), stacking, list)
    }

    fn with(options: EngineOptions, stacking: Stacking, list: Vec<Rule>) -> Self {
        let clock = ManualClock::at(START);
        let store = Store::from(MemoryStore::new(MemoryOptions::default()));
        let engine = Engine::new(clock.clock(), KeyHasher::random(), store, options);
        engine.install(rules(stacking, list));
        Self { clock, engine }
    }

    fn ask(&self, request: &Request<'_>) -> Answer {
        let installed = self.engine.installed();
        answer(&self.decide(&installed, request))
    }

    fn decide<'r>(&self, installed: &'r Installed, request: &Request<'_>) -> Verdict<'r> {
        let now = self.clock.now();
        let mut verdict = Verdict::new();
        let engine = &self.engine;
        engine
            .decide_in_memory(installed, request, now, &mut verdict)
            .unwrap();
        verdict
    }

    fn peek(&self, request: &Request<'_>) -> Answer {
        let installed = self.engine.installed();
        answer(&now(self.engine.peek(&installed, request)).unwrap().verdict)
    }

    fn reset(&self, request: &Request<'_>) -> u64 {
        let installed = self.engine.installed();
        now(self.engine.reset(&installed, request, false))
            .unwrap()
            .counters
    }

    fn stats(&self, path: &str) -> Vec<(&'static str, u64)> {
        let mut moved = Vec::new();
        self.engine.paths().for_each(|of, sums| {
            if of == path {
                let named = RuleStat::ALL.into_iter().zip(sums);
                let named = named.map(|(stat, sum)| (stat.name(), sum));
                moved.extend(named.filter(|(_, sum)| *sum > 0));
            }
        });
        moved
    }

    /// Waits as long as it is told, and is told the truth: one tick less is too early.
    #[track_caller]
    fn assert_hint_is_true(&self, request: &Request<'_>) -> Span {
        let told = self.ask(request);
        let Some(Retry::After(wait)) = told.retry else {
            panic!("{told:?}");
        };
        assert!(!wait.is_zero());
        self.clock.advance(wait.saturating_sub(TICK));
        assert_eq!(self.peek(request).code, Code::OverLimit, "too early");
        self.clock.advance(TICK);
        assert_eq!(self.ask(request).code, Code::Ok, "waiting was not enough");
        wait
    }
}

fn answer(verdict: &Verdict<'_>) -> Answer {
    let remaining = |status: Status<'_, '_>| status.told().map_or(u64::MAX, |told| told.remaining);
    Answer {
        code: verdict.code,
        retry: verdict.retry(),
        remaining: verdict.statuses().map(remaining).collect(),
    }
}

fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("a decision in memory waits for something"),
    }
}

/// One descriptor of one entry each, at the request's cost.
fn request<'a>(entries: &[(&'a str, &'a str)], cost: u32) -> Request<'a> {
    let mut request = Request::new("edge");
    request.hits_addend = cost;
    for (key, value) in entries {
        request.add([Entry { key, value }]);
    }
    request
}

fn bucket(units: u64, period: Span) -> Limit {
    limit(Algorithm::TokenBucket, units, period)
}

#[test]
fn a_hundred_refusals_of_a_user_cost_the_tenant_nothing() {
    for algorithm in [CLOCK, Algorithm::TokenBucket, Algorithm::SlidingWindow] {
        let limiter = Limiter::new(
            Stacking::AllOrNothing,
            vec![
                rule("tenant", vec![limit(algorithm.clone(), 600, MINUTE)]),
                rule("user", vec![limit(algorithm.clone(), 100, MINUTE)]),
                rule("client", vec![limit(algorithm.clone(), 10, SECOND)]),
            ],
        );
        let call = |client: &'static str| {
            request(
                &[("tenant", "acme"), ("user", "ann"), ("client", client)],
                1,
            )
        };
        // Ten clients use up what the user has, then she is refused.
        let clients = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"];
        for client in clients {
            for _ in 0..10 {
                assert_eq!(limiter.ask(&call(client)).code, Code::Ok, "{algorithm:?}");
            }
        }
        let tenant = request(&[("tenant", "acme")], 0);
        let before = limiter.peek(&tenant);
        assert_eq!(before.remaining, [500]);
        for n in 0..100 {
            let refused = limiter.ask(&call("k"));
            assert_eq!(refused.code, Code::OverLimit, "{n}");
            assert_eq!(
                refused.remaining,
                [500, 0, 10],
                "and neither the client's own"
            );
        }
        assert_eq!(limiter.peek(&tenant), before);
        // Another user of the tenant is not hurt.
        let other = request(&[("tenant", "acme"), ("user", "bob"), ("client", "z")], 1);
        assert_eq!(limiter.ask(&other).code, Code::Ok);
        limiter.assert_hint_is_true(&call("k"));
    }
}

#[test]
fn independent_limits_charge_refused_requests_as_the_reference_does() {
    let limiter = Limiter::new(
        Stacking::Independent,
        vec![
            rule("tenant", vec![limit(CLOCK, 600, MINUTE)]),
            rule("user", vec![limit(CLOCK, 100, MINUTE)]),
        ],
    );
    let call = request(&[("tenant", "acme"), ("user", "ann")], 1);
    for _ in 0..200 {
        limiter.ask(&call);
    }
    let left = limiter.peek(&request(&[("tenant", "acme")], 0)).remaining;
    assert_eq!(left, [400]);
}

#[test]
fn hints_are_true_for_stacked_limits() {
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        for (a, b) in [
            (bucket(3, HOUR), bucket(2, SECOND)),
            (limit(CLOCK, 3, HOUR), limit(CLOCK, 2, MINUTE)),
            (
                limit(Algorithm::SlidingLog, 3, HOUR),
                limit(Algorithm::SlidingWindow, 2, MINUTE),
            ),
            (
                limit(Algorithm::LeakyBucket, 3, MINUTE),
                limit(Algorithm::FixedWindow(Anchor::FirstHit), 2, SECOND),
            ),
        ] {
            let limiter = Limiter::new(
                stacking,
                vec![rule("a", vec![a.clone()]), rule("b", vec![b.clone()])],
            );
            let call = request(&[("a", "x"), ("b", "x")], 1);
            limiter.clock.advance(Span::from_millis(123));
            assert_eq!(limiter.ask(&call).code, Code::Ok);
            assert_eq!(limiter.ask(&call).code, Code::Ok);
            // Refused by b. Under independent stacking a's last unit goes all the same.
            let hint = limiter.assert_hint_is_true(&call);
            let whole = stacking == Stacking::AllOrNothing;
            assert_eq!(hint <= MINUTE, whole || a.quota.period() <= MINUTE, "{a:?}");
        }
    }
}

#[test]
fn several_limits_of_one_rule_must_all_pass() {
    let limits = vec![bucket(2, SECOND), bucket(5, HOUR)];
    let limiter = Limiter::new(Stacking::AllOrNothing, vec![rule("user", limits)]);
    let call = request(&[("user", "ann")], 1);
    assert_eq!(limiter.ask(&call).remaining, [1], "the tighter one");
    assert_eq!(limiter.ask(&call).remaining, [0]);
    let wait = limiter.assert_hint_is_true(&call);
    assert_eq!(wait, Span::from_millis(500));
    limiter.clock.advance(SECOND);
    assert_eq!(limiter.ask(&call).remaining, [1], "of both");
    assert_eq!(limiter.ask(&call).remaining, [0]);
    let refused = limiter.ask(&call);
    assert_eq!(refused.code, Code::OverLimit);
    // Both refuse; the one that takes longest says when.
    assert!(limiter.assert_hint_is_true(&call) > MINUTE);
}

#[test]
fn a_quota_group_comes_back_with_the_first_of_its_members() {
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        let quota = |key: &str, limit| Rule {
            quota_mode: true,
            ..rule(key, vec![limit])
        };
        let limiter = Limiter::new(
            stacking,
            vec![
                quota("slow", bucket(1, HOUR)),
                quota("fast", bucket(1, SECOND)),
            ],
        );
        let call = request(&[("slow", "x"), ("fast", "x")], 1);
        assert_eq!(limiter.ask(&call).code, Code::Ok);
        assert_eq!(limiter.assert_hint_is_true(&call), SECOND);
    }
}

#[test]
fn an_enforced_limit_waits_for_itself_and_for_one_of_the_quota_group() {
    let quota = |key: &str, limit| Rule {
        quota_mode: true,
        ..rule(key, vec![limit])
    };
    let limiter = Limiter::new(
        Stacking::AllOrNothing,
        vec![
            rule("own", vec![bucket(1, SECOND)]),
            quota("slow", bucket(1, HOUR)),
            quota("fast", bucket(1, MINUTE)),
        ],
    );
    let call = request(&[("own", "x"), ("slow", "x"), ("fast", "x")], 1);
    assert_eq!(limiter.ask(&call).code, Code::Ok);
    assert_eq!(limiter.assert_hint_is_true(&call), MINUTE);
}

fn reasons(limiter: &Limiter, call: &Request<'_>) -> Vec<(u64, Option<Reason>)> {
    let installed = limiter.engine.installed();
    let verdict = limiter.decide(&installed, call);
    let standings = verdict.standings();
    let each = |standing: &Standing<'_>| (standing.capacity, standing.refused);
    standings.iter().map(each).collect()
}

#[test]
fn a_quota_limit_that_is_over_is_no_reason_while_another_passes() {
    let quota = |key: &str, units| Rule {
        quota_mode: true,
        ..rule(key, vec![bucket(units, HOUR)])
    };
    let limiter = Limiter::new(Stacking::Independent, vec![quota("a", 1), quota("b", 2)]);
    let call = request(&[("a", "x"), ("b", "x")], 1);
    assert_eq!(reasons(&limiter, &call), [(1, None), (2, None)]);
    assert_eq!(reasons(&limiter, &call), [(1, None), (2, None)]);
    let both = Some(Reason::Rate);
    assert_eq!(reasons(&limiter, &call), [(1, both), (2, both)]);
}

#[test]
fn a_quota_limit_that_is_over_is_no_reason_beside_an_enforced_one() {
    let quota = |key: &str, units| Rule {
        quota_mode: true,
        ..rule(key, vec![bucket(units, HOUR)])
    };
    let own = rule("own", vec![bucket(2, HOUR)]);
    let list = vec![own, quota("a", 1), quota("b", 5)];
    let limiter = Limiter::new(Stacking::Independent, list);
    let call = request(&[("own", "x"), ("a", "x"), ("b", "x")], 1);
    for _ in 0..2 {
        assert_eq!(limiter.ask(&call).code, Code::Ok);
    }
    let refused = Some(Reason::Rate);
    assert_eq!(
        reasons(&limiter, &call),
        [(2, refused), (1, None), (5, None)]
    );
}

#[test]
fn standings_are_sorted_by_what_binds() {
    let limiter = Limiter::new(
        Stacking::AllOrNothing,
        vec![
            rule("wide", vec![bucket(50, HOUR)]),
            rule("slow", vec![bucket(1, HOUR)]),
            rule("fast", vec![bucket(1, SECOND)]),
            rule("open", vec![bucket(20, HOUR)]),
            Rule {
                shadow_mode: true,
                ..rule("shadow", vec![bucket(1, HOUR)])
            },
        ],
    );
    let call = request(
        &[
            ("wide", "x"),
            ("fast", "x"),
            ("slow", "x"),
            ("shadow", "x"),
            ("open", "x"),
        ],
        1,
    );
    let passed = reasons(&limiter, &call);
    assert_eq!(passed, [(1, None), (1, None), (20, None), (50, None)]);
    let installed = limiter.engine.installed();
    let verdict = limiter.decide(&installed, &call);
    let standings = verdict.standings();
    let windows = standings.iter().map(|standing| standing.window.unwrap());
    assert_eq!(windows.collect::<Vec<_>>(), [HOUR, SECOND, HOUR, HOUR]);
    let places = standings.iter().map(|standing| standing.place);
    assert_eq!(places.collect::<Vec<_>>(), [2, 1, 3, 0]);
    let refused = standings.iter().map(|standing| standing.refused.is_some());
    assert_eq!(refused.collect::<Vec<_>>(), [true, true, false, false]);
}

#[test]
fn a_counter_that_was_asked_twice_is_told_once() {
    let limiter = Limiter::new(
        Stacking::Independent,
        vec![rule("a", vec![bucket(9, HOUR)])],
    );
    let twice = request(&[("a", "x"), ("a", "x")], 1);
    assert_eq!(reasons(&limiter, &twice), [(9, None)]);
    let installed = limiter.engine.installed();
    let verdict = limiter.decide(&installed, &twice);
    assert_eq!(verdict.standings()[0].remaining, 5, "after both, twice");
}

#[test]
fn costs_that_never_fit_have_no_hint() {
    for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
        let limiter = Limiter::new(
            stacking,
            vec![
                rule("a", vec![bucket(9, HOUR)]),
                rule("b", vec![bucket(99, HOUR)]),
            ],
        );
        let call = request(&[("b", "x"), ("a", "x")], 10);
        assert_eq!(limiter.ask(&call).retry, Some(Retry::Never));
        assert_eq!(reasons(&limiter, &call)[0], (9, Some(Reason::Never)));
        // Together they are more than it holds, though neither is alone.
        let twice = request(&[("a", "x"), ("a", "x")], 5);
        assert_eq!(limiter.ask(&twice).retry, Some(Retry::Never));
    }
}

#[test]
fn a_rule_of_global_scope_says_so() {
    let global = Rule {
        scope: crate::rules::answer::Scope::Global,
        ..rule("a", vec![bucket(1, HOUR)])
    };
    let limiter = Limiter::new(Stacking::Independent, vec![global]);
    let call = request(&[("a", "x")], 1);
    assert_eq!(reasons(&limiter, &call), [(1, None)]);
    assert_eq!(reasons(&limiter, &call), [(1, Some(Reason::Global))]);
}

#[test]
fn global_shadow_mode_passes_without_reason_or_hint() {
    let options = EngineOptions {
        shadow_mode: true,
        ..EngineOptions::default()
    };
    let list = vec![rule("a", vec![bucket(1, HOUR)])];
    let limiter = Limiter::with(options, Stacking::Independent, list);
    let call = request(&[("a", "x")], 1);
    limiter.ask(&call);
    assert_eq!(limiter.ask(&call).retry, None);
    assert_eq!(reasons(&limiter, &call), [(1, None)]);
}

#[test]
fn what_protocol_fields_tell_of_a_refusal() {
    let told = |limit: Limit, cost: u32| {
        let limiter = Limiter::new(Stacking::AllOrNothing, vec![rule("a", vec![limit])]);
        let installed = limiter.engine.installed();
        limiter.clock.advance(SECOND);
        limiter.ask(&request(&[("a", "x")], 7));
        let call = request(&[("a", "x")], cost);
        let verdict = limiter.decide(&installed, &call);
        let told = verdict.statuses().next().unwrap().told().unwrap();
        (told.remaining, told.reset)
    };
    // Nothing is left of a limit that refuses; its reset is when to come back.
    assert_eq!(
        told(bucket(10, Span::from_secs(100)), 4),
        (0, Span::from_secs(10))
    );
    // A limit that passes tells what is left and when it is whole again.
    assert_eq!(
        told(bucket(10, Span::from_secs(100)), 1),
        (2, Span::from_secs(80))
    );
    // For the reference's windows both are the end of the window.
    assert_eq!(told(limit(CLOCK, 10, MINUTE), 4), (0, Span::from_secs(59)));
    assert_eq!(told(limit(CLOCK, 10, MINUTE), 1), (2, Span::from_secs(59)));
    // What never passes cannot be waited for.
    assert_eq!(
        told(bucket(10, Span::from_secs(100)), 11),
        (0, Span::from_secs(70))
    );
}

#[test]
fn peeks_say_whether_a_cost_would_pass_and_when() {
    let limiter = Limiter::new(
        Stacking::AllOrNothing,
        vec![rule("a", vec![bucket(40, Span::from_secs(8))])],
    );
    limiter.ask(&request(&[("a", "x")], 30));
    let at_10 = limiter.peek(&request(&[("a", "x")], 10));
    assert_eq!((at_10.code, &at_10.remaining[..]), (Code::Ok, &[10][..]));
    let at_25 = limiter.peek(&request(&[("a", "x")], 25));
    assert_eq!(at_25.code, Code::OverLimit);
    assert_eq!(at_25.retry, Some(Retry::After(Span::from_secs(3))));
    let at_41 = limiter.peek(&request(&[("a", "x")], 41));
    assert_eq!(at_41.retry, Some(Retry::Never));
    limiter.clock.advance(Span::from_secs(3));
    assert_eq!(limiter.ask(&request(&[("a", "x")], 25)).code, Code::Ok);
}

#[test]
fn peeks_and_resets_move_no_statistics() {
    let limiter = Limiter::new(
        Stacking::Independent,
        vec![rule("a", vec![bucket(1, HOUR)])],
    );
    let call = request(&[("a", "x")], 1);
    limiter.peek(&call);
    limiter.reset(&call);
    assert_eq!(limiter.stats("edge.a"), []);
    assert_eq!(limiter.engine.calls().sum(CallStat::TotalRequests), 0);
    let mut elsewhere = call;
    elsewhere.domain = "nowhere";
    assert_eq!(limiter.peek(&elsewhere).code, Code::Ok);
    assert_eq!(limiter.reset(&elsewhere), 0);
    assert_eq!(limiter.stats("nowhere"), []);
}

#[test]
fn resets_forget_every_limit_of_the_descriptor_and_nothing_else() {
    let limits = vec![bucket(2, SECOND), limit(Algorithm::SlidingLog, 5, HOUR)];
    let limiter = Limiter::new(Stacking::Independent, vec![rule("user", limits)]);
    let (ann, bob) = (
        request(&[("user", "ann")], 2),
        request(&[("user", "bob")], 2),
    );
    for call in [&ann, &bob] {
        assert_eq!(limiter.ask(call).code, Code::Ok);
        assert_eq!(limiter.ask(call).code, Code::OverLimit);
    }
    assert_eq!(limiter.reset(&ann), 2);
    assert_eq!(limiter.reset(&ann), 0);
    assert_eq!(limiter.ask(&ann).code, Code::Ok);
    assert_eq!(limiter.ask(&bob).code, Code::OverLimit);
}

#[test]
fn what_was_not_taken_is_counted_as_asked_and_no_more() {
    let limiter = Limiter::new(
        Stacking::AllOrNothing,
        vec![
            rule("wide", vec![bucket(10, HOUR)]),
            rule("narrow", vec![bucket(1, HOUR)]),
        ],
    );
    let call = request(&[("wide", "x"), ("narrow", "x")], 1);
    for _ in 0..3 {
        limiter.ask(&call);
    }
    let wide = limiter.stats("edge.wide");
    assert_eq!(wide, [("total_hits", 3), ("within_limit", 1)]);
    let narrow = limiter.stats("edge.narrow");
    let want = [
        ("total_hits", 3),
        ("over_limit", 2),
        ("near_limit", 1),
        ("within_limit", 1),
    ];
    assert_eq!(narrow, want);
}

#[test]
fn a_charge_that_finds_no_counter_is_over_and_not_near() {
    let clock = ManualClock::at(START);
    let store = Store::from(MemoryStore::new(MemoryOptions {
        max_keys: std::num::NonZeroUsize::MIN,
        when_full: crate::store::memory::WhenFull::Deny,
        ..MemoryOptions::default()
    }));
    let engine = Engine::new(
        clock.clock(),
        KeyHasher::random(),
        store,
        EngineOptions::default(),
    );
    engine.install(rules(
        Stacking::Independent,
        vec![rule("a", vec![bucket(100, HOUR)])],
    ));
    let limiter = Limiter { clock, engine };
    assert_eq!(limiter.ask(&request(&[("a", "x")], 1)).code, Code::Ok);
    assert_eq!(
        limiter.ask(&request(&[("a", "y")], 3)).code,
        Code::OverLimit
    );
    let want = [("total_hits", 4), ("over_limit", 3), ("within_limit", 1)];
    assert_eq!(limiter.stats("edge.a"), want);
}

#[test]
fn reloads_keep_what_was_used() {
    let install = |limiter: &Limiter, limit: Limit| {
        let list = vec![rule("a", vec![limit]), rule("same", vec![bucket(5, HOUR)])];
        limiter.engine.install(rules(Stacking::AllOrNothing, list));
    };
    for algorithm in [
        CLOCK,
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        // The shaper lets nobody pass who would have to wait; the store's tests have it.
    ] {
        let limiter = Limiter::new(Stacking::AllOrNothing, vec![]);
        let with = |units, period| limit(algorithm.clone(), units, period);
        install(&limiter, with(10, HOUR));
        let call = request(&[("a", "x"), ("same", "x")], 1);
        for _ in 0..4 {
            assert_eq!(limiter.ask(&call).code, Code::Ok);
        }
        let left = |limiter: &Limiter| {
            let peek = request(&[("a", "x"), ("same", "x")], 0);
            limiter.peek(&peek).remaining
        };
        assert_eq!(left(&limiter), [6, 1]);
        // Raise, lower, lower below what is used, and back.
        for (units, want) in [(20, 16), (5, 1), (3, 0), (10, 6)] {
            install(&limiter, with(units, HOUR));
            assert_eq!(left(&limiter), [want, 1], "{algorithm:?} {units}");
        }
        // Another period, without anybody asking in between, through several versions.
        install(&limiter, with(10, Span::from_secs(7_200)));
        install(&limiter, with(8, Span::from_secs(7_200)));
        assert_eq!(left(&limiter), [4, 1], "{algorithm:?}");
        // The same rules again touch nothing.
        install(&limiter, with(8, Span::from_secs(7_200)));
        assert_eq!(left(&limiter), [4, 1], "{algorithm:?}");
    }
}

#[test]
fn another_algorithm_starts_afresh() {
    // `config` gives each algorithm a counter of its own; where it did not, the state is not read
    // as something that it is not.
    let limiter = Limiter::new(
        Stacking::Independent,
        vec![rule("a", vec![bucket(5, HOUR)])],
    );
    let call = request(&[("a", "x")], 5);
    assert_eq!(limiter.ask(&call).code, Code::Ok);
    let window = limit(Algorithm::SlidingWindow, 5, HOUR);
    limiter
        .engine
        .install(rules(Stacking::Independent, vec![rule("a", vec![window])]));
    assert_eq!(limiter.ask(&call).code, Code::Ok);
    assert_eq!(limiter.ask(&call).code, Code::OverLimit);
}

#[test]
fn a_rule_that_is_gone_for_a_while_counts_on() {
    let limiter = Limiter::new(
        Stacking::Independent,
        vec![rule("a", vec![bucket(5, HOUR)])],
    );
    let call = request(&[("a", "x")], 4);
    assert_eq!(limiter.ask(&call).code, Code::Ok);
    limiter.engine.install(rules(Stacking::Independent, vec![]));
    assert_eq!(limiter.ask(&call).code, Code::Ok, "nothing matches");
    let back = vec![rule("a", vec![bucket(5, HOUR)])];
    limiter.engine.install(rules(Stacking::Independent, back));
    assert_eq!(limiter.ask(&call).code, Code::OverLimit);
}

#[test]
fn a_rule_that_comes_back_with_another_quota_keeps_what_was_used() {
    for algorithm in [Algorithm::TokenBucket, CLOCK, Algorithm::SlidingWindow] {
        let with = |units| vec![rule("a", vec![limit(algorithm.clone(), units, HOUR)])];
        let limiter = Limiter::new(Stacking::Independent, with(5));
        let install = |list| limiter.engine.install(rules(Stacking::Independent, list));
        let peek = || limiter.peek(&request(&[("a", "x")], 0)).remaining;
        let call = request(&[("a", "x")], 4);
        assert_eq!(limiter.ask(&call).code, Code::Ok);
        install(vec![]);
        install(vec![rule("b", vec![bucket(1, HOUR)])]);
        install(with(10));
        assert_eq!(peek(), [6], "{algorithm:?}");
        // And once more, from the quota that it came back with.
        install(vec![]);
        install(with(20));
        assert_eq!(peek(), [16], "{algorithm:?}");
    }
}

#[test]
fn an_override_reads_the_rules_counter_after_a_reload() {
    let install = |limiter: &Limiter, period| {
        let list = vec![rule("a", vec![limit(CLOCK, 10, period)])];
        limiter.engine.install(rules(Stacking::Independent, list));
    };
    let limiter = Limiter::new(Stacking::Independent, vec![]);
    install(&limiter, MINUTE);
    limiter.ask(&request(&[("a", "x")], 4));
    install(&limiter, HOUR);
    // The override has the rule's period, so it counts where the rule counts.
    let mut call = request(&[("a", "x")], 1);
    call.descriptors[0].limit = Some(Override {
        requests_per_unit: 20,
        unit: Unit::Hour,
        unit_multiplier: 1,
    });
    assert_eq!(limiter.ask(&call).remaining, [15]);
    limiter.clock.advance(MINUTE);
    assert_eq!(
        limiter.ask(&call).remaining,
        [14],
        "of the hour, not of the minute"
    );
    assert_eq!(limiter.peek(&request(&[("a", "x")], 0)).remaining, [4]);
}

#[test]
fn extreme_requests_are_answered() {
    let quota = Quota::new(u64::MAX, Span::from_nanos(1), u64::MAX);
    let hostile = [
        bucket(1, Span::from_nanos(1)),
        limit(Algorithm::SlidingLog, u64::MAX, TICK),
        Limit {
            quota: quota.unwrap_or(Quota::window(u64::MAX, TICK)),
            ..limit(CLOCK, 1, MINUTE)
        },
        limit(CLOCK, 0, MINUTE),
    ];
    for limit in hostile {
        for stacking in [Stacking::Independent, Stacking::AllOrNothing] {
            let limiter = Limiter::new(stacking, vec![rule("a", vec![limit.clone()])]);
            for at in [Timestamp::ZERO, START, Timestamp::MAX] {
                limiter.clock.step_wall(at);
                for cost in [0, 1, u64::MAX - 1, u64::MAX] {
                    for is_negative_hits in [false, true] {
                        let mut call = request(&[("a", "x"), ("a", "x")], 1);
                        for descriptor in &mut call.descriptors {
                            descriptor.hits_addend = Some(cost);
                            descriptor.is_negative_hits = is_negative_hits;
                        }
                        limiter.ask(&call);
                        limiter.peek(&call);
                    }
                }
            }
        }
    }
}

#[test]
fn rules_that_change_their_names_at_each_reload_leave_little_behind() {
    let limiter = Limiter::new(Stacking::Independent, Vec::new());
    let install = |key: &str| {
        let unlimited = Rule {
            unlimited: true,
            ..rule(key, Vec::new())
        };
        let engine = &limiter.engine;
        engine.install(rules(Stacking::Independent, vec![unlimited]));
    };
    for load in 0..10_000 {
        install(&format!("k{load}"));
    }
    let mut paths = Vec::new();
    (limiter.engine.paths()).for_each(|path, _| paths.push(path.to_owned()));
    assert!(paths.iter().any(|path| path == "edge.k9999"));
    assert!(paths.len() <= 1_100, "{}", paths.len());
    assert!(limiter.engine.refusals.len() <= 1_100);
}

#[test]
fn a_rule_that_comes_back_after_a_reload_goes_on_counting() {
    let limits = || vec![limit(CLOCK, 1, HOUR)];
    let limiter = Limiter::new(Stacking::Independent, vec![rule("user", limits())]);
    let call = request(&[("user", "ann")], 1);
    let refused = |limiter: &Limiter| {
        let mut refused = 0;
        (limiter.engine.refusals).for_each(|_, _, count| refused += count);
        refused
    };
    limiter.ask(&call);
    limiter.ask(&call);
    for list in [vec![rule("other", limits())], vec![rule("user", limits())]] {
        limiter.engine.install(rules(Stacking::Independent, list));
    }
    assert_eq!(refused(&limiter), 1);
    limiter.ask(&call);
    assert_eq!(refused(&limiter), 2);
    assert_eq!(limiter.stats("edge.user")[0], ("total_hits", 3));
}

#[test]
fn a_thread_decides_by_the_rules_of_the_engine_at_hand_as_they_are_now() {
    let count =
        |engine: &Engine| engine.with_installed(|installed| installed.rules().rules().len());
    let new = || Limiter::new(Stacking::Independent, Vec::new()).engine;
    let list = |count: usize| -> Vec<Rule> {
        let names = ["a", "b"].iter().take(count);
        names.map(|name| rule(name, Vec::new())).collect()
    };
    let (one, other) = (new(), new());
    for rules_now in [1, 2, 1] {
        one.install(rules(Stacking::Independent, list(rules_now)));
        assert_eq!((count(&one), count(&other)), (rules_now, 0));
        // One within the other.
        let both =
            one.with_installed(|here| (here.rules().rules().len(), count(&other), count(&one)));
        assert_eq!(both, (rules_now, 0, rules_now));
    }
}
