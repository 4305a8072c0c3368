//! One set of rules, what it decided, and what each of its limits did.

use std::sync::Arc;

use crate::{
    engine::{
        Engine, EngineOptions, Installed,
        verdict::{Status, Verdict},
    },
    model::{
        key::KeyHasher,
        time::{Clock, Timestamp},
    },
    replay::{
        callers::{Callers, MOST},
        decision::Decision,
    },
    rules::{Rules, limit::Limit, tree::Rule},
    store::{
        Store,
        memory::{MemoryOptions, MemoryStore},
    },
    trace::{LineError, record::Record},
};

/// Rules in an engine of their own.
#[derive(Debug)]
pub struct Side {
    engine: Engine,
    installed: Arc<Installed>,
    /// The only domain that there is: that of requests that name none.
    default_domain: Option<Arc<str>>,
    totals: Totals,
    /// One per limit of every rule, in the order of the rules; last, the limits of requests.
    tallies: Vec<Tally>,
    /// Index of the first tally of each rule.
    starts: Vec<usize>,
    callers: Callers,
}

/// What became of the requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests decided.
    pub asked: u64,
    /// Of them, refused.
    pub refused: u64,
    /// Of them, for a domain that is not there: they pass.
    pub unknown_domain: u64,
    /// Of them, without a limit on any descriptor: they pass.
    pub untouched: u64,
}

/// What one limit did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests that it was asked about.
    pub asked: u64,
    /// Requests that were refused while it was over.
    pub refused: u64,
    /// Requests that passed although it was over: shadow mode, or a quota beside others.
    pub excused: u64,
    /// The first refusal.
    pub first: Option<Moment>,
    /// The last.
    pub last: Option<Moment>,
}

/// When and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment {
    /// Time of the request.
    pub time: Timestamp,
    /// Its line.
    pub line: u64,
}

impl Side {
    /// Nothing used yet.
    pub fn new(rules: Rules, clock: Clock) -> Self {
        let domains = rules.domains();
        let default_domain = match domains.as_slice() {
            [only] => Some(Arc::clone(&only.name)),
            _ => None,
        };
        // Which counter is where must not differ from run to run.
        let hasher = KeyHasher::new([0; 16]);
        let store = Store::Memory(Arc::new(MemoryStore::new(MemoryOptions::default())));
        let engine = Engine::new(clock, hasher, store, EngineOptions::default());
        engine.install(rules);
        let installed = Arc::clone(&engine.installed());
        let mut starts = Vec::new();
        let mut limits = 0;
        for rule in installed.rules().rules() {
            starts.push(limits);
            limits += rule.limits.len();
        }
        Self {
            engine,
            installed,
            default_domain,
            totals: Totals::default(),
            tallies: vec![Tally::default(); limits + 1],
            starts,
            callers: Callers::new(MOST),
        }
    }

    /// Whether a domain is known for the request: it names one, or there is only one.
    pub fn has_domain_for(&self, record: &Record) -> bool {
        record.names_domain() || self.default_domain.is_some()
    }

    /// Decides a request at the time of the clock.
    pub fn decide<'a>(&'a mut self, record: &'a Record) -> Result<Decision<'a>, LineError> {
        let Self {
            engine,
            installed,
            default_domain,
            totals,
            tallies,
            starts,
            callers,
        } = self;
        let request = record.request(default_domain.as_deref().unwrap_or_default());
        let mut verdict = Verdict::new();
        engine
            .decide_in_memory(installed, &request, engine.clock().now(), &mut verdict)
            .map_err(|error| LineError::Undecided(error.to_string()))?;
        let decision = Decision { request, verdict };
        let moment = Moment {
            time: decision.verdict.now.wall,
            line: record.line,
        };
        totals.count(&decision);
        for status in decision.verdict.statuses() {
            for (index, rule, over) in asked(status) {
                let start = rule.and_then(|rule| starts.get(usize::try_from(rule.id).ok()?));
                let place = start.map_or(tallies.len() - 1, |start| start + index);
                if let Some(tally) = tallies.get_mut(place) {
                    tally.count(moment, over, decision.refused());
                }
            }
        }
        if decision.refused() {
            callers.add(&decision, record);
        }
        Ok(decision)
    }

    /// What became of the requests.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// Every limit of every rule and what it did; last, without a rule, what limits that came with
    /// requests did.
    pub fn tallies(&self) -> impl Iterator<Item = (Option<(&Rule, &Limit)>, &Tally)> {
        let rules = self.installed.rules().rules().iter();
        let limits = rules.flat_map(|rule| rule.limits.iter().map(|limit| Some((&**rule, limit))));
        limits.chain([None]).zip(&self.tallies)
    }

    /// Who was refused.
    pub fn callers(&self) -> &Callers {
        &self.callers
    }

    /// Counters that gave way to others: beyond this many callers the answers are not exact.
    pub fn pressed_out(&self) -> u64 {
        self.engine.store().memory().pressed_out()
    }

    /// Rules that limit work in flight: of that a trace says nothing.
    pub fn concurrency_rules(&self) -> usize {
        let rules = self.installed.rules().rules().iter();
        rules.filter(|rule| rule.concurrency.is_some()).count()
    }
}

impl Totals {
    fn count(&mut self, decision: &Decision<'_>) {
        let verdict = &decision.verdict;
        self.asked += 1;
        self.refused += u64::from(decision.refused());
        if verdict.domain.is_none() {
            self.unknown_domain += 1;
        } else if verdict.statuses().all(|status| status.outcomes.is_empty()) {
            self.untouched += 1;
        }
    }
}

impl Tally {
    fn count(&mut self, moment: Moment, over: bool, refused: bool) {
        self.asked += 1;
        if over && refused {
            self.refused += 1;
            self.first = self.first.or(Some(moment));
            self.last = Some(moment);
        } else if over {
            self.excused += 1;
        }
    }
}

/// Index, rule and whether it is over, of every limit that a descriptor asked.
fn asked<'v>(status: Status<'v, '_>) -> impl Iterator<Item = (usize, Option<&'v Rule>, bool)> {
    let outcomes = status.outcomes;
    status.touched.into_iter().flat_map(move |touched| {
        let rule = touched.rule().map(AsRef::as_ref);
        let outcomes = touched.counters().zip(outcomes);
        outcomes.map(move |(counter, outcome)| {
            let over = !outcome.allowed && !touched.refund;
            (counter.place, rule, over)
        })
    })
}
