//! One decision: rules → charges → store → verdict.

pub mod accounting;
pub mod acquire;
pub mod explain;
mod hold;
mod in_flight;
mod installed;
mod metrics;
mod options;
pub mod peek;
pub mod permits;
mod refusal_log;
mod refusals;
pub mod resolve;
pub mod standing;
mod state;
#[cfg(test)]
mod tests;
pub mod top;
pub mod verdict;

use std::{cell::Cell, ptr, sync::Arc};

use arc_swap::{ArcSwap, Cache, Guard};

pub use self::{installed::Installed, options::EngineOptions};
use crate::{
    engine::{
        accounting::Accounts,
        refusals::Refusals,
        resolve::{charge, charges, only_charge, resolve, terms},
        standing::Standing,
        verdict::{Code, Verdict},
    },
    model::{
        key::KeyHasher,
        request::Request,
        time::{Clock, Now, Span},
    },
    rules::{Domain, Rules},
    store::{
        Charges, Decided, Store,
        lease::{AskError, Bounds},
        leases::Leases,
        redis::StoreError,
    },
    telemetry::{
        call::{CallStat, CallStats},
        latency::{self, Latency},
        refusals::RefusalLog,
        registry::RuleRegistry,
        spans::{self, Noted},
    },
};

/// Why a request cannot be decided.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecideError {
    /// The caller's fault.
    #[error("{0}")]
    BadRequest(&'static str),
    /// No rules were ever loaded.
    #[error("no rules are loaded yet")]
    NoRules,
    /// A table of leases is full.
    #[error("{0}")]
    Exhausted(AskError),
    /// The shared store is needed and did not answer.
    #[error("{0}")]
    Store(#[from] StoreError),
    /// The caller's deadline passed while the request waited; what it was granted is undone.
    #[error("the deadline passed before the answer could leave")]
    TooLate,
}

/// The limiter: decides requests by the rules that are installed now.
#[derive(Debug)]
pub struct Engine {
    clock: Clock,
    hasher: KeyHasher,
    store: Store,
    leases: Leases,
    options: EngineOptions,
    installed: Arc<ArcSwap<Installed>>,
    paths: RuleRegistry,
    calls: CallStats,
    latency: Latency,
    /// Of one decision in [`latency::SAMPLED`], from the request's instant to its verdict.
    decision_latency: Latency,
    refusals: Refusals,
    written: state::Written,
    refusal_log: Arc<RefusalLog>,
}

thread_local! {
    /// The rules of this thread's latest decision.
    static KNOWN: Cell<Option<Known>> = const { Cell::new(None) };
}

type Known = Cache<Arc<ArcSwap<Installed>>, Arc<Installed>>;

impl Engine {
    /// An engine without rules.
    pub fn new(clock: Clock, hasher: KeyHasher, store: Store, options: EngineOptions) -> Self {
        Self {
            hasher,
            leases: Leases::new(&store, Bounds::default(), clock.clone()),
            clock,
            store,
            options,
            installed: Arc::default(),
            paths: RuleRegistry::new(options.max_stat_paths),
            calls: CallStats::default(),
            latency: Latency::default(),
            decision_latency: Latency::new(latency::FINE_MICROS),
            refusals: Refusals::default(),
            written: state::Written::default(),
            refusal_log: Arc::default(),
        }
    }

    /// Replaces the rules for requests that begin from now on. What was used stays used.
    pub fn install(&self, rules: Rules) {
        let before = self.installed.load();
        let rules = rules.inheriting(before.rules()).keyed(&self.hasher);
        let paths = rules.rules().iter().map(|rule| rule.path.as_str());
        let domains = rules.domains().into_iter().map(|domain| &*domain.name);
        let stats = self.paths.load(paths, domains);
        let refusals = self.refusals.load(&rules);
        let now = self.clock.now();
        let tops = self.tops_of(&before, &rules, now);
        self.leases.reload(&rules, now);
        self.installed.store(Arc::new(Installed {
            rules: Arc::new(rules),
            stats,
            refusals,
            tops,
            loaded: true,
        }));
        self.calls.count(CallStat::ConfigLoadSuccess);
    }

    /// The rules as they are now; a request keeps this guard until it is answered.
    pub fn installed(&self) -> Guard<Arc<Installed>> {
        self.installed.load()
    }

    /// [`Engine::installed`] for what is decided at once: the thread keeps the rules until its first
    /// decision after others were installed, so that a decision need not count who uses them.
    #[inline]
    pub fn with_installed<T>(&self, decide: impl FnOnce(&Installed) -> T) -> T {
        let ours = |known: &Known| ptr::eq(known.arc_swap(), Arc::as_ptr(&self.installed));
        let known = KNOWN.try_with(Cell::take).ok().flatten().filter(ours);
        let mut known = known.unwrap_or_else(|| Cache::new(Arc::clone(&self.installed)));
        let decided = decide(known.load());
        // A thread that is ending keeps nothing.
        let _ = KNOWN.try_with(|place| place.set(Some(known)));
        decided
    }

    /// Statistics of calls and loads.
    pub fn calls(&self) -> &CallStats {
        &self.calls
    }

    /// Statistics by stat path.
    pub fn paths(&self) -> &RuleRegistry {
        &self.paths
    }

    /// How long calls took.
    pub fn latency(&self) -> &Latency {
        &self.latency
    }

    /// The store, for sweeping and for its gauges.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Leases on work in flight.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// The clock that decisions are made by.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    /// Counts a request that was wrong before it could be decided.
    pub fn refused_at_the_door(&self) {
        self.calls.count(CallStat::ServiceError);
    }

    /// Counts a call of `ShouldRateLimit`.
    pub fn called(&self) {
        self.calls.count(CallStat::TotalRequests);
    }

    /// Whether [`Engine::decide_in_memory`] gives the answer to a request: its counters are in this
    /// process, and it asks for nothing that may have to be waited for.
    pub fn answers_at_once(&self, installed: &Installed, request: &Request<'_>) -> bool {
        if !matches!(self.store, Store::Memory(_)) {
            return false;
        }
        if !installed.rules.may_wait() {
            return true;
        }
        let domain = installed.rules.domain(request.domain);
        !domain.is_some_and(|domain| hold::may_wait(domain, request))
    }

    /// Decides a request if nothing has to be awaited for that: its counters are in this process,
    /// or the shared store need not be asked. None: [`Engine::decide`] decides it, and what the
    /// verdict says means nothing.
    pub fn decide_at_once<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
        now: Now,
        verdict: &mut Verdict<'r>,
    ) -> Option<Result<(), DecideError>> {
        if self.answers_at_once(installed, request) {
            return Some(self.decide_in_memory(installed, request, now, verdict));
        }
        let redis = self.store.shared()?.redis();
        let domain = installed.rules.domain(request.domain)?;
        let hopeful = domain.root.has_slices() || redis.remembers();
        if !hopeful || hold::may_wait(domain, request) {
            return None;
        }
        if let Err(error) = self.prepare(installed, request, now, verdict) {
            return Some(Err(error));
        }
        let charges = charges(domain, &verdict.resolved);
        let decided = redis.at_once(&charges, now)?;
        self.record(installed, domain, request, verdict, &charges, &decided);
        drop(charges);
        verdict.outcomes = decided.outcomes;
        self.conclude(installed, request, verdict);
        Some(Ok(()))
    }

    /// Counts what a store decided about the charges of a verdict.
    fn record(
        &self,
        installed: &Installed,
        domain: &Domain,
        request: &Request<'_>,
        verdict: &Verdict<'_>,
        charges: &Charges<'_>,
        decided: &Decided,
    ) {
        let (outcomes, remembered) = (&decided.outcomes, decided.remembered);
        let touched = &verdict.resolved;
        let accounts = self.accounts(installed);
        accounts.record(domain, request, touched, charges, outcomes, remembered);
    }

    /// Decides one request, wherever its counters live; may wait for permits, at most half of the
    /// caller's `timeout`.
    ///
    /// # Cancel safety
    /// Dropped while it waits, the request leaves the queue and takes nothing.
    pub async fn decide<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
        now: Now,
        timeout: Option<Span>,
    ) -> Result<Verdict<'r>, DecideError> {
        let mut verdict = Verdict::new();
        self.prepare(installed, request, now, &mut verdict)?;
        if verdict
            .resolved
            .iter()
            .any(|touched| touched.permits.is_some())
        {
            return self
                .decide_in_flight(installed, request, verdict, timeout)
                .await;
        }
        if let Some(domain) = verdict.domain {
            let mut charges = charges(domain, &verdict.resolved);
            charges.terms.patience = Some(hold::patience(timeout));
            let decided = self
                .store
                .decide(domain, &charges, verdict.now, timeout)
                .await;
            if !charges.are_refused(&decided.outcomes) {
                self.hold(domain, &charges, &decided).await;
            }
            self.record(installed, domain, request, &verdict, &charges, &decided);
            drop(charges);
            verdict.outcomes = decided.outcomes;
            verdict.degraded = decided.degraded;
            self.conclude(installed, request, &mut verdict);
        }
        Ok(verdict)
    }

    /// [`Engine::decide`] with the counters of this process: nothing is awaited, the decision runs
    /// to completion on the thread that read the request.
    pub fn decide_in_memory<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
        now: Now,
        verdict: &mut Verdict<'r>,
    ) -> Result<(), DecideError> {
        self.prepare(installed, request, now, verdict)?;
        let Some(domain) = verdict.domain else {
            return Ok(());
        };
        let (memory, accounts) = (self.store.memory(), self.accounts(installed));
        let (touched, outcomes) = (&verdict.resolved, &mut verdict.outcomes);
        if let Some(charge) = only_charge(touched) {
            let outcome = memory.decide_one(terms(domain), &charge, now.wall);
            accounts.record_one(domain, request, touched, &charge, &outcome);
            outcomes.push(outcome);
        } else {
            let mut charges = Charges::default();
            charge(domain, touched, &mut charges);
            memory.decide_into(&charges, now.wall, outcomes);
            accounts.record(domain, request, touched, &charges, outcomes, false);
        }
        self.conclude(installed, request, verdict);
        Ok(())
    }

    /// Finds what the request touches; the verdict has no outcomes yet.
    fn prepare<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
        now: Now,
        verdict: &mut Verdict<'r>,
    ) -> Result<(), DecideError> {
        if let Err(error) = check(installed, request) {
            self.calls.count(CallStat::ServiceError);
            return Err(error);
        }
        let domain = installed.rules.domain(request.domain).map(Arc::as_ref);
        verdict.begin(domain, request.descriptors.len(), now);
        if let Some(domain) = domain {
            let quota = self.options.quota_mode;
            resolve(domain, request, &self.hasher, quota, &mut verdict.resolved);
        } else {
            self.pass_without_domain(installed, request);
        }
        Ok(())
    }

    #[cold]
    fn pass_without_domain(&self, installed: &Installed, request: &Request<'_>) {
        self.accounts(installed).domain_not_found(request);
        spans::note(|| Noted {
            domain: request.domain,
            ..Noted::default()
        });
        self.calls.count(CallStat::Passed);
    }

    fn conclude(&self, installed: &Installed, request: &Request<'_>, verdict: &mut Verdict<'_>) {
        verdict.conclude();
        self.count_callers(installed, request, verdict);
        if verdict.code == Code::OverLimit {
            self.conclude_refusal(installed, request, verdict);
        }
        self.calls.count(match verdict.code {
            Code::Ok => CallStat::Passed,
            Code::OverLimit => CallStat::Refused,
        });
        spans::note(|| noted(request, verdict));
        if latency::is_sampled() {
            self.observe_decision(verdict.now);
        }
    }

    #[inline(never)]
    fn conclude_refusal(
        &self,
        installed: &Installed,
        request: &Request<'_>,
        verdict: &mut Verdict<'_>,
    ) {
        self.refusals.count(&installed.refusals, verdict);
        self.log_refusal(request, verdict);
        if self.options.shadow_mode {
            verdict.code = Code::Ok;
            verdict.shadowed = true;
            self.calls.count(CallStat::GlobalShadowMode);
        }
    }

    #[inline(never)]
    fn observe_decision(&self, start: Now) {
        let now = self.clock.now();
        self.decision_latency
            .observe(start.steady.until(now.steady));
    }

    fn accounts<'a>(&'a self, installed: &'a Installed) -> Accounts<'a> {
        Accounts {
            installed,
            paths: &self.paths,
            options: &self.options,
        }
    }
}

/// For the span of the call.
fn noted<'n>(request: &Request<'n>, verdict: &Verdict<'_>) -> Noted<'n> {
    let standings = verdict.standings();
    let binding = standings.first();
    Noted {
        domain: request.domain,
        is_refused: verdict.code == Code::OverLimit,
        limit: binding.map(Standing::label),
        reason: binding.and_then(|binding| Some(binding.refused?.name())),
    }
}

fn check(installed: &Installed, request: &Request<'_>) -> Result<(), DecideError> {
    if request.domain.is_empty() {
        return Err(DecideError::BadRequest("the domain must not be empty"));
    }
    if request.descriptors.is_empty() {
        return Err(DecideError::BadRequest("at least one descriptor is needed"));
    }
    if !installed.loaded {
        return Err(DecideError::NoRules);
    }
    Ok(())
}
