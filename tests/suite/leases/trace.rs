//! The golden trace of the lease protocol, `tests/cases/lease-trace.yaml`, step by step.

use std::{collections::BTreeMap, sync::Arc};

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Decision, EndedBy, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    rules::concurrency::{ConcurrencyRule, Estimates, Hints},
    store::lease::{Answer, Ask, Bounds, Identity, Item, LeaseBook, Release, Reply, Saved, Stream},
};
use serde_json::{Value, json};

use crate::{leases::holder, yaml};

struct Trace {
    book: LeaseBook,
    boot: u32,
    now: Timestamp,
    rules: BTreeMap<String, Arc<ConcurrencyRule>>,
    /// Symbols of the trace and the ids that the book gave.
    ids: BTreeMap<String, LeaseId>,
    sessions: BTreeMap<String, Stream>,
    granted: u64,
    counters: BTreeMap<&'static str, u64>,
}

fn key(name: &str) -> CounterKey {
    let known = ["svc", "t/a", "t/b", "nope"];
    let place = known.iter().position(|known| *known == name).unwrap();
    CounterKey::from_bits(u128::try_from(place).unwrap() + 1)
}

fn identity(boot: u32) -> Identity {
    Identity { boot, book: 0 }
}

/// A rule as `config` of the trace describes it.
fn limit(path: &str, permits: u64) -> Arc<ConcurrencyRule> {
    let mut rule = ConcurrencyRule::fixed(path, permits);
    rule.estimates = Estimates {
        exposure: false,
        ..rule.estimates
    };
    rule.hints = Hints {
        booking: false,
        jitter: 0.0,
        ..rule.hints
    };
    Arc::new(rule)
}

impl Trace {
    fn new(config: &Value) -> Self {
        assert_eq!(config["prior_hold_ms"], 1000);
        assert_eq!(config["ewma_alpha"], 0.2);
        assert_eq!(config["max_lifetime_ms"], 600_000);
        assert_eq!(config["tombstone_ms"], 60_000);
        let limits = config["limits"].as_object().unwrap();
        let rules = limits
            .iter()
            .map(|(path, n)| (path.clone(), limit(path, n.as_u64().unwrap())));
        Self {
            book: LeaseBook::new(identity(1), Bounds::default(), [1; 32], Timestamp::ZERO),
            boot: 1,
            now: Timestamp::ZERO,
            rules: rules.collect(),
            ids: BTreeMap::new(),
            sessions: BTreeMap::new(),
            granted: 0,
            counters: BTreeMap::new(),
        }
    }

    fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    fn items(&self, args: &Value) -> Vec<Item> {
        let items = args["items"].as_array().unwrap().iter();
        items
            .map(|item| {
                let name = item["key"].as_str().unwrap();
                let permits = item["permits"].as_u64().unwrap();
                Item {
                    key: key(name),
                    rule: self.rules.get(name).cloned(),
                    permits,
                    least: permits,
                }
            })
            .collect()
    }

