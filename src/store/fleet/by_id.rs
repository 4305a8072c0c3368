//! Leases that exist: ended and prolonged, by their ids or by the names that proxies give them.

use std::sync::Arc;

use super::Fleet;
use crate::{
    model::{
        key::CounterKey,
        lease::{LeaseId, Outcome, ReleaseStatus, RenewStatus},
        time::{Now, Span},
    },
    store::{
        lease::Release,
        redis::{
            StoreError,
            lease::{Message, releases, renewals},
        },
    },
};

impl Fleet {
    /// Ends leases by their ids, and says which.
    ///
    /// # Errors
    /// The store is away: the leases end as soon as it is back.
    pub async fn release(
        self: &Arc<Self>,
        given: &[Release<'_>],
        now: Now,
    ) -> Result<Vec<ReleaseStatus>, StoreError> {
        let mut statuses = vec![ReleaseStatus::Unknown; given.len()];
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (place, release) in given.iter().enumerate() {
            if let Some(status) = self.release_here(release, now) {
                statuses[place] = status;
            } else {
                places.push(place);
                away.push(*release);
            }
        }
        if away.is_empty() {
            return Ok(statuses);
        }
        let message = Message::release(&away);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        let (told, keys) = match answer.and_then(releases) {
            Ok(told) => told,
            Err(error) => {
                self.post(message);
                return Err(error);
            }
        };
        let ids: Vec<LeaseId> = away.iter().map(|release| release.id).collect();
        self.sessions.remove(&ids);
        for key in keys {
            self.queues.call(key);
        }
        for (place, status) in places.into_iter().zip(told) {
            statuses[place] = status;
        }
        Ok(statuses)
    }

    /// Ends the lease of this name, or the oldest one without a name. While the store is away it
    /// will be told.
    pub async fn release_by(
        self: &Arc<Self>,
        key: CounterKey,
        name: Option<CounterKey>,
        outcome: Outcome,
        service_time: Option<Span>,
        now: Now,
    ) -> Result<(), StoreError> {
        if self.release_by_here(key, name, outcome, service_time, now) {
            return Ok(());
        }
        let message = Message::release_by(key, name, outcome);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        if let Err(error) = answer {
            self.post(message);
            return Err(error);
        }
        self.queues.call(key);
        Ok(())
    }

    /// Prolongs leases.
    ///
    /// # Errors
    /// The store is away.
    pub async fn renew(
        &self,
        renewed: &[(LeaseId, Option<&str>, Option<Span>)],
        now: Now,
    ) -> Result<Vec<RenewStatus>, StoreError> {
        let mut statuses = vec![RenewStatus::Unknown; renewed.len()];
        let (mut places, mut away) = (Vec::new(), Vec::new());
        for (place, (id, holder, ttl)) in renewed.iter().enumerate() {
            if let Some(status) = self.renew_here(id, *holder, *ttl, now) {
                statuses[place] = status;
            } else {
                places.push(place);
                away.push((*id, *holder, *ttl));
            }
        }
        if away.is_empty() {
            return Ok(statuses);
        }
        let message = Message::renew(&away);
        let answer = self
            .redis()
            .call(&self.domain, &message, Span::MAX, || ())
            .await;
        for (place, status) in places.into_iter().zip(answer.and_then(renewals)?) {
            statuses[place] = status;
        }
        Ok(statuses)
    }
}
