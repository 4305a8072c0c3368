use std::io::Cursor;

use proptest::{collection::vec, prelude::*};

use super::*;
use crate::{
    model::{
        key::{CounterKey, KeySecret},
        lease::LeaseId,
        limit::{Algorithm, Anchor, Calendar, CalendarUnit},
        time::Span,
    },
    rules::{limit::Limit, testing::limit},
    store::{
        charges::{Charge, Charges, Outcomes},
        lease::{Naming, SavedItem, SavedLease},
        memory::{MemoryOptions, MemoryStore},
    },
};

/// 2023-11-14T00:00:00Z.
const START: Timestamp = Timestamp::from_secs(1_699_920_000);
const HOUR: Span = Span::from_secs(3_600);

fn snapshot(books: Vec<SavedBook>) -> Snapshot {
    Snapshot {
        written: START,
        is_clean: true,
        secret: KeySecret::new(*b"0123456789abcdef"),
        leases: SavedLeases {
            boot: 7,
            fence: 1 << 40,
            unknown_for: Span::from_secs(9),
            books,
        },
    }
}

fn bytes(snapshot: &Snapshot, memory: &MemoryStore, past: Vec<Past>) -> Vec<u8> {
    write(Vec::new(), snapshot, memory, || past).unwrap()
}

fn read_back(bytes: &[u8], now: Timestamp) -> Result<(Restored, MemoryStore), Broken> {
    let memory = MemoryStore::new(MemoryOptions::default());
    let restored = read_verified(Cursor::new(bytes), &memory, now).unwrap()?;
    Ok((restored, memory))
}

fn one(store: &MemoryStore, key: u128, limit: &Limit, cost: u64, now: Timestamp) -> Outcomes {
    let charge = Charge::new(CounterKey::from_bits(key), limit, cost);
    let charges = Charges::from(charge);
    store.decide(&charges, now)
}

fn algorithms() -> Vec<Algorithm> {
    let calendar = Calendar {
        unit: CalendarUnit::Day,
        zone: jiff::tz::TimeZone::get("Europe/Lisbon").unwrap(),
        zone_name: "Europe/Lisbon".into(),
    };
    vec![
        Algorithm::FixedWindow(Anchor::Clock),
        Algorithm::FixedWindow(Anchor::FirstHit),
        Algorithm::FixedWindow(Anchor::LastHit),
        Algorithm::FixedWindow(Anchor::Calendar(calendar)),
        Algorithm::SlidingLog,
        Algorithm::SlidingWindow,
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket,
        Algorithm::LeakyQueue,
    ]
}

fn past(limit: &Limit) -> Past {
    Past {
        domain: "d".into(),
        path: "d.k".into(),
        discriminator: 3,
        version: 2,
        algorithm: limit.algorithm.clone(),
        quota: limit.quota,
        history: [(1, Algorithm::SlidingLog, limit.quota)].into(),
    }
}

fn lease(sequence: u64) -> SavedLease {
    SavedLease {
        id: LeaseId {
            boot: 7,
            book: 1,
            sequence,
            secret: 99,
        },
        holder: "worker".into(),
        instance: "".into(),
        request: Some(b"once".to_vec()),
        naming: Naming::Named(CounterKey::from_bits(1 << 100)),
        age: Span::from_secs(1),
        remaining: Span::from_secs(2),
        lifetime: Span::from_secs(3),
        items: vec![SavedItem {
            key: CounterKey::from_bits(12),
            path: "d.gpu".into(),
            permits: 4,
            asked: 5,
        }],
    }
}

fn book() -> SavedBook {
    SavedBook {
        domain: "d".into(),
        number: 1,
        saved: Saved {
            sequence: 8,
            fence: 1_008,
            leases: vec![lease(6), lease(8)],
            holds: vec![(CounterKey::from_bits(12), "d.gpu".into(), 0.25)],
        },
    }
}

/// Something of everything, as a file.
fn small_file() -> Vec<u8> {
    let memory = MemoryStore::new(MemoryOptions::default());
    let daily = limit(Algorithm::FixedWindow(Anchor::Clock), 10, HOUR);
    let log = limit(Algorithm::SlidingLog, 10, HOUR);
    one(&memory, 1 << 77, &daily, 3, START);
    one(&memory, 1 << 78, &log, 3, START);
    bytes(&snapshot(vec![book()]), &memory, vec![past(&daily)])
}

