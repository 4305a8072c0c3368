//! A table beside a plain map over random histories, and what a lock is held for.

use std::{
    cell,
    collections::{HashMap, HashSet},
    io::Cursor,
};

use super::*;
use crate::{
    algorithm,
    model::limit::{Algorithm, Anchor, Quota, State},
    rules::testing::limit,
    store::{memory::MOST_SHARD_KEYS, memory::shard::Shard},
};

const START: Timestamp = Timestamp::from_secs(1_700_000_000);
const HOUR: Span = Span::from_secs(3_600);
const TAG: u8 = 1;
const NOBODY: CounterKey = CounterKey::from_bits(0);

#[test]
fn a_counter_takes_40_bytes() {
    assert_eq!(size_of::<Slot<State>>(), 40);
}

/// From the counter that is here, or from a new one.
fn take<C: Cell>(
    table: &mut Table<C>,
    charge: &Charge<'_>,
    now: Timestamp,
) -> Result<Outcome, New<C>> {
    if charge.cost == 0 {
        return Ok(table.look(table.find(charge.key), charge, now, 0));
    }
    if let Some(position) = table.find(charge.key) {
        return Ok(table.take(position, charge, now, false));
    }
    match New::take(charge, now, false) {
        Ok(new) => Err(new),
        Err(outcome) => Ok(outcome),
    }
}

/// A cheap source of numbers that look random.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb) % sides
    }
}

/// Keys as hashes are; or such that differ below the bits of a tag only.
fn key(n: u64, alike: bool) -> CounterKey {
    let spread = u128::from(n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
    CounterKey::from_bits(if alike { spread >> 24 } else { spread })
}

/// What is in a table, for comparison.
fn known(table: &Table<State>) -> HashMap<(u64, u32), State> {
    (0..table.len())
        .filter_map(|position| table.slots.get(position))
        .map(|slot| ((slot.key_high, slot.key_middle), slot.cell))
        .collect()
}

/// A snapshot under way: what may be in it by counter, and what must be.
#[derive(Default)]
struct Copying {
    bytes: Vec<u8>,
    walk: Option<Walk>,
    seen: HashMap<(u64, u32), Vec<State>>,
    there_throughout: HashSet<(u64, u32)>,
}

impl Copying {
    fn begin(model: &HashMap<(u64, u32), State>) -> Self {
        Self {
            walk: Some(Walk::default()),
            seen: model
                .iter()
                .map(|(key, cell)| (*key, vec![*cell]))
                .collect(),
            there_throughout: model.keys().copied().collect(),
            ..Self::default()
        }
    }

    /// Copies a part; at the end reads all of it back.
    fn go_on(&mut self, table: &Table<State>, now: Timestamp) {
        let Some(from) = self.walk else { return };
        // As full as a part can be with so few.
        let mut part = vec![0; PART - 40 * 37];
        let empty = part.len();
        self.walk = table.save(TAG, from, now, &mut part);
        self.bytes.extend_from_slice(&part[empty..]);
        if self.walk.is_some() {
            return;
        }
        let mut copy = Table::<State>::default();
        let mut input = Input::new(Cursor::new(&self.bytes));
        while input.u8().is_ok() {
            copy.restore(Saved::read(&mut input).unwrap());
        }
        let copied = known(&copy);
        for (key, cell) in &copied {
            assert!(self.seen[key].contains(cell));
        }
        for key in &self.there_throughout {
            assert!(copied.contains_key(key) || self.seen[key].iter().any(|c| c.until <= now));
        }
    }
}

/// Takes, gives back, forgets, sweeps, evicts and copies, beside a map that does the same.
#[test]
fn a_table_is_a_map_whatever_happens() {
    for seed in 0..12 {
        let mut dice = Dice(seed);
        let limit = limit(Algorithm::FixedWindow(Anchor::FirstHit), 10, HOUR);
        let (mut table, mut model) = (Table::<State>::default(), HashMap::new());
        let (mut sweep, mut copying) = (None, Copying::default());
        let callers = [20, 700, 3_000][usize::try_from(seed % 3).unwrap()];
        let mut now = START;
        for step in 0..12_000 {
            now = now + Span::from_millis(dice.roll(900));
            let caller = dice.roll(callers);
            let key = key(caller, seed % 4 == 3);
            let parts = split(key);
            let charge = Charge::new(key, &limit, dice.roll(3));
            let fresh = State::default();
            // Of every few thousand steps, most make the table grow, or most make it shrink.
            let grows = u64::is_multiple_of(step / 3_000, 2);
            match dice.roll(100) {
                0..60 if grows || caller.is_multiple_of(7) => {
                    let mut cell: State = *model.get(&parts).unwrap_or(&fresh);
                    cell.settle(None, &limit, now);
                    let told = cell.take(&limit, now, charge.cost, false);
                    let seen = match take(&mut table, &charge, now) {
                        Ok(outcome) => outcome,
                        Err(new) => table.insert(new),
                    };
                    assert_eq!(seen, told, "seed {seed} step {step}");
                    if model.contains_key(&parts) || cell.until > now {
                        model.insert(parts, cell);
                    }
                }
                60..70 => {
                    let seen = table.give_back(&charge, now);
                    let cell = model.get_mut(&parts).map(|cell| {
                        cell.settle(None, &limit, now);
                        algorithm::give_back(&limit.algorithm, limit.quota, cell, now, charge.cost);
                        *cell
                    });
                    let left = cell.unwrap_or(fresh).look(&limit, now, 0);
                    assert_eq!(seen.used_before, left.used_before);
                }
                70..80 => {
                    assert_eq!(table.reset(key), model.remove(&parts).is_some());
                    copying.there_throughout.remove(&parts);
                }
                80..84 => {
                    if let Some((_, position)) = table.least(NOBODY, now) {
                        let slot = table.slots.get(position).unwrap();
                        let parts = (slot.key_high, slot.key_middle);
                        assert!(model.remove(&parts).is_some());
                        copying.there_throughout.remove(&parts);
                        table.forget(position);
                    } else {
                        assert!(model.is_empty());
                    }
                }
                84..92 => {
                    sweep = match sweep {
                        Some(from) => table.sweep(from, now),
                        None => table.begin_sweep(now),
                    };
                    // What the sweep took had ended.
                    let left = known(&table);
                    model.retain(|key, cell| left.contains_key(key) || cell.until > now);
                }
                92..94 => copying.go_on(&table, now),
                94 if copying.walk.is_none() => copying = Copying::begin(&model),
                _ => assert_eq!(table.find(key).is_some(), model.contains_key(&parts)),
            }
            if let Some(cell) = model.get(&parts) {
                copying.seen.entry(parts).or_default().push(*cell);
            }
            assert_eq!(table.len(), model.len(), "seed {seed} step {step}");
            if step % 500 == 0 {
                assert_eq!(known(&table), model);
                for parts in model.keys() {
                    let position = table.position(*parts);
                    assert!(table.slots.get(position.unwrap()).unwrap().is(*parts));
                }
            }
        }
        while copying.walk.is_some() {
            copying.go_on(&table, now);
        }
        // All ends.
        let end = now + HOUR;
        let mut walk = table.begin_sweep(end);
        while let Some(from) = walk {
            walk = table.sweep(from, end);
        }
        assert_eq!((table.len(), table.bytes()), (0, 0));
    }
}

thread_local! {
    /// How many counters were looked at.
    static LOOKED: cell::Cell<usize> = const { cell::Cell::new(0) };
}

/// A counter that notes who looks at it.
#[derive(Clone, Debug, Default)]
struct Watched(State);

impl Cell for Watched {
    const GROWS: bool = false;

    fn table(_: &mut Shard) -> &mut Table<Self> {
        unreachable!("stands alone")
    }

    fn until(&self) -> Timestamp {
        LOOKED.set(LOOKED.get() + 1);
        self.0.until
    }

    fn settle(&mut self, old: Option<(&Algorithm, Quota)>, limit: &Limit, now: Timestamp) {
        self.0.settle(old, limit, now);
    }

    fn look(&self, limit: &Limit, now: Timestamp, cost: u64) -> Outcome {
        self.0.look(limit, now, cost)
    }

    fn take(&mut self, limit: &Limit, now: Timestamp, cost: u64, count_denied: bool) -> Outcome {
        self.0.take(limit, now, cost, count_denied)
    }

    fn give_back(&mut self, limit: &Limit, now: Timestamp, cost: u64) {
        self.0.give_back(limit, now, cost);
    }

    fn save(&self, out: &mut Vec<u8>) {
        self.0.save(out);
    }

    fn read<R: Read>(input: &mut Input<R>) -> Result<Self, Unreadable> {
        State::read(input).map(Self)
    }
}

fn looked_at<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LOOKED.set(0);
    let done = work();
    (done, LOOKED.get())
}

