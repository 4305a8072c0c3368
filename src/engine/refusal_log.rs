//! Log lines of refusals: which limit, why, whom, and when to come back. The caller is named as in
//! [`top`](crate::engine::top): by its descriptor where the rule lets statistics show values, by a
//! keyed hash elsewhere.

use std::sync::Arc;

use crate::{
    algorithm::Retry,
    engine::{
        Engine,
        standing::{Reason, Standing},
        top::asks,
        verdict::Verdict,
    },
    model::request::Request,
    telemetry::{refusals::RefusalLog, top::ShortName},
};

impl Engine {
    /// Which refusals are logged; to be changed at any time.
    pub fn refusal_log(&self) -> &Arc<RefusalLog> {
        &self.refusal_log
    }

    /// Logs a refused request, if it is one of those that are.
    pub(super) fn log_refusal(&self, request: &Request<'_>, verdict: &Verdict<'_>) {
        let Some(more) = self.refusal_log.pass(verdict.now.steady) else {
            return;
        };
        let standings = verdict.standings();
        let binding = standings.first().filter(|limit| limit.refused.is_some());
        let limit = binding.map(Standing::label).unwrap_or_default();
        let reason = binding.and_then(|limit| limit.refused);
        let caller = binding.map(|limit| caller(request, verdict, limit));
        // Texts are recorded as such, so that no line break in them begins a line.
        tracing::info!(
            domain = request.domain,
            limit,
            reason = reason.unwrap_or(Reason::Degraded).name(),
            caller = caller.unwrap_or_default(),
            retry_after = match verdict.retry() {
                Some(Retry::After(wait)) => Some(wait.as_secs_f64()),
                Some(Retry::Never) | None => None,
            },
            more,
            "refused"
        );
    }
}

/// Who touched the limit.
fn caller(request: &Request<'_>, verdict: &Verdict<'_>, limit: &Standing<'_>) -> String {
    let mut key = limit.key;
    for (status, descriptor) in verdict.statuses().zip(&request.descriptors) {
        let limits = status.limits();
        let Some(touched) = status
            .touched
            .filter(|_| limits.iter().any(|other| other.key == limit.key))
        else {
            continue;
        };
        key = asks(touched).map_or(key, |(key, _)| key);
        let entries = request.entries(descriptor);
        let matched = verdict.domain.and_then(|domain| domain.find(entries));
        if let Some(matched) = matched.filter(|matched| matched.shows_values(entries)) {
            let mut name = String::new();
            // It ends early when the name is too long.
            let _ = matched.write_shown(entries, &mut ShortName::new(&mut name));
            return name;
        }
        break;
    }
    format!("{:016x}", key.bits() >> 64)
}