#[test]
fn everything_comes_back() {
    let all: Vec<Past> = algorithms()
        .into_iter()
        .map(|algorithm| past(&limit(algorithm, 10, HOUR)))
        .collect();
    let empty = MemoryStore::new(MemoryOptions::default());
    let bytes = bytes(&snapshot(vec![book()]), &empty, all.clone());
    let (restored, _) = read_back(&bytes, START).unwrap();
    let expected = snapshot(vec![book()]);
    assert_eq!(restored.past, all);
    assert_eq!(restored.counters, 0);
    assert_eq!(restored.snapshot.leases, expected.leases);
    assert_eq!(restored.snapshot.secret, expected.secret);
    assert_eq!(restored.snapshot.written, START);
    assert!(restored.snapshot.is_clean);
}

#[test]
fn every_changed_byte_is_refused() {
    let whole = small_file();
    assert!(read_back(&whole, START).is_ok());
    for place in 0..whole.len() {
        for flip in [1, 0x80, 0xff] {
            let mut changed = whole.clone();
            changed[place] ^= flip;
            assert!(read_back(&changed, START).is_err(), "byte {place} ^ {flip}");
        }
    }
}

#[test]
fn every_cut_and_every_tail_is_refused() {
    let whole = small_file();
    for length in 0..whole.len() {
        assert!(read_back(&whole[..length], START).is_err(), "{length}");
    }
    let mut longer = whole.clone();
    longer.push(0);
    assert!(matches!(read_back(&longer, START), Err(Broken::Damaged)));
    longer.extend_from_slice(&whole);
    assert!(matches!(read_back(&longer, START), Err(Broken::Damaged)));
}

#[test]
fn what_is_wrong_is_said() {
    let foreign = read_back(b"domain: d\ndescriptors: []\n", START).unwrap_err();
    assert_eq!(foreign.to_string(), "it is not a state file of porteiro");
    let mut newer = small_file();
    newer[8] = 2;
    let newer = read_back(&newer, START).unwrap_err();
    assert_eq!(
        newer.to_string(),
        "it has format 2, this program reads format 1"
    );
}

#[test]
fn what_has_ended_is_dropped_and_what_is_short_was_never_written() {
    let memory = MemoryStore::new(MemoryOptions::default());
    let minute = limit(
        Algorithm::FixedWindow(Anchor::Clock),
        10,
        Span::from_secs(60),
    );
    let hour = limit(Algorithm::FixedWindow(Anchor::Clock), 10, HOUR);
    let bucket = limit(Algorithm::TokenBucket, 10, HOUR);
    one(&memory, 1 << 70, &minute, 1, START);
    one(&memory, 1 << 71, &hour, 1, START);
    one(&memory, 1 << 72, &bucket, 10, START);
    let bytes = bytes(&snapshot(Vec::new()), &memory, Vec::new());
    let counters = |now| read_back(&bytes, now).unwrap().0.counters;
    assert_eq!(counters(START), 2);
    assert_eq!(counters(START + HOUR), 0);
    // A clock that stepped back: nothing has ended.
    assert_eq!(counters(START - HOUR - HOUR), 2);
}

#[test]
fn a_list_as_long_as_can_be_told_takes_no_memory() {
    let mut part = Vec::new();
    part.put_u32(MAX_LIST);
    let mut input = Input::new(&part[..]);
    assert!(list(&mut input, books::book).is_err());
}

#[test]
fn leases_that_no_book_can_have_written_are_refused() {
    type Change = (&'static str, fn(&mut Saved));
    let changes: [Change; 8] = [
        ("the number of grants", |saved| saved.sequence = u64::MAX),
        ("the number of grants", |saved| saved.fence = u64::MAX),
        ("the order of leases", |saved| saved.sequence = 7),
        ("the order of leases", |saved| saved.leases.reverse()),
        ("the order of leases", |saved| saved.leases[1] = lease(6)),
        ("a key of a lease", |saved| {
            let again = saved.leases[0].items[0].clone();
            saved.leases[0].items.push(again);
        }),
        ("the permits of a lease", |saved| {
            saved.leases[0].items[0].permits = u64::MAX;
        }),
        ("the time that a permit is held", |saved| {
            saved.holds[0].2 = f64::NAN;
        }),
    ];
    let memory = MemoryStore::new(MemoryOptions::default());
    for (what, change) in changes {
        let mut book = book();
        change(&mut book.saved);
        let bytes = bytes(&snapshot(vec![book]), &memory, Vec::new());
        let error = read_back(&bytes, START).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("it cannot be read: {what} is not what it should be")
        );
    }
}

