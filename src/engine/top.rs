//! Who asks a rule most, and whom it refuses most: what `/top` shows.

use std::{collections::HashMap, sync::Arc};

use crate::{
    engine::{
        Engine, Installed,
        acquire::{AcquireAnswer, AcquireRequest},
        permits::Action,
        resolve::Touched,
        verdict::Verdict,
    },
    model::{
        key::CounterKey,
        lease::Decision,
        request::{Entry, Request},
        time::{Now, Span, Timestamp},
    },
    rules::{Domain, Rules, tree::Rule},
    telemetry::top::{Hit, RuleTop, Seen, ShortName, sample, sketch::Counted},
};

/// Rules whose callers are counted; those behind them in the files are not.
const MOST_RULES: usize = 256;

/// The callers of a rule over the last minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Callers {
    /// The rule's path.
    pub rule: String,
    /// How long they were counted.
    pub span: Span,
    /// Units that were asked for; an estimate if [`EngineOptions::top_sample`] is not 1.
    ///
    /// [`EngineOptions::top_sample`]: crate::engine::EngineOptions::top_sample
    pub hits: u64,
    /// Units that were refused, or would have been by a rule in shadow mode.
    pub refused: u64,
    /// Who asked for most of `hits`.
    pub heaviest: Vec<Caller>,
    /// Who was refused most of `refused`.
    pub most_refused: Vec<Caller>,
}

/// One caller: whoever has a counter of the rule of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// A keyed hash: it stays the same as long as the process lives, and nobody can tell from it who
    /// it is.
    pub id: CounterKey,
    /// Its descriptor, where the rule lets statistics show values; control characters as they came.
    pub name: Option<String>,
    /// At least as many as there were, but for sampling.
    pub hits: u64,
    /// At most so many too many.
    pub over: u64,
}

/// What is known of callers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// See [`EngineOptions::top_sample`](crate::engine::EngineOptions::top_sample).
    pub sample: u32,
    /// By rule, in file order.
    pub rules: Vec<Callers>,
    /// Rules that were asked for and are not watched, because there are too many.
    pub unwatched: usize,
}

impl Engine {
    /// The callers of the rules of a domain, or of the one with that path; at most `most` of each
    /// kind. None when there is no such domain.
    pub fn top(
        &self,
        installed: &Installed,
        domain: &str,
        path: Option<&str>,
        most: usize,
    ) -> Option<Top> {
        let now = self.clock.now().steady;
        let mut top = Top {
            sample: self.options.top_sample,
            rules: Vec::new(),
            unwatched: 0,
        };
        let rules = installed.rules.domain(domain)?.rules().into_iter();
        for rule in rules.filter(|rule| path.is_none_or(|path| rule.path == path)) {
            match installed.top_of(rule) {
                None => top.unwatched += 1,
                Some(counted) => {
                    let Seen {
                        span,
                        hits,
                        refused,
                        heaviest,
                        most_refused,
                    } = counted.seen(now, most);
                    let callers = |list: Vec<Counted>| list.into_iter().map(Caller::of).collect();
                    top.rules.push(Callers {
                        rule: rule.path.clone(),
                        span,
                        hits,
                        refused,
                        heaviest: callers(heaviest),
                        most_refused: callers(most_refused),
                    });
                }
            }
        }
        Some(top)
    }

    /// The counters for these rules; rules that stay keep theirs.
    pub(super) fn tops_of(
        &self,
        before: &Installed,
        rules: &Rules,
        now: Now,
    ) -> Vec<Option<Arc<RuleTop>>> {
        if self.options.top_sample == 0 {
            return Vec::new();
        }
        let known = before.rules.rules().iter().zip(&before.tops);
        let known: HashMap<&str, &Arc<RuleTop>> = known
            .filter_map(|(rule, top)| Some((rule.path.as_str(), top.as_ref()?)))
            .collect();
        let mut room = MOST_RULES;
        let one = |rule: &Arc<Rule>| {
            if rule.unlimited {
                return None;
            }
            room = room.checked_sub(1)?;
            let kept = known.get(rule.path.as_str()).copied().cloned();
            Some(kept.unwrap_or_else(|| Arc::new(RuleTop::new(now.steady))))
        };
        rules.rules().iter().map(one).collect()
    }