    fn acquire(&mut self, args: &Value) -> Value {
        let items = self.items(args);
        let session = args["session"].as_str().map(|name| {
            let opened = || self.book.open_session(Span::ZERO, self.now).stream;
            self.sessions
                .entry(name.to_owned())
                .or_insert_with(opened)
                .session
        });
        let ask = Ask {
            holder: holder("h"),
            request_id: args["request_id"].as_str().unwrap().as_bytes(),
            ttl: Some(duration(&args["ttl_ms"])),
            max_wait: Some(Span::ZERO),
            session,
            refuse_unknown: true,
            ..Ask::new(&items)
        };
        let Reply::Now(answer) = self.book.acquire(&ask, self.now).unwrap() else {
            panic!("nobody waits here");
        };
        let name = |index: usize| args["items"][index]["key"].clone();
        let states = || states(args, &answer);
        match answer.decision {
            Decision::Granted => {
                self.granted += 1;
                self.count("granted");
                let symbol = format!("{}-{}", self.boot, self.granted);
                assert_eq!(answer.leases[0].boot, self.boot);
                self.ids.insert(symbol.clone(), answer.leases[0]);
                json!({"answer": "GRANTED", "lease": symbol, "items": states(),
                       "expires_in_ms": whole_millis(answer.expires_in)})
            }
            Decision::Replayed => {
                self.count("replayed");
                json!({"answer": "REPLAYED", "lease": self.symbol(answer.leases[0]),
                       "expires_in_ms": whole_millis(answer.expires_in), "items": states()})
            }
            Decision::Refused => {
                self.count("refused");
                let mut limiting: Vec<Value> = answer.limiting.iter().map(|i| name(*i)).collect();
                limiting.sort_by_key(ToString::to_string);
                let after = answer.retry_after.unwrap().as_secs_f64() * 1e3;
                json!({"answer": "REFUSED", "limiting": limiting, "items": states(),
                       "retry_after_ms": after})
            }
            Decision::Never => {
                let offender = answer.offender.unwrap();
                json!({"answer": "NEVER", "key": name(offender), "limit": answer.items[offender].limit,
                       "permits": args["items"][offender]["permits"]})
            }
            Decision::UnknownKey => {
                json!({"answer": "UNKNOWN_KEY", "key": name(answer.offender.unwrap())})
            }
            Decision::Conflict => json!({"answer": "CONFLICT"}),
            Decision::Ended(by) => {
                json!({"answer": "ENDED", "lease": self.symbol(answer.leases[0]),
                       "ended_by": ended_by(by)})
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn symbol(&self, id: LeaseId) -> &str {
        self.ids.iter().find(|(_, known)| **known == id).unwrap().0
    }

    /// The id behind a symbol; one that was never bound is well formed and never issued.
    fn id(&self, args: &Value) -> LeaseId {
        let symbol = args["lease"].as_str().unwrap();
        let never = LeaseId {
            boot: self.boot,
            book: 0,
            sequence: 99,
            secret: 4,
        };
        self.ids.get(symbol).copied().unwrap_or(never)
    }

    fn release(&mut self, args: &Value, expect: &Value) -> Value {
        let release = Release {
            id: self.id(args),
            holder: Some("h"),
            outcome: match args["outcome"].as_str().unwrap() {
                "SUCCESS" => Outcome::Success,
                "DROPPED" => Outcome::Dropped,
                other => panic!("outcome {other}"),
            },
            held: args.get("held_ms").map(duration),
            service_time: None,
            actual_permits: None,
        };
        match self.book.release(&release, self.now) {
            ReleaseStatus::Released { held } => {
                self.count("released");
                let names = expect["mean_hold_ms"].as_object().unwrap().keys();
                let means: BTreeMap<&str, f64> = names
                    .map(|name| (name.as_str(), self.mean_hold(name)))
                    .collect();
                json!({"answer": "RELEASED", "held_ms": whole_millis(held), "mean_hold_ms": means})
            }
            ReleaseStatus::AlreadyReleased => {
                self.count("ended_twice");
                json!({"answer": "ALREADY_RELEASED"})
            }
            ReleaseStatus::Late { by } => {
                self.count("late");
                json!({"answer": "LATE", "over_ms": whole_millis(by)})
            }
            ReleaseStatus::SessionLost => {
                self.count("ended_twice");
                json!({"answer": "SESSION_LOST"})
            }
            ReleaseStatus::Unknown => {
                self.count("unknown");
                json!({"answer": "UNKNOWN"})
            }
            ReleaseStatus::OtherBoot => {
                self.count("unknown");
                json!({"answer": "OTHER_BOOT"})
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn mean_hold(&self, name: &str) -> f64 {
        self.book
            .finished_hold(key(name))
            .map_or(1000.0, |hold| hold * 1e3)
    }

    fn renew(&mut self, args: &Value) -> Value {
        let (id, ttl) = (self.id(args), duration(&args["ttl_ms"]));
        match self.book.renew(&id, Some("h"), Some(ttl), self.now) {
            RenewStatus::Renewed { expires_in, capped } => {
                json!({"answer": "RENEWED", "expires_in_ms": whole_millis(expires_in),
                       "capped": capped})
            }
            RenewStatus::Gone(by) => json!({"answer": "GONE", "ended_by": ended_by(by)}),
            other => panic!("unexpected {other:?}"),
        }
    }

    fn set_limit(&mut self, args: &Value) -> Value {
        let name = args["key"].as_str().unwrap();
        let rule = limit(name, args["limit"].as_u64().unwrap());
        self.rules.insert(name.to_owned(), Arc::clone(&rule));
        let rules = self.rules.clone();
        self.book.reload(|path| rules.get(path).cloned(), self.now);
        let view = self.book.peek(key(name), self.now).unwrap();
        let state = json!({"limit": view.limit, "in_flight": view.in_flight,
                           "remaining": view.remaining});
        json!({"answer": "LIMIT_SET", "items": {name: state}})
    }

    fn disconnect(&mut self, args: &Value) -> Value {
        let before: Vec<LeaseId> = self.live();
        let stream = self
            .sessions
            .remove(args["session"].as_str().unwrap())
            .unwrap();
        self.book.lose_session(stream, self.now);
        let after = self.live();
        let freed = before
            .iter()
            .filter(|id| !after.contains(id))
            .map(|id| self.symbol(*id));
        json!({"answer": "DISCONNECTED", "freed": freed.collect::<Vec<_>>()})
    }

    fn live(&self) -> Vec<LeaseId> {
        let keys = ["svc", "t/a", "t/b"].map(key);
        let leases = keys
            .iter()
            .flat_map(|key| self.book.leases(*key, 100, self.now));
        let mut ids: Vec<LeaseId> = leases.map(|lease| lease.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn restart(&mut self) -> Value {
        self.boot += 1;
        self.count_ends();
        let saved = self.book.save(self.now);
        // Mode `forget`.
        let saved = Saved {
            leases: Vec::new(),
            ..saved
        };
        let rules = self.rules.clone();
        self.book = LeaseBook::reopen(
            identity(self.boot),
            Bounds::default(),
            [2; 32],
            self.now,
            &saved,
            Span::ZERO,
            |path| rules.get(path).cloned(),
        );
        json!({"answer": "RESTARTED", "boot": self.boot})
    }

    /// Counts of the book itself, which end with it.
    fn count_ends(&mut self) {
        let ends = &self.book.totals().ends;
        let (expired, lost) = (ends.get("expired"), ends.get("session_lost"));
        *self.counters.entry("expired").or_default() += expired;
        *self.counters.entry("session_lost").or_default() += lost;
    }

    fn in_flight(&self, name: &str) -> u64 {
        self.book
            .peek(key(name), self.now)
            .map_or(0, |view| view.in_flight)
    }

    fn check_in_flight(&self, expected: &Value, step: &Value) {
        for (name, count) in expected.as_object().unwrap() {
            assert_eq!(
                self.in_flight(name),
                count.as_u64().unwrap(),
                "{name} after {step}"
            );
        }
    }
}

fn states(args: &Value, answer: &Answer) -> Value {
    let names = args["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|item| item["key"].as_str().unwrap());
    let states = names.zip(&answer.items).map(|(name, state)| {
        let state = json!({"limit": state.limit, "in_flight": state.in_flight,
                           "remaining": state.remaining});
        (name.to_owned(), state)
    });
    Value::Object(states.collect())
}

fn ended_by(by: EndedBy) -> &'static str {
    match by {
        EndedBy::Released => "RELEASED",
        EndedBy::Expired => "EXPIRED",
        EndedBy::SessionLost => "SESSION_LOST",
        EndedBy::Revoked => "REVOKED",
    }
}

fn duration(millis: &Value) -> Span {
    Span::from_millis(millis.as_u64().unwrap())
}

fn whole_millis(span: Span) -> u64 {
    assert_eq!(span.as_nanos() % 1_000_000, 0, "{span:?}");
    span.as_millis_up()
}

/// Equal, numbers within 0.1 where the trace gives a fraction.
fn agree(got: &Value, expected: &Value) -> bool {
    match (got, expected) {
        (Value::Object(got), Value::Object(expected)) => {
            got.len() == expected.len()
                && expected
                    .iter()
                    .all(|(name, value)| agree(&got[name], value))
        }
        (Value::Number(got), Value::Number(expected)) => {
            (got.as_f64().unwrap() - expected.as_f64().unwrap()).abs() <= 0.1
        }
        _ => got == expected,
    }
}

#[test]
fn the_golden_trace_step_by_step() {
    let file = yaml::read(include_str!("../../cases/lease-trace.yaml"));
    let mut trace = Trace::new(&file["config"]);
    let steps = file["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 32);
    for step in steps {
        trace.now = Timestamp::ZERO + duration(&step["at_ms"]);
        let args = &step["args"];
        let answer = match step["action"].as_str().unwrap() {
            "acquire" => trace.acquire(args),
            "release" => trace.release(args, &step["expect"]),
            "renew" => trace.renew(args),
            "set_limit" => trace.set_limit(args),
            "disconnect" => trace.disconnect(args),
            "restart" => trace.restart(),
            other => panic!("action {other}"),
        };
        assert!(
            agree(&answer, &step["expect"]),
            "got {answer}, expected in {step}"
        );
        trace.check_in_flight(&step["in_flight_after"], step);
    }
    let last = &file["final"];
    trace.count_ends();
    trace.check_in_flight(&last["in_flight"], last);
    let live: Vec<&str> = trace
        .live()
        .into_iter()
        .map(|id| trace.symbol(id))
        .collect();
    assert_eq!(json!(live), last["live_leases"]);
    assert_eq!(json!(trace.counters), last["counters"]);
    for (name, mean) in last["mean_hold_ms"].as_object().unwrap() {
        assert!(
            (trace.mean_hold(name) - mean.as_f64().unwrap()).abs() < 0.1,
            "{name}"
        );
    }
    for (name, limit) in last["limits"].as_object().unwrap() {
        let view = trace.book.peek(key(name), trace.now).unwrap();
        assert_eq!(json!(view.limit), *limit, "{name}");
    }
}
