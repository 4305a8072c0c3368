//! The state file: whatever it says, with a checksum that is right.

use std::io::Cursor;

use porteiro::{
    api::{
        bounds::Bounds,
        envoy_rls::{AnswerOptions, RateLimit},
    },
    engine::Engine,
    model::{
        key::KeySecret,
        time::{ManualClock, Span, Timestamp},
    },
    proto::envoy::{
        extensions::common::ratelimit::v3::{RateLimitDescriptor, rate_limit_descriptor::Entry},
        service::ratelimit::v3::RateLimitRequest,
    },
    store::{
        Store,
        memory::MemoryStore,
        state::{self, Broken, Restored, Snapshot},
    },
};

use super::{OPTIONS, memory, now, rules};

/// When the life begins that reads the file. 2023-11-14T22:13:20Z.
pub(crate) const START: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Every rule that remembers something is asked, with these.
const ASKED: [(&str, &str); 7] = [
    ("user", "b"),
    ("user", "a"),
    ("path", "/x"),
    ("ip", "10.1.2.3"),
    ("calendar", "x"),
    ("lease_id", "one"),
    ("lease_id", "two"),
];

/// A life of the server.
pub(crate) struct Life {
    engine: std::sync::Arc<Engine>,
    service: RateLimit,
    clock: ManualClock,
}

impl Life {
    /// Begins on `memory` with what was left by the life before.
    pub(crate) fn begin(memory: MemoryStore, secret: KeySecret, left: Option<Restored>) -> Self {
        let clock = ManualClock::at(START);
        let mut engine = Engine::new(clock.clock(), secret.hasher(), Store::from(memory), OPTIONS);
        if let Some(left) = left {
            engine.follow(left);
        }
        engine.install(rules());
        let engine = std::sync::Arc::new(engine);
        let service = RateLimit::new(engine.clone(), Bounds::default(), AnswerOptions::default());
        Self {
            engine,
            service,
            clock,
        }
    }

    /// Asks for everything, or gives it back.
    pub(crate) fn ask(&self, hits: u64, back: bool) {
        for (key, value) in ASKED {
            let request = RateLimitRequest {
                domain: "d".into(),
                descriptors: vec![RateLimitDescriptor {
                    entries: vec![Entry {
                        key: key.into(),
                        value: value.into(),
                    }],
                    hits_addend: Some(hits),
                    is_negative_hits: back,
                    ..RateLimitDescriptor::default()
                }],
                ..RateLimitRequest::default()
            };
            let answer = now(self.service.answer(&request, self.clock.now(), None));
            // RESOURCE_EXHAUSTED: a forged file may leave no number for another book of leases.
            let code = answer.map_or_else(|status| i32::from(status.code()), |_| 0);
            assert!([0, 8].contains(&code), "{key}: {code}");
        }
    }

    /// What it leaves.
    pub(crate) fn save(&self, secret: KeySecret, is_clean: bool) -> Vec<u8> {
        let now = self.clock.now();
        let snapshot = Snapshot {
            written: now.wall,
            is_clean,
            secret,
            leases: self.engine.leases().save(now),
        };
        let past = || self.engine.installed().rules().past();
        state::write(Vec::new(), &snapshot, self.engine.store().memory(), past)
            .expect("memory does not fail")
    }
}

/// Bytes at the end of a state file that say that it is whole.
pub(crate) const TRAILER: usize = 24;

/// Reads a whole state file at the time of `START`.
pub(crate) fn read(file: &[u8], memory: &MemoryStore) -> Result<Restored, Broken> {
    state::read_verified(Cursor::new(file), memory, START).expect("memory does not fail")
}

/// Whether the numbers of grants can grow as they do and be read again. Larger ones are refused, and
/// nobody ever gets there by granting.
fn has_room_for_grants(left: &Restored) -> bool {
    let leases = &left.snapshot.leases;
    let books = leases.books.iter().map(|book| &book.saved);
    let numbers = books.flat_map(|saved| [saved.sequence, saved.fence]);
    numbers.chain([leases.fence]).all(|number| number < 1 << 61)
}

/// A state file without its trailer: read, lived with, written and read again.
pub(crate) fn state(data: &[u8]) {
    let memory = memory();
    let Ok(left) = read(&state::sealed(data.to_vec()), &memory) else {
        return;
    };
    if !has_room_for_grants(&left) {
        return;
    }
    let secret = left.snapshot.secret;
    let life = Life::begin(memory, secret, Some(left));
    for pause in [0, 1, 90, 4_000, 100_000_000] {
        life.clock.advance(Span::from_secs(pause));
        let at = life.clock.now();
        life.engine.leases().turn(at);
        life.ask(1, false);
        life.ask(2, true);
        let written = Cursor::new(life.save(secret, pause == 0));
        let again = state::read_verified(written, &self::memory(), at.wall);
        let again = again.expect("memory does not fail").expect("ours");
        assert_eq!(again.snapshot.secret, secret);
    }
}