    /// Counts who asked, and who was refused.
    pub(super) fn count_callers(
        &self,
        installed: &Installed,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
    ) {
        let sample = self.options.top_sample;
        if sample == 0 {
            return;
        }
        let weight = sample::weight(sample, verdict.now.steady);
        if weight == 0 && verdict.outcomes.iter().all(|outcome| outcome.allowed) {
            return;
        }
        count(installed, request, verdict, weight);
    }

    /// Counts who asked for permits, and who did not get them. What changed nothing (dry runs,
    /// repetitions) does not count.
    pub fn count_acquire(&self, request: &AcquireRequest<'_>, answered: &AcquireAnswer) {
        let (sample, answer) = (self.options.top_sample, &answered.answer);
        let is_granted = match answer.decision {
            Decision::Granted => true,
            Decision::Refused | Decision::Never => false,
            _ => return,
        };
        if sample == 0 || request.dry_run {
            return;
        }
        let now = self.clock.now().steady;
        let weight = sample::weight(sample, now);
        if weight == 0 && is_granted {
            return;
        }
        let installed = self.installed();
        let Some(domain) = installed.rules.domain(request.domain) else {
            return;
        };
        let mut hasher = self.hasher;
        hasher.text(request.domain);
        for (index, item) in request.items.iter().enumerate() {
            let Some(matched) = domain.find(&item.entries) else {
                continue;
            };
            let asked = item.asks(&matched, &hasher);
            let (Some(top), Some((key, cost))) = (installed.top_of(matched.rule), asked) else {
                continue;
            };
            let is_short = answer.limiting.contains(&index) || answer.offender == Some(index);
            let hit = Hit {
                key,
                hits: cost.saturating_mul(weight),
                refused: if is_granted || !is_short { 0 } else { cost },
            };
            add(top, hit, now, Some(domain), &item.entries);
        }
    }
}

/// Counts the callers of a request that stands for so many.
#[inline(never)]
fn count(installed: &Installed, request: &Request<'_>, verdict: &Verdict<'_>, weight: u64) {
    let now = verdict.now.steady;
    for (status, descriptor) in verdict.statuses().zip(&request.descriptors) {
        let Some(touched) = status.touched.filter(|touched| !touched.refund) else {
            continue;
        };
        let (Some(rule), Some((key, cost))) = (touched.matched, asks(touched)) else {
            continue;
        };
        let Some(top) = installed.top_of(rule) else {
            continue;
        };
        let is_refused = status.outcomes.iter().any(|outcome| !outcome.allowed);
        let hit = Hit {
            key,
            hits: cost.saturating_mul(weight),
            refused: if is_refused { cost } else { 0 },
        };
        add(top, hit, now, verdict.domain, request.entries(descriptor));
    }
}

