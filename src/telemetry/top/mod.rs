//! The heaviest and the most refused callers of a rule, over the last minutes.
//!
//! Each thread has sketches of its own, so that workers share no cache line, and they are put
//! together when somebody looks. Time is cut into turns of [`TURN`]; there are sketches for this
//! turn and for the one before, so that what is shown is between one and two turns old at most and
//! the bounds of [`sketch`] hold for it.
//!
//! Hits are sampled ([`sample`]): a thread counts the first requests of a second as they are, and
//! of the rest one in so many with so much more weight. The counts are then estimates: of n hits,
//! sampled one in m, the standard error is about √(n × m). Refusals are rarer and are all counted.
//!
//! Memory of a rule: [`ROOM`] × 4 places of less than 100 bytes and, where names may be known, as
//! many texts of [`MAX_NAME`] bytes, for every thread that decided a request of it.

pub mod sample;
pub mod sketch;

use self::sketch::{Counted, Sketch, merge};
use crate::{
    model::{
        key::CounterKey,
        time::{Span, Timestamp},
    },
    telemetry::stripe::PerThread,
};

/// Keys of a sketch.
pub const ROOM: usize = 64;

/// Longest name of a caller, in bytes; longer ones are cut.
pub const MAX_NAME: usize = 96;

/// What is shown covers this turn and the one before it.
pub const TURN: Span = Span::from_secs(150);

/// Of one rule.
#[derive(Debug)]
pub struct RuleTop {
    turns: PerThread<Option<Box<Turns>>>,
    since: Timestamp,
}

/// This turn and the one before it.
#[derive(Debug)]
struct Turns {
    /// Number of this turn.
    turn: u64,
    now: Pair,
    before: Pair,
}

#[derive(Debug)]
struct Pair {
    hits: Sketch,
    refused: Sketch,
}

/// What is known of a rule's callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// How long it was counted.
    pub span: Span,
    /// Everything that was asked for; an estimate when it was sampled.
    pub hits: u64,
    /// Everything that was refused.
    pub refused: u64,
    /// Those who asked most, first the most.
    pub heaviest: Vec<Counted>,
    /// Those who were refused most.
    pub most_refused: Vec<Counted>,
}

/// One request of one caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hit {
    /// The caller's counter.
    pub key: CounterKey,
    /// What was asked for, times what a sampled request stands for; 0 when it was not sampled.
    pub hits: u64,
    /// What was refused.
    pub refused: u64,
}

impl RuleTop {
    /// An empty one, on the steady line. It takes memory when there is something to count.
    pub fn new(since: Timestamp) -> Self {
        Self {
            turns: PerThread::default(),
            since,
        }
    }

    /// Counts a request. `name` writes what the caller is called, if anybody may know.
    pub fn add(&self, hit: Hit, now: Timestamp, name: impl Fn(&mut String)) {
        let mut mine = self.turns.mine().lock();
        let turns = mine.get_or_insert_with(|| Box::new(Turns::new(turn_of(now))));
        turns.go_on(turn_of(now));
        if hit.hits > 0 {
            turns.now.hits.add(hit.key, hit.hits, &name);
        }
        if hit.refused > 0 {
            turns.now.refused.add(hit.key, hit.refused, &name);
        }
    }

    /// What is known at `now`, at most so many callers of each kind.
    pub fn seen(&self, now: Timestamp, most: usize) -> Seen {
        let turn = turn_of(now);
        let (mut hits, mut refused) = (Vec::new(), Vec::new());
        for turns in self.turns.all() {
            let turns = turns.lock();
            let Some(turns) = turns.as_deref() else {
                continue;
            };
            for pair in turns.still_shown(turn) {
                hits.push(pair.hits.clone());
                refused.push(pair.refused.clone());
            }
        }
        let begin = Timestamp::from_nanos(turn.saturating_sub(1).saturating_mul(TURN.as_nanos()));
        let total = |sketches: &[Sketch]| {
            let totals = sketches.iter().map(Sketch::total);
            totals.fold(0, u64::saturating_add)
        };
        let first = |sketches: &[Sketch]| {
            let mut all = merge(sketches);
            all.truncate(most);
            all
        };
        Seen {
            span: now.since(begin.max(self.since)),
            hits: total(&hits),
            refused: total(&refused),
            heaviest: first(&hits),
            most_refused: first(&refused),
        }
    }
}

fn turn_of(now: Timestamp) -> u64 {
    now.as_nanos() / TURN.as_nanos()
}

impl Turns {
    fn new(turn: u64) -> Self {
        let pair = || Pair {
            hits: Sketch::new(ROOM),
            refused: Sketch::new(ROOM),
        };
        Self {
            turn,
            now: pair(),
            before: pair(),
        }
    }

    /// Makes `turn` the present one. A thread that looked at the clock a little earlier than
    /// another counts for the turn of the other.
    fn go_on(&mut self, turn: u64) {
        if turn <= self.turn {
            return;
        }
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
        if turn > self.turn + 1 {
            self.before.clear();
        }
        self.turn = turn;
    }