/// The bound that does not depend on the machine: in the largest shard there is, an insertion
/// looks at no other counter and at as many places of the index as make 64 KiB, a sweep at a
/// thousand counters per lock, an eviction at a sample.
#[test]
fn no_lock_is_held_for_more_than_a_bounded_number_of_steps() {
    let limit = limit(Algorithm::TokenBucket, 10, HOUR);
    let mut table = Table::<Watched>::default();
    for n in 0..u64::try_from(MOST_SHARD_KEYS).unwrap() {
        let charge = Charge::new(key(n, false), &limit, 1);
        let ((), looked) = looked_at(|| {
            let new = take(&mut table, &charge, START).unwrap_err();
            let _ = table.insert(new);
        });
        assert!(looked <= 2, "{looked}");
        assert!(table.index.places() <= 16_384);
    }
    assert_eq!(table.len(), MOST_SHARD_KEYS);
    let (least, looked) = looked_at(|| table.least(NOBODY, START));
    assert!(least.is_some() && looked <= SAMPLE);
    // A sweep that frees everything.
    let end = START + HOUR;
    let mut walk = table.begin_sweep(end);
    let mut holds = 0;
    while let Some(from) = walk {
        let before = table.len();
        let (next, looked) = looked_at(|| table.sweep(from, end));
        assert!(looked <= SWEEP && before - table.len() <= SWEEP);
        walk = next;
        holds += 1;
    }
    assert_eq!((table.len(), holds), (0, MOST_SHARD_KEYS / SWEEP));
}

/// Who is sampled does not depend on when it came: with as many evictions as counters, about as
/// many of the early ones go as of the late ones.
#[test]
fn samples_go_around() {
    let limit = limit(Algorithm::TokenBucket, 10, HOUR);
    let mut table = Table::<State>::default();
    for n in 0..4_096 {
        let charge = Charge::new(key(n, false), &limit, 1);
        let new = take(&mut table, &charge, START).unwrap_err();
        let _ = table.insert(new);
    }
    for _ in 0..4_096 / SAMPLE {
        let (_, position) = table.least(NOBODY, START).unwrap();
        table.forget(position);
    }
    let early = (0..2_048)
        .filter(|n| table.find(key(*n, false)).is_some())
        .count();
    let gone = 2_048 - early;
    assert!((24..=40).contains(&gone), "{gone} of 64");
}