/// Counts one caller of a rule of the domain; it has a name where statistics have one.
fn add(top: &RuleTop, hit: Hit, now: Timestamp, domain: Option<&Domain>, entries: &[Entry<'_>]) {
    if hit.hits == 0 && hit.refused == 0 {
        return;
    }
    top.add(hit, now, |name| {
        let matched = domain.and_then(|domain| domain.find(entries));
        if let Some(matched) = matched.filter(|m| m.shows_values(entries)) {
            // It ends early when the name is too long.
            let _ = matched.write_shown(entries, &mut ShortName::new(name));
        }
    });
}

impl Installed {
    /// None of rules that are not watched.
    fn top_of(&self, rule: &Rule) -> Option<&RuleTop> {
        let id = usize::try_from(rule.id).ok()?;
        self.tops.get(id)?.as_deref()
    }
}

impl Caller {
    fn of(counted: Counted) -> Self {
        Self {
            id: counted.key,
            name: Some(counted.name).filter(|name| !name.is_empty()),
            hits: counted.hits,
            over: counted.over,
        }
    }
}

/// Whose counter it is, and what is asked of it.
pub(super) fn asks(touched: &Touched<'_>) -> Option<(CounterKey, u64)> {
    if let Some(counter) = touched.counters().next() {
        return Some((counter.key, touched.cost));
    }
    let permits = touched.permits.as_ref()?;
    match permits.action {
        Action::Take(count) => Some((permits.key, count)),
        Action::Look | Action::Release { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        config::{LoadOptions, parse},
        engine::EngineOptions,
        model::{
            key::KeyHasher,
            request::Entry,
            time::{ManualClock, Timestamp},
        },
        store::memory::{MemoryOptions, MemoryStore},
    };

    const RULES: &str = "
domain: d
descriptors:
- {key: open, detailed_metric: true, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: closed, rate_limit: {unit: day, requests_per_unit: 3}}
- {key: dark, shadow_mode: true, rate_limit: {unit: day, requests_per_unit: 0}}
- {key: free, rate_limit: {unlimited: true}}
";

    fn engine(top_sample: u32) -> (ManualClock, Engine) {
        let clock = ManualClock::at(Timestamp::from_secs(1_000_000));
        let store = MemoryStore::new(MemoryOptions::default()).into();
        let options = EngineOptions {
            top_sample,
            ..EngineOptions::default()
        };
        let engine = Engine::new(clock.clock(), KeyHasher::random(), store, options);
        install(&engine, RULES);
        (clock, engine)
    }

    fn install(engine: &Engine, text: &str) {
        let loaded = parse(&[("d.yaml", text)], &LoadOptions::default());
        engine.install(loaded.into_rules().unwrap());
    }

    fn ask(engine: &Engine, key: &str, value: &str, hits: u32) {
        let mut request = Request::new("d");
        request.add([Entry { key, value }]);
        request.hits_addend = hits;
        let installed = engine.installed();
        let now = engine.clock().now();
        engine
            .decide_in_memory(&installed, &request, now, &mut Verdict::new())
            .unwrap();
    }

    fn shown(engine: &Engine, path: &str) -> Callers {
        let top = engine.top(&engine.installed(), "d", Some(path), 2).unwrap();
        let [callers] = &top.rules[..] else {
            panic!("{top:?}")
        };
        callers.clone()
    }

    fn hits(callers: &[Caller]) -> Vec<(Option<&str>, u64)> {
        let one = |caller: &'_ Caller| caller.hits;
        let names = callers.iter().map(|caller| caller.name.as_deref());
        names.zip(callers.iter().map(one)).collect()
    }

    #[test]
    fn the_heaviest_and_the_most_refused_have_names_where_they_may() {
        let (_clock, engine) = engine(1);
        for (value, times) in [("ann", 5), ("bob", 2), ("eve", 9)] {
            for key in ["open", "closed", "dark", "free"] {
                (0..times).for_each(|_| ask(&engine, key, value, 1));
            }
        }
        let open = shown(&engine, "d.open");
        assert_eq!((open.hits, open.refused), (16, 8));
        let name = |name| Some(name);
        assert_eq!(
            hits(&open.heaviest),
            [(name("open=eve"), 9), (name("open=ann"), 5)]
        );
        assert_eq!(
            hits(&open.most_refused),
            [(name("open=eve"), 6), (name("open=ann"), 2)]
        );
        assert!(open.heaviest.iter().all(|caller| caller.over == 0));
        let closed = shown(&engine, "d.closed");
        assert_eq!(hits(&closed.heaviest), [(None, 9), (None, 5)]);
        assert_eq!(closed.heaviest[0].id, closed.most_refused[0].id);
        assert_eq!(shown(&engine, "d.dark").refused, 16);
        let all = engine.top(&engine.installed(), "d", None, 2).unwrap();
        assert_eq!((all.rules.len(), all.unwatched), (3, 1));
        assert!(engine.top(&engine.installed(), "e", None, 2).is_none());
    }

    #[test]
    fn costs_count_and_a_reload_keeps_them() {
        let (clock, engine) = engine(1);
        ask(&engine, "closed", "ann", 7);
        install(
            &engine,
            &RULES.replace("requests_per_unit: 3", "requests_per_unit: 9"),
        );
        ask(&engine, "closed", "ann", 2);
        clock.advance(Span::from_secs(10));
        let callers = shown(&engine, "d.closed");
        assert_eq!((callers.hits, callers.refused), (9, 7));
        assert_eq!(callers.span, Span::from_secs(10));
    }

    #[test]
    fn nothing_is_counted_when_nobody_wants_to_know() {
        let (_clock, engine) = engine(0);
        ask(&engine, "closed", "ann", 7);
        let top = engine.top(&engine.installed(), "d", None, 2).unwrap();
        assert_eq!((top.sample, top.rules), (0, Vec::new()));
    }
}
