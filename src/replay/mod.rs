//! What rules would have done to the requests of a trace.
//!
//! The rules run in the real [`Engine`](crate::engine::Engine), on a clock that the trace moves. With
//! two sets of rules, both decide every request, and the difference is told.

pub mod callers;
pub mod decision;
pub mod report;
pub mod side;

use std::io::BufRead;

use crate::{
    model::time::{ManualClock, Timestamp},
    replay::{
        callers::{Callers, MOST},
        decision::Decision,
        side::Side,
    },
    rules::Rules,
    trace::{LineError, Step, Trace, TraceError, order::Order, record::Record},
};

/// Records that wait for earlier ones, when nobody says how many: see [`Order`].
pub const DEFAULT_ORDER: usize = 10_000;

/// Bad lines that are kept for the report.
const BAD_LINES_SHOWN: usize = 10;

/// One set of rules, or two to compare.
#[derive(Debug)]
pub struct Replay {
    clock: ManualClock,
    /// The rules, old before new.
    sides: Vec<Side>,
    seen: Seen,
    changes: Changes,
}

/// What the trace was.
#[derive(Debug, Default)]
pub struct Seen {
    /// Lines that were looked at.
    pub lines: u64,
    /// Lines that are no request.
    pub bad: u64,
    /// The first of them, by number.
    pub bad_lines: Vec<(u64, LineError)>,
    /// Requests that a proxy would not have asked about: no descriptor could be made.
    pub not_asked: u64,
    /// Requests that the rules decided.
    pub asked: u64,
    /// Requests that stood so late in the file that they were decided after later ones, at the
    /// time of those.
    pub late: u64,
    /// Time of the first and the last request.
    pub between: Option<(Timestamp, Timestamp)>,
}

/// What the new rules decide otherwise than the old ones.
#[derive(Debug)]
pub struct Changes {
    /// Requests that only the new rules refuse, and whose they are.
    pub refused: (u64, Callers),
    /// Requests that only the old rules refuse, and whose they are.
    pub admitted: (u64, Callers),
}

impl Replay {
    /// Begins with nothing used, under each of the rules.
    pub fn new(rules: impl IntoIterator<Item = Rules>) -> Self {
        let clock = ManualClock::at(Timestamp::ZERO);
        Self {
            sides: rules
                .into_iter()
                .map(|rules| Side::new(rules, clock.clock()))
                .collect(),
            clock,
            seen: Seen::default(),
            changes: Changes {
                refused: (0, Callers::new(MOST)),
                admitted: (0, Callers::new(MOST)),
            },
        }
    }

    /// Reads a trace to its end. `watch` is told every refusal under the newest rules;
    /// `progress` every line, as the bytes read so far.
    pub fn run<R: BufRead>(
        &mut self,
        trace: &mut Trace<R>,
        mut order: Order,
        watch: &mut dyn FnMut(&Record, &Decision<'_>),
        progress: &mut dyn FnMut(u64),
    ) -> Result<(), TraceError> {
        let mut record = Record::default();
        while let Some(Step { line, read }) = trace.read(&mut record)? {
            self.seen.lines = line;
            match read {
                Ok(()) if record.has_no_descriptors() => self.seen.not_asked += 1,
                Ok(()) => order.put(&mut record),
                Err(error) => self.seen.bad_line(line, error),
            }
            while let Some(record) = order.take(false) {
                self.decide(record, watch);
            }
            progress(trace.position());
        }
        while let Some(record) = order.take(true) {
            self.decide(record, watch);
        }
        Ok(())
    }

    /// Decides one request. The clock never runs backwards, as the machine's wall line does not.
    pub fn decide(&mut self, record: &Record, watch: &mut dyn FnMut(&Record, &Decision<'_>)) {
        if !self.sides.iter().all(|side| side.has_domain_for(record)) {
            let error = LineError::Missing("domain".to_owned());
            return self.seen.bad_line(record.line, error);
        }
        let latest = self.clock.now().wall;
        let late = record.time < latest && self.seen.between.is_some();
        self.clock.set_wall(record.time.max(latest));
        let mut decisions = Vec::with_capacity(2);
        for side in &mut self.sides {
            match side.decide(record) {
                Ok(decision) => decisions.push(decision),
                Err(error) => return self.seen.bad_line(record.line, error),
            }
        }
        self.seen.asked += 1;
        self.seen.late += u64::from(late);
        let (first, _) = self.seen.between.unwrap_or((record.time, record.time));
        self.seen.between = Some((first, record.time.max(latest)));
        if let [old, new] = decisions.as_slice()
            && old.refused() != new.refused()
        {
            let (decision, (count, callers)) = if new.refused() {
                (new, &mut self.changes.refused)
            } else {
                (old, &mut self.changes.admitted)
            };
            *count += 1;
            callers.add(decision, record);
        }
        if let Some(newest) = decisions.last().filter(|decision| decision.refused()) {
            watch(record, newest);
        }
    }

    /// What the trace was.
    pub fn seen(&self) -> &Seen {
        &self.seen
    }

    /// What each set of rules did.
    pub fn sides(&self) -> &[Side] {
        &self.sides
    }

    /// The difference; none with one set of rules.
    pub fn changes(&self) -> Option<&Changes> {
        (self.sides.len() == 2).then_some(&self.changes)
    }
}

impl Seen {
    fn bad_line(&mut self, line: u64, error: LineError) {
        self.bad += 1;
        if self.bad_lines.len() < BAD_LINES_SHOWN {
            self.bad_lines.push((line, error));
        }
    }
}
