//! The golden trace of the lease protocol over the lease book, step by step.

use std::collections::BTreeMap;

use porteiro::{
    model::{
        key::CounterKey,
        lease::{LeaseId, ReleaseStatus, RenewStatus},
        time::{Span, Timestamp},
    },
    store::lease::{Answer, Ask, Bounds, Identity, LeaseBook, Release, Reply, Saved, Stream},
};
use serde_json::json;

use super::golden::{Keeper, Rules, Trace, agree, key};
use crate::yaml;

struct InProcess {
    book: LeaseBook,
    boot: u32,
    sessions: BTreeMap<String, Stream>,
    /// Leases that expired in books before this one.
    expired: u64,
}

fn identity(boot: u32) -> Identity {
    Identity { boot, book: 0 }
}

impl InProcess {
    fn new() -> Self {
        Self {
            book: LeaseBook::new(identity(1), Bounds::default(), [1; 32], Timestamp::ZERO),
            boot: 1,
            sessions: BTreeMap::new(),
            expired: 0,
        }
    }

    fn live(&self, now: Timestamp) -> Vec<LeaseId> {
        let keys = ["svc", "t/a", "t/b"].map(key);
        let leases = keys.iter().flat_map(|key| self.book.leases(*key, 100, now));
        let mut ids: Vec<LeaseId> = leases.map(|lease| lease.id).collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    fn expired(&self) -> u64 {
        self.expired + self.book.totals().ends.get("expired")
    }
}

impl Keeper for InProcess {
    fn acquire(&mut self, ask: Ask<'_>, session: Option<&str>, now: Timestamp) -> Answer {
        let session = session.map(|name| {
            let opened = || self.book.open_session(Span::ZERO, now).stream;
            let stream = self.sessions.entry(name.to_owned()).or_insert_with(opened);
            stream.session
        });
        let Reply::Now(answer) = self.book.acquire(&Ask { session, ..ask }, now).unwrap() else {
            panic!("nobody waits here");
        };
        assert!(answer.leases.iter().all(|id| id.boot <= self.boot));
        *answer
    }

    fn release(&mut self, release: &Release<'_>, now: Timestamp) -> ReleaseStatus {
        self.book.release(release, now)
    }

    fn renew(&mut self, id: LeaseId, holder: &str, ttl: Span, now: Timestamp) -> RenewStatus {
        self.book.renew(&id, Some(holder), Some(ttl), now)
    }

    fn reload(&mut self, rules: &Rules, now: Timestamp) {
        self.book.reload(|path| rules.get(path).cloned(), now);
    }

    fn disconnect(&mut self, session: &str, now: Timestamp) -> Vec<LeaseId> {
        let mut freed = self.live(now);
        let stream = self.sessions.remove(session).unwrap();
        self.book.lose_session(stream, now);
        let live = self.live(now);
        freed.retain(|id| !live.contains(id));
        assert_eq!(
            self.book.totals().ends.get("session_lost"),
            freed.len() as u64
        );
        freed
    }

    fn restart(&mut self, rules: &Rules, now: Timestamp) {
        self.boot += 1;
        self.expired = self.expired();
        // Mode `forget`.
        let saved = Saved {
            leases: Vec::new(),
            ..self.book.save(now)
        };
        self.book = LeaseBook::reopen(
            identity(self.boot),
            Bounds::default(),
            [2; 32],
            now,
            &saved,
            Span::ZERO,
            |path| rules.get(path).cloned(),
        );
    }

    fn in_flight(&self, key: CounterKey, now: Timestamp) -> u64 {
        let view = self.book.peek(key, now);
        view.map_or(0, |view| view.in_flight)
    }

    fn mean_hold(&self, key: CounterKey, _: Timestamp) -> Option<f64> {
        self.book.finished_hold(key)
    }

    fn unknown(&self) -> LeaseId {
        LeaseId {
            boot: self.boot,
            book: 0,
            sequence: 99,
            secret: 4,
        }
    }
}

#[test]
fn the_golden_trace_step_by_step() {
    let file = yaml::read(include_str!("../../cases/lease-trace.yaml"));
    let mut trace = Trace::new(&file["config"], InProcess::new(), Timestamp::ZERO);
    let steps = file["steps"].as_array().unwrap();
    assert_eq!(steps.len(), 32);
    for step in steps {
        let answer = trace.step(step);
        assert!(
            agree(&answer, &step["expect"]),
            "got {answer}, expected in {step}"
        );
        trace.check_in_flight(&step["in_flight_after"], step);
    }
    let last = &file["final"];
    trace.check_in_flight(&last["in_flight"], last);
    let live = trace.keeper.live(trace.now);
    let live: Vec<&str> = live.into_iter().map(|id| trace.symbol(id)).collect();
    assert_eq!(json!(live), last["live_leases"]);
    trace.count("expired", trace.keeper.expired());
    assert_eq!(json!(trace.counters), last["counters"]);
    for (name, mean) in last["mean_hold_ms"].as_object().unwrap() {
        let off = trace.mean_hold(name) - mean.as_f64().unwrap();
        assert!(off.abs() < 0.1, "{name}");
    }
    for (name, limit) in last["limits"].as_object().unwrap() {
        let view = trace.keeper.book.peek(key(name), trace.now).unwrap();
        assert_eq!(json!(view.limit), *limit, "{name}");
    }
}
