//! The golden trace of the lease protocol, `tests/cases/lease-trace.yaml`, over the script.
//!
//! Its last three steps restart the server: leases in a shared store survive that, so what follows
//! comes out otherwise, as told at [`AFTER_RESTART`].

use serde_json::json;

use super::{DOMAIN, Fake, ask_script, id};
use crate::{
    model::{
        key::CounterKey,
        lease::{EndedBy, LeaseId, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    rules::OnStoreFailure,
    store::{
        fleet::Request,
        lease::{Answer, Ask, Release},
        redis::lease::{Message, Standing, count, releases, renewals, standings},
    },
};

#[path = "../../../../tests/suite/leases/golden.rs"]
mod golden;
#[path = "../../../../tests/suite/yaml.rs"]
mod yaml;

use golden::{Keeper, Rules, Trace, agree};

/// Whom the leases of session s1 follow.
const OWNER: &str = "s1";

/// What the steps after the restart answer here: the lease is still there to be released (in one
/// process it is of another boot), and its request is known to have ended (there it is granted).
const AFTER_RESTART: [&str; 3] = ["RESTARTED", "RELEASED", "ENDED"];

struct Script {
    fake: Fake,
    session: Vec<LeaseId>,
    asked: u64,
}

impl Script {
    fn standing(&self, key: CounterKey, now: Timestamp) -> Option<Standing> {
        let answer = self.fake.run(&Message::peek(&[key]), now);
        standings(answer).unwrap()[0]
    }
}

impl Keeper for Script {
    fn acquire(&mut self, ask: Ask<'_>, session: Option<&str>, now: Timestamp) -> Answer {
        let request = Request::new(
            &ask,
            [].into_iter().collect(),
            OnStoreFailure::Deny,
            Span::MAX,
        );
        let owner = session.map_or("", |_| OWNER);
        self.asked += 1;
        let ids = [id(self.asked)];
        let (mut answer, _) = ask_script(&self.fake, &request.unwrap(), &ids, owner, now).unwrap();
        if session.is_some() && answer.leases.first() == ids.first() {
            self.session.push(ids[0]);
            // A lease of a session is kept alive by its process, whatever its TTL.
            answer.expires_in = ask.ttl.unwrap();
        }
        answer
    }

    fn release(&mut self, release: &Release<'_>, now: Timestamp) -> ReleaseStatus {
        let answer = self.fake.run(&Message::release(&[*release]), now);
        releases(answer).unwrap().0[0]
    }

    fn renew(&mut self, id: LeaseId, holder: &str, ttl: Span, now: Timestamp) -> RenewStatus {
        let message = Message::renew(&[(id, Some(holder), Some(ttl))]);
        renewals(self.fake.run(&message, now)).unwrap()[0]
    }

    /// Each request brings its rules.
    fn reload(&mut self, _: &Rules, _: Timestamp) {}

    fn disconnect(&mut self, _: &str, now: Timestamp) -> Vec<LeaseId> {
        let leases = std::mem::take(&mut self.session);
        let message = Message::leave(OWNER, EndedBy::SessionLost, &leases);
        let ended = count(&self.fake.run(&message, now)).unwrap();
        assert_eq!(ended, leases.len() as u64);
        leases
    }

    fn restart(&mut self, _: &Rules, _: Timestamp) {}

    fn in_flight(&self, key: CounterKey, now: Timestamp) -> u64 {
        let standing = self.standing(key, now);
        standing.map_or(0, |standing| standing.in_flight)
    }

    fn mean_hold(&self, key: CounterKey, now: Timestamp) -> Option<f64> {
        let standing = self.standing(key, now);
        standing.map(|standing| standing.mean_hold)
    }

    fn unknown(&self) -> LeaseId {
        id(99)
    }
}

#[test]
fn the_golden_trace_over_the_script() {
    assert_eq!(DOMAIN, "twin");
    let file = yaml::read(include_str!("../../../../tests/cases/lease-trace.yaml"));
    let script = Script {
        fake: Fake::new(),
        session: Vec::new(),
        asked: 0,
    };
    let start = Timestamp::from_secs(1_800_000_000);
    let mut trace = Trace::new(&file["config"], script, start);
    let steps = file["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 32);
    let (steps, after_restart) = steps.split_at(29);
    for step in steps {
        let answer = trace.step(step);
        assert!(
            agree(&answer, &step["expect"]),
            "got {answer}, expected in {step}"
        );
        trace.check_in_flight(&step["in_flight_after"], step);
    }
    for (step, expected) in after_restart.iter().zip(AFTER_RESTART) {
        assert_eq!(trace.step(step)["answer"], expected, "{step}");
    }
    // Those of the trace, but for its last two steps.
    let counters = json!({"granted": 7, "refused": 4, "replayed": 1, "released": 4, "late": 1,
                          "ended_twice": 2, "unknown": 1, "session_lost": 2});
    assert_eq!(json!(trace.counters), counters);
}