    /// Those of `turn` and of the one before it.
    fn still_shown(&self, turn: u64) -> impl Iterator<Item = &Pair> {
        let now = (turn <= self.turn + 1).then_some(&self.now);
        let before = (turn <= self.turn).then_some(&self.before);
        now.into_iter().chain(before)
    }
}

impl Pair {
    fn clear(&mut self) {
        self.hits.clear();
        self.refused.clear();
    }
}

/// Writes behind the end of a text as long as there is room within [`MAX_NAME`]; a longer one ends
/// with `…`.
#[derive(Debug)]
pub struct ShortName<'n>(&'n mut String);

impl<'n> ShortName<'n> {
    /// Gets the room that any name needs, once.
    pub fn new(name: &'n mut String) -> Self {
        name.reserve(MAX_NAME.saturating_sub(name.len()));
        Self(name)
    }
}

impl std::fmt::Write for ShortName<'_> {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        const CUT: char = '…';
        let most = MAX_NAME - CUT.len_utf8();
        let left = most.saturating_sub(self.0.len());
        if text.len() <= left {
            self.0.push_str(text);
            return Ok(());
        }
        if let Some(fitting) = text.get(..text.floor_char_boundary(left)) {
            self.0.push_str(fitting);
        }
        self.0.push(CUT);
        // There is no more to write.
        Err(std::fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use super::*;
    use crate::telemetry::stripe::STRIPES;

    fn hit(key: u128, hits: u64, refused: u64) -> Hit {
        Hit {
            key: CounterKey::from_bits(key << 64),
            hits,
            refused,
        }
    }

    fn hits(counted: &[Counted]) -> Vec<(u128, u64)> {
        let one = |c: &Counted| (c.key.bits() >> 64, c.hits);
        counted.iter().map(one).collect()
    }

    #[test]
    fn threads_are_put_together() {
        let top = RuleTop::new(Timestamp::from_secs(10));
        let now = Timestamp::from_secs(20);
        std::thread::scope(|scope| {
            for _ in 0..STRIPES * 2 {
                scope.spawn(|| {
                    for key in 0..3 {
                        top.add(hit(key, 1 + u64::from(key == 2), 0), now, |_| {});
                    }
                    top.add(hit(1, 0, 3), now, |name| name.push('x'));
                });
            }
        });
        let threads = 2 * STRIPES as u64;
        let seen = top.seen(now, 2);
        assert_eq!(seen.span, Span::from_secs(10));
        assert_eq!((seen.hits, seen.refused), (4 * threads, 3 * threads));
        assert_eq!(hits(&seen.heaviest), [(2, 2 * threads), (0, threads)]);
        assert_eq!(hits(&seen.most_refused), [(1, 3 * threads)]);
        assert_eq!(seen.most_refused[0].name, "x");
    }

    #[test]
    fn what_is_older_than_the_turn_before_is_forgotten() {
        let top = RuleTop::new(Timestamp::ZERO);
        let at = |turns: u64, secs: u64| {
            Timestamp::ZERO + TURN.saturating_mul(turns) + Span::from_secs(secs)
        };
        top.add(hit(1, 5, 1), at(0, 1), |_| {});
        top.add(hit(2, 3, 0), at(1, 1), |_| {});
        assert_eq!(hits(&top.seen(at(1, 2), 9).heaviest), [(1, 5), (2, 3)]);
        // Nobody came since: looking forgets by itself.
        let seen = top.seen(at(2, 0), 9);
        assert_eq!(hits(&seen.heaviest), [(2, 3)]);
        assert_eq!((seen.span, seen.refused), (TURN, 0));
        assert_eq!(top.seen(at(3, 0), 9).heaviest, []);
        // And so does counting.
        top.add(hit(3, 1, 0), at(2, 0), |_| {});
        assert_eq!(hits(&top.seen(at(2, 1), 9).heaviest), [(2, 3), (3, 1)]);
        top.add(hit(4, 1, 0), at(9, 0), |_| {});
        assert_eq!(hits(&top.seen(at(9, 1), 9).heaviest), [(4, 1)]);
    }

    #[test]
    fn a_late_thread_counts_for_the_turn_that_is() {
        let top = RuleTop::new(Timestamp::ZERO);
        let begin = Timestamp::ZERO + TURN;
        top.add(hit(1, 1, 0), begin, |_| {});
        top.add(hit(1, 1, 0), begin - Span::from_nanos(1), |_| {});
        assert_eq!(hits(&top.seen(begin, 9).heaviest), [(1, 2)]);
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        for text in ["ä".repeat(200), format!("x{}", "ä".repeat(200))] {
            let mut name = String::new();
            let mut short = ShortName::new(&mut name);
            assert!(write!(short, "{text}").is_err());
            assert!(name.ends_with("ä…") && name.len() <= MAX_NAME, "{name}");
            assert!(name.len() > MAX_NAME - 3);
        }
        let mut name = String::new();
        write!(ShortName::new(&mut name), "tenant=acme").unwrap();
        assert_eq!(name, "tenant=acme");
    }
}
