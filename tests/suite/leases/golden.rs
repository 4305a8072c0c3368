//! The golden trace of the lease protocol, `tests/cases/lease-trace.yaml`: its words, and how one
//! step of it is put to whatever keeps leases. The lease book and the script of the shared store
//! are both held to it.

use std::{collections::BTreeMap, sync::Arc};

use porteiro::{
    model::{
        key::CounterKey,
        lease::{Decision, EndedBy, Holder, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    rules::concurrency::ConcurrencyRule,
    store::lease::{Answer, Ask, Item, ItemState, Release},
};
use serde_json::{Value, json};

/// Keeps leases; every call comes with the time of the step.
pub(crate) trait Keeper {
    /// Decides an Acquire, for a session if one is named.
    fn acquire(&mut self, ask: Ask<'_>, session: Option<&str>, now: Timestamp) -> Answer;

    /// Takes a lease back.
    fn release(&mut self, release: &Release<'_>, now: Timestamp) -> ReleaseStatus;

    /// Prolongs a lease of the holder.
    fn renew(&mut self, id: LeaseId, holder: &str, ttl: Span, now: Timestamp) -> RenewStatus;

    /// The rules are these from now on.
    fn reload(&mut self, rules: &Rules, now: Timestamp);

    /// A session's connection is gone; the leases that this freed.
    fn disconnect(&mut self, session: &str, now: Timestamp) -> Vec<LeaseId>;

    /// The process ends and begins anew.
    fn restart(&mut self, rules: &Rules, now: Timestamp);

    /// Permits in use.
    fn in_flight(&self, key: CounterKey, now: Timestamp) -> u64;

    /// Mean hold of finished leases in seconds; none before the first.
    fn mean_hold(&self, key: CounterKey, now: Timestamp) -> Option<f64>;

    /// A lease id that is well formed and was never given.
    fn unknown(&self) -> LeaseId;
}

/// The rules of the trace by name.
pub(crate) type Rules = BTreeMap<String, Arc<ConcurrencyRule>>;

/// One run through the trace.
pub(crate) struct Trace<K> {
    pub(crate) keeper: K,
    pub(crate) now: Timestamp,
    /// Answers of each kind.
    pub(crate) counters: BTreeMap<&'static str, u64>,
    rules: Rules,
    start: Timestamp,
    boot: u32,
    granted: u64,
    /// Symbols of the trace and the ids that the keeper gave.
    ids: BTreeMap<String, LeaseId>,
}

/// The counter of a name in the trace.
pub(crate) fn key(name: &str) -> CounterKey {
    let known = ["svc", "t/a", "t/b", "nope"];
    let place = known.iter().position(|known| *known == name).unwrap();
    CounterKey::from_bits(u128::try_from(place).unwrap() + 1)
}

/// A rule as `config` of the trace describes it.
fn rule(path: &str, permits: &Value) -> Arc<ConcurrencyRule> {
    let mut rule = ConcurrencyRule::fixed(path, permits.as_u64().unwrap());
    rule.estimates.exposure = false;
    rule.hints.booking = false;
    rule.hints.jitter = 0.0;
    Arc::new(rule)
}

impl<K: Keeper> Trace<K> {
    /// Before the first step; `start` is the keeper's time at 0 ms.
    pub(crate) fn new(config: &Value, keeper: K, start: Timestamp) -> Self {
        assert_eq!(config["prior_hold_ms"], 1000);
        assert_eq!(config["ewma_alpha"], 0.2);
        assert_eq!(config["max_lifetime_ms"], 600_000);
        assert_eq!(config["tombstone_ms"], 60_000);
        let limits = config["limits"].as_object().unwrap().iter();
        Self {
            keeper,
            now: start,
            counters: BTreeMap::new(),
            rules: limits
                .map(|(path, n)| (path.clone(), rule(path, n)))
                .collect(),
            start,
            boot: 1,
            granted: 0,
            ids: BTreeMap::new(),
        }
    }

    /// What the keeper answers to one step, in the words of the trace.
    pub(crate) fn step(&mut self, step: &Value) -> Value {
        self.now = self.start + duration(&step["at_ms"]);
        let args = &step["args"];
        match step["action"].as_str().unwrap() {
            "acquire" => self.acquire(args),
            "release" => self.release(args, &step["expect"]),
            "renew" => self.renew(args),
            "set_limit" => self.set_limit(args),
            "disconnect" => self.disconnect(args),
            "restart" => self.restart(),
            other => panic!("action {other}"),
        }
    }

    /// Holds what is in flight to an object of numbers by name.
    pub(crate) fn check_in_flight(&self, expected: &Value, step: &Value) {
        for (name, count) in expected.as_object().unwrap() {
            let in_flight = self.keeper.in_flight(key(name), self.now);
            assert_eq!(json!(in_flight), *count, "{name} after {step}");
        }
    }

    /// The trace's name of a lease.
    pub(crate) fn symbol(&self, id: LeaseId) -> &str {
        self.ids.iter().find(|(_, known)| **known == id).unwrap().0
    }

    /// Mean hold in milliseconds; that of the config before any lease has ended.
    pub(crate) fn mean_hold(&self, name: &str) -> f64 {
        let hold = self.keeper.mean_hold(key(name), self.now);
        hold.map_or(1000.0, |hold| hold * 1e3)
    }

    /// Adds to the answers of one kind.
    pub(crate) fn count(&mut self, name: &'static str, by: u64) {
        *self.counters.entry(name).or_default() += by;
    }

    fn id(&self, args: &Value) -> LeaseId {
        let symbol = args["lease"].as_str().unwrap();
        let known = self.ids.get(symbol).copied();
        known.unwrap_or_else(|| self.keeper.unknown())
    }

    fn items(&self, args: &Value) -> Vec<Item> {
        let item = |item: &Value| {
            let name = item["key"].as_str().unwrap();
            let permits = item["permits"].as_u64().unwrap();
            Item {
                key: key(name),
                rule: self.rules.get(name).cloned(),
                permits,
                least: permits,
            }
        };
        args["items"].as_array().unwrap().iter().map(item).collect()
    }

    fn acquire(&mut self, args: &Value) -> Value {
        let items = self.items(args);
        let ask = Ask {
            holder: Holder {
                id: "h".into(),
                instance: "".into(),
            },
            request_id: args["request_id"].as_str().unwrap().as_bytes(),
            ttl: Some(duration(&args["ttl_ms"])),
            max_wait: Some(Span::ZERO),
            refuse_unknown: true,
            ..Ask::new(&items)
        };
        let answer = self.keeper.acquire(ask, args["session"].as_str(), self.now);
        let name = |index: usize| args["items"][index]["key"].clone();
        match answer.decision {
            Decision::Granted => {
                self.granted += 1;
                self.count("granted", 1);
                let symbol = format!("{}-{}", self.boot, self.granted);
                self.ids.insert(symbol.clone(), answer.leases[0]);
                json!({"answer": "GRANTED", "lease": symbol, "items": states(args, &answer),
                       "expires_in_ms": whole_millis(answer.expires_in)})
            }
            Decision::Replayed => {
                self.count("replayed", 1);
                json!({"answer": "REPLAYED", "lease": self.symbol(answer.leases[0]),
                       "expires_in_ms": whole_millis(answer.expires_in),
                       "items": states(args, &answer)})
            }
            Decision::Refused => {
                self.count("refused", 1);
                let mut limiting: Vec<Value> = answer.limiting.iter().map(|i| name(*i)).collect();
                limiting.sort_by_key(ToString::to_string);
                let after = answer.retry_after.unwrap().as_secs_f64() * 1e3;
                json!({"answer": "REFUSED", "limiting": limiting, "items": states(args, &answer),
                       "retry_after_ms": after})
            }
            Decision::Never => {
                let offender = answer.offender.unwrap();
                json!({"answer": "NEVER", "key": name(offender),
                       "limit": answer.items[offender].limit,
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
        match self.keeper.release(&release, self.now) {
            ReleaseStatus::Released { held } => {
                self.count("released", 1);
                let names = expect["mean_hold_ms"].as_object().into_iter();
                let names = names.flat_map(serde_json::Map::keys);
                let means: BTreeMap<&str, f64> = names
                    .map(|name| (name.as_str(), self.mean_hold(name)))
                    .collect();
                json!({"answer": "RELEASED", "held_ms": whole_millis(held), "mean_hold_ms": means})
            }
            ReleaseStatus::AlreadyReleased => {
                self.count("ended_twice", 1);
                json!({"answer": "ALREADY_RELEASED"})
            }
            ReleaseStatus::Late { by } => {
                self.count("late", 1);
                json!({"answer": "LATE", "over_ms": whole_millis(by)})
            }
            ReleaseStatus::SessionLost => {
                self.count("ended_twice", 1);
                json!({"answer": "SESSION_LOST"})
            }
            ReleaseStatus::Unknown => {
                self.count("unknown", 1);
                json!({"answer": "UNKNOWN"})
            }
            ReleaseStatus::OtherBoot => {
                self.count("unknown", 1);
                json!({"answer": "OTHER_BOOT"})
            }
            other => panic!("unexpected {other:?}"),
        }
    }

    fn renew(&mut self, args: &Value) -> Value {
        let (id, ttl) = (self.id(args), duration(&args["ttl_ms"]));
        match self.keeper.renew(id, "h", ttl, self.now) {
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
        let rule = rule(name, &args["limit"]);
        let limit = args["limit"].as_u64().unwrap();
        self.rules.insert(name.to_owned(), rule);
        self.keeper.reload(&self.rules, self.now);
        let in_flight = self.keeper.in_flight(key(name), self.now);
        let remaining = limit.saturating_sub(in_flight);
        let state = json!({"limit": limit, "in_flight": in_flight, "remaining": remaining});
        json!({"answer": "LIMIT_SET", "items": {name: state}})
    }

    fn disconnect(&mut self, args: &Value) -> Value {
        let session = args["session"].as_str().unwrap();
        let freed = self.keeper.disconnect(session, self.now);
        self.count("session_lost", freed.len() as u64);
        let freed: Vec<&str> = freed.into_iter().map(|id| self.symbol(id)).collect();
        json!({"answer": "DISCONNECTED", "freed": freed})
    }

    fn restart(&mut self) -> Value {
        self.boot += 1;
        self.keeper.restart(&self.rules, self.now);
        json!({"answer": "RESTARTED", "boot": self.boot})
    }
}

fn states(args: &Value, answer: &Answer) -> Value {
    let names = args["items"].as_array().unwrap().iter();
    let names = names.map(|item| item["key"].as_str().unwrap());
    let state = |(name, state): (&str, &ItemState)| {
        let state = json!({"limit": state.limit, "in_flight": state.in_flight,
                           "remaining": state.remaining});
        (name.to_owned(), state)
    };
    Value::Object(names.zip(&answer.items).map(state).collect())
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
pub(crate) fn agree(got: &Value, expected: &Value) -> bool {
    match (got, expected) {
        (Value::Object(got), Value::Object(expected)) => {
            let same = |(name, value): (&String, &Value)| {
                got.get(name).is_some_and(|got| agree(got, value))
            };
            got.len() == expected.len() && expected.iter().all(same)
        }
        (Value::Number(got), Value::Number(expected)) => {
            (got.as_f64().unwrap() - expected.as_f64().unwrap()).abs() <= 0.1
        }
        _ => got == expected,
    }
}
