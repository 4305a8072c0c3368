//! The golden trace of the lease protocol, `tests/cases/lease-trace.yaml`, over the script.
//!
//! Its last three steps restart the server: leases in a shared store survive that, so what follows
//! comes out otherwise, as told at [`AFTER_RESTART`].

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{DOMAIN, Fake, ask_script, id};
use crate::{
    model::{
        key::CounterKey,
        lease::{Decision, EndedBy, Holder, LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    rules::{OnStoreFailure, concurrency::ConcurrencyRule},
    store::{
        fleet::Request,
        lease::{Answer, Ask, Item, ItemState, Release},
        redis::lease::{Message, count, releases, renewals, standings},
    },
};

#[path = "../../../../tests/suite/yaml.rs"]
mod yaml;

/// Whom the leases of session s1 follow.
const OWNER: &str = "s1";

/// What the steps after the restart answer here: the lease is still there to be released (in one
/// process it is of another boot), and its request is known to have ended (there it is granted).
const AFTER_RESTART: [&str; 3] = ["RESTARTED", "RELEASED", "ENDED"];

struct Trace {
    fake: Fake,
    now: Timestamp,
    limits: BTreeMap<String, u64>,
    ids: BTreeMap<String, LeaseId>,
    session: Vec<LeaseId>,
    granted: u64,
    counters: BTreeMap<&'static str, u64>,
}

fn key(name: &str) -> CounterKey {
    let known = ["svc", "t/a", "t/b", "nope"];
    let place = known.iter().position(|known| *known == name).unwrap();
    CounterKey::from_bits(u128::try_from(place).unwrap() + 1)
}

fn duration(millis: &Value) -> Span {
    Span::from_millis(millis.as_u64().unwrap())
}

fn whole_millis(span: Span) -> u64 {
    assert_eq!(span.as_nanos() % 1_000_000, 0, "{span:?}");
    span.as_millis_up()
}

fn ended_by(by: EndedBy) -> &'static str {
    match by {
        EndedBy::Released => "RELEASED",
        EndedBy::Expired => "EXPIRED",
        EndedBy::SessionLost => "SESSION_LOST",
        EndedBy::Revoked => "REVOKED",
    }
}

/// Equal, numbers within 0.1 where the trace gives a fraction.
fn agree(got: &Value, expected: &Value) -> bool {
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

impl Trace {
    fn count(&mut self, name: &'static str) {
        *self.counters.entry(name).or_default() += 1;
    }

    fn rule(&self, name: &str) -> Option<ConcurrencyRule> {
        let mut rule = ConcurrencyRule::fixed(name, *self.limits.get(name)?);
        rule.estimates.exposure = false;
        rule.hints.booking = false;
        rule.hints.jitter = 0.0;
        Some(rule)
    }

    fn items(&self, args: &Value) -> Vec<Item> {
        let item = |item: &Value| {
            let name = item["key"].as_str().unwrap();
            let permits = item["permits"].as_u64().unwrap();
            Item {
                key: key(name),
                rule: self.rule(name).map(Into::into),
                permits,
                least: permits,
            }
        };
        args["items"].as_array().unwrap().iter().map(item).collect()
    }

    fn symbol(&self, id: LeaseId) -> &str {
        self.ids.iter().find(|(_, known)| **known == id).unwrap().0
    }

    fn id(&self, args: &Value) -> LeaseId {
        let symbol = args["lease"].as_str().unwrap();
        self.ids.get(symbol).copied().unwrap_or_else(|| id(99))
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
        let request = Request::new(
            &ask,
            [].into_iter().collect(),
            OnStoreFailure::Deny,
            Span::MAX,
        );
        let owner = if args["session"].is_null() { "" } else { OWNER };
        let ids = [id(self.granted + 1)];
        let (answer, _) = ask_script(&self.fake, &request.unwrap(), &ids, owner, self.now).unwrap();
        let name = |index: usize| args["items"][index]["key"].clone();
        match answer.decision {
            Decision::Granted => {
                self.granted += 1;
                self.count("granted");
                let symbol = format!("1-{}", self.granted);
                self.ids.insert(symbol.clone(), answer.leases[0]);
                if !owner.is_empty() {
                    self.session.push(answer.leases[0]);
                }
                // A lease of a session is kept alive by its process, whatever its TTL.
                let life = if owner.is_empty() {
                    whole_millis(answer.expires_in)
                } else {
                    args["ttl_ms"].as_u64().unwrap()
                };
                json!({"answer": "GRANTED", "lease": symbol, "items": states(args, &answer),
                       "expires_in_ms": life})
            }
            Decision::Replayed => {
                self.count("replayed");
                json!({"answer": "REPLAYED", "lease": self.symbol(answer.leases[0]),
                       "expires_in_ms": whole_millis(answer.expires_in),
                       "items": states(args, &answer)})
            }
            Decision::Refused => {
                self.count("refused");
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
        let answer = self.fake.run(&Message::release(&[release]), self.now);
        let (statuses, _) = releases(answer).unwrap();
        match statuses[0] {
            ReleaseStatus::Released { held } => {
                self.count("released");
                let names = expect["mean_hold_ms"].as_object();
                let means: BTreeMap<&str, f64> = names
                    .into_iter()
                    .flat_map(|names| names.keys())
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
            other => panic!("unexpected {other:?}"),
        }
    }

    fn renew(&self, args: &Value) -> Value {
        let renewal = (self.id(args), Some("h"), Some(duration(&args["ttl_ms"])));
        let answer = self.fake.run(&Message::renew(&[renewal]), self.now);
        match renewals(answer).unwrap()[0] {
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
        let limit = args["limit"].as_u64().unwrap();
        self.limits.insert(name.to_owned(), limit);
        let in_flight = self.in_flight(name);
        let remaining = limit.saturating_sub(in_flight);
        let state = json!({"limit": limit, "in_flight": in_flight, "remaining": remaining});
        json!({"answer": "LIMIT_SET", "items": {name: state}})
    }

    fn disconnect(&mut self) -> Value {
        let leases = std::mem::take(&mut self.session);
        let message = Message::leave(OWNER, EndedBy::SessionLost, &leases);
        let ended = count(&self.fake.run(&message, self.now)).unwrap();
        assert_eq!(ended, leases.len() as u64);
        *self.counters.entry("session_lost").or_default() += ended;
        let freed: Vec<&str> = leases.iter().map(|id| self.symbol(*id)).collect();
        json!({"answer": "DISCONNECTED", "freed": freed})
    }

    fn standing(&self, name: &str) -> (u64, f64) {
        let answer = self.fake.run(&Message::peek(&[key(name)]), self.now);
        let standing = standings(answer).unwrap()[0];
        standing.map_or((0, 1.0), |standing| {
            (standing.in_flight, standing.mean_hold)
        })
    }

    fn in_flight(&self, name: &str) -> u64 {
        self.standing(name).0
    }

    fn mean_hold(&self, name: &str) -> f64 {
        self.standing(name).1 * 1e3
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

#[test]
fn the_golden_trace_over_the_script() {
    assert_eq!(DOMAIN, "twin");
    let file = yaml::read(include_str!("../../../../tests/cases/lease-trace.yaml"));
    let limits = file["config"]["limits"].as_object().unwrap();
    let mut trace = Trace {
        fake: Fake::new(),
        now: Timestamp::ZERO,
        limits: limits
            .iter()
            .map(|(name, limit)| (name.clone(), limit.as_u64().unwrap()))
            .collect(),
        ids: BTreeMap::new(),
        session: Vec::new(),
        granted: 0,
        counters: BTreeMap::new(),
    };
    let steps = file["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 32);
    let start = Timestamp::from_secs(1_800_000_000);
    for (place, step) in steps.iter().enumerate() {
        trace.now = start + duration(&step["at_ms"]);
        let args = &step["args"];
        let answer = match step["action"].as_str().unwrap() {
            "acquire" => trace.acquire(args),
            "release" => trace.release(args, &step["expect"]),
            "renew" => trace.renew(args),
            "set_limit" => trace.set_limit(args),
            "disconnect" => trace.disconnect(),
            "restart" => json!({"answer": "RESTARTED"}),
            other => panic!("action {other}"),
        };
        if let Some(place) = place.checked_sub(29) {
            assert_eq!(answer["answer"], AFTER_RESTART[place], "{step}");
            continue;
        }
        assert!(
            agree(&answer, &step["expect"]),
            "got {answer}, expected in {step}"
        );
        for (name, count) in step["in_flight_after"].as_object().unwrap() {
            assert_eq!(
                trace.in_flight(name),
                count.as_u64().unwrap(),
                "{name} after {step}"
            );
        }
    }
    // Those of the trace, but for its last two steps.
    let counters = json!({"granted": 7, "refused": 4, "replayed": 1, "released": 4, "late": 1,
                          "ended_twice": 2, "unknown": 1, "session_lost": 2});
    assert_eq!(json!(trace.counters), counters);
}
