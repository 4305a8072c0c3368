//! Looking at counters and forgetting them: nothing here counts, neither units nor statistics.

use crate::{
    engine::{
        DecideError, Engine, Installed, check,
        resolve::{charges, resolve},
        verdict::Verdict,
    },
    model::{key::CounterKey, request::Request},
    store::Charges,
};

impl Engine {
    /// What [`Engine::decide`] would answer if the request came now. Takes nothing and gives
    /// nothing back; the outcomes tell what is used and left as it stands, and
    /// [`Outcome::more`](crate::algorithm::Outcome::more).
    pub async fn peek<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, DecideError> {
        let mut verdict = self.touched_by(installed, request)?;
        if let Some(domain) = verdict.domain {
            let charges = Charges {
                tell_more: true,
                ..charges(domain, &verdict.resolved)
            };
            let outcomes = self.store.look(&charges, verdict.now).await;
            drop(charges);
            verdict.outcomes = outcomes;
            verdict.conclude();
        }
        Ok(verdict)
    }

    /// Forgets every counter that the request's descriptors touch, whatever their cost: what was
    /// used is not used any more. Says how many counters there were.
    pub async fn reset(
        &self,
        installed: &Installed,
        request: &Request<'_>,
    ) -> Result<u64, DecideError> {
        let verdict = self.touched_by(installed, request)?;
        let counters = verdict
            .resolved
            .iter()
            .flat_map(|touched| &touched.counters);
        let keys: Vec<CounterKey> = counters.map(|counter| counter.key).collect();
        Ok(self.store.reset(&keys).await)
    }

    /// A verdict without outcomes.
    fn touched_by<'r>(
        &self,
        installed: &'r Installed,
        request: &Request<'_>,
    ) -> Result<Verdict<'r>, DecideError> {
        check(installed, request)?;
        let domain = installed.rules.domain(request.domain).map(AsRef::as_ref);
        let mut verdict = Verdict::new(domain, request.descriptors.len(), self.clock.now());
        if let Some(domain) = domain {
            let quota = self.options.quota_mode;
            resolve(domain, request, &self.hasher, quota, &mut verdict.resolved);
        }
        Ok(verdict)
    }
}