proptest! {
    /// Whatever was counted answers after a restart as it would have without one.
    #[test]
    fn counters_answer_as_if_nothing_had_happened(
        takes in vec((0..9_usize, 0_u128..40, 1..4_u64, 0..600_u64), 1..80),
        later in 0..7_200_u64,
    ) {
        let limits: Vec<Limit> = algorithms()
            .into_iter()
            .map(|algorithm| limit(algorithm, 10, HOUR))
            .collect();
        let key = |which: usize, n: u128| (which as u128) << 100 | n << 32 | n << 64;
        let memory = MemoryStore::new(MemoryOptions::default());
        let mut now = START;
        for (which, n, cost, pause) in &takes {
            now = now + Span::from_secs(*pause);
            one(&memory, key(*which, *n), &limits[*which], *cost, now);
        }
        let written = Snapshot { written: now, ..snapshot(Vec::new()) };
        let bytes = bytes(&written, &memory, Vec::new());
        let now = now + Span::from_secs(later);
        // Another number of shards.
        let other = MemoryStore::new(MemoryOptions {
            max_keys: 5_000.try_into().unwrap(),
            ..MemoryOptions::default()
        });
        let restored = read_verified(Cursor::new(&bytes), &other, now).unwrap().unwrap();
        prop_assert_eq!(restored.counters, other.len() as u64);
        for (which, limit) in limits.iter().enumerate() {
            for n in 0..40 {
                for cost in [0, 3, 1] {
                    prop_assert_eq!(
                        one(&other, key(which, n), limit, cost, now),
                        one(&memory, key(which, n), limit, cost, now)
                    );
                }
            }
        }
    }

    /// Forged bytes are refused or read, and what is read decides without a panic.
    #[test]
    fn forged_bytes_do_no_harm(
        place in 12_usize..600,
        bytes in vec(any::<u8>(), 1..24),
        at in any::<u64>(),
    ) {
        let mut forged = small_file();
        let end = forged.len() - wire::TRAILER;
        for (place, byte) in (place.min(end - 1)..end).zip(bytes) {
            forged[place] = byte;
        }
        forged.truncate(end);
        if let Ok((_, memory)) = read_back(&sealed(forged), START) {
            for algorithm in algorithms() {
                let limit = limit(algorithm, 10, HOUR);
                for bits in [77, 78] {
                    one(&memory, 1 << bits, &limit, 1, Timestamp::from_nanos(at));
                    one(&memory, 1 << bits, &limit, 1, START);
                }
            }
        }
    }
}

#[test]
fn a_file_is_of_one_process_and_of_its_owner() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state");
    let file = StateFile::take(&path).unwrap();
    assert!(matches!(StateFile::take(&path), Err(StateError::InUse(_))));
    let memory = MemoryStore::new(MemoryOptions::default());
    assert!(file.read(&memory, START).unwrap().is_none());
    // Left by a life that was killed, and readable by all.
    std::fs::write(folder.path().join("state.new"), "half").unwrap();
    file.write(&snapshot(Vec::new()), &memory, Vec::new)
        .unwrap();
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert!(file.read(&memory, START).unwrap().is_some());
    drop(file);
    assert!(StateFile::take(&path).is_ok());
}

#[test]
fn a_changed_limit_reads_what_the_life_before_wrote() {
    use crate::rules::{
        Rules, Stacking,
        testing::{edge, rule},
    };
    let rules = |units| {
        let limit = limit(Algorithm::TokenBucket, units, HOUR);
        Rules::new([edge(Stacking::Independent, vec![rule("k", vec![limit])])])
    };
    let limit_of = |rules: &Rules| rules.rules()[0].limits[0].clone();
    let before = rules(10).inheriting(&Rules::default());
    let memory = MemoryStore::new(MemoryOptions::default());
    one(&memory, 1 << 77, &limit_of(&before), 6, START);
    let bytes = bytes(&snapshot(Vec::new()), &memory, before.past());

    let (restored, memory) = read_back(&bytes, START).unwrap();
    let known = Rules::remembering(restored.past);
    let same = limit_of(&rules(10).inheriting(&known));
    assert_eq!(same.version, limit_of(&before).version);
    assert_eq!(one(&memory, 1 << 77, &same, 0, START)[0].used_before, 6);
    // Six are used, of how many ever. Read as a bucket of 20 the state would say 12.
    let other = limit_of(&rules(20).inheriting(&known));
    assert_eq!(one(&memory, 1 << 77, &other, 0, START)[0].used_before, 6);
    let third = rules(40).inheriting(&rules(20).inheriting(&known));
    let (_, memory) = read_back(&bytes, START).unwrap();
    let used = one(&memory, 1 << 77, &limit_of(&third), 0, START)[0].used_before;
    assert_eq!(used, 6);
}
